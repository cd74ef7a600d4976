"""Decode step time and memory of Kimi K3 on GB300, from arithmetic and a few fitted constants. Nothing is run."""


class PredictError(ValueError):
    """The model does not speak of that; the message says what it speaks of."""
