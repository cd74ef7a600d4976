"""Faults injected on purpose into a running service. `python -m scripts.faults` runs them all."""
