"""Command line, worker, settings, and the one place where the parts are put together."""
