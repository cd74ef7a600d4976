"""The only code of ours that runs in an engine's interpreter. Imports the standard library alone at import time."""

__version__ = "0.1.0"
