"""What may be tried: typed configurations, knobs, named rules that cite their reason, built-in spaces. Pure."""
