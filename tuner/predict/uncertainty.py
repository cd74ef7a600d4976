"""How far a predicted step may be off: the fit's own uncertainty, what it misses, and where nothing was published."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache

from tuner.predict.constants import Calibration, Constants, Fitted
from tuner.predict.step_time import SPECIALIZED, Setup, step_ms

Z90 = 1.645  # half width of a central 90 % interval, in sd of a normal distribution
LONGEST_PUBLISHED_CONTEXT = 11_008
MOST_PUBLISHED_TOKENS = 64
_NAMES = tuple(f.name for f in fields(Fitted))


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """sentence: what nobody has published.   log_sd: by which the step may be off for it; a judgement, not a fit."""

    sentence: str
    log_sd: float


@lru_cache(maxsize=65_536)
def extrapolations(what: Setup) -> tuple[Extrapolation, ...]:
    """The regimes of a step in which no published measurement of vLLM on GB300 holds the model."""
    specialized = what.path == SPECIALIZED
    cases = (
        (specialized and what.tensor_parallel == 8, "the specialised path on 8 GPUs: no measurement is public", 0.1),
        (what.dcp > 1, "decode context parallel: no measurement of Kimi K3 is public", 0.1),
        (what.drafts not in (0, 7), f"{what.drafts} drafts: measurements are public for none and for 7", 0.04),
        (
            what.drafts > 0 and what.requests > 1,
            "several requests with drafts: no measurement on GB300 is public",
            0.05,
        ),
        (what.tokens > MOST_PUBLISHED_TOKENS, f"steps of more than {MOST_PUBLISHED_TOKENS} tokens", 0.1),
        (1 < what.requests < 64, "between 1 and 64 requests: interpolated", 0.03),
        (
            what.context > LONGEST_PUBLISHED_CONTEXT,
            f"contexts beyond {LONGEST_PUBLISHED_CONTEXT} tokens: from timings of the attention kernel with one "
            "token a request",
            0.07,
        ),
        (what.expert_parallel, "expert parallel: no measurement of vLLM on GB300 is public", 0.2),
        (not what.fp8_kv, "BF16 keys and values: from kernel timings alone", 0.03),
        (not what.float32_state, "a BF16 recurrent state: from its bytes alone", 0.03),
    )
    return tuple(Extrapolation(sentence, sd) for holds, sentence, sd in cases if holds)


@lru_cache(maxsize=65_536)
def gradient(what: Setup, constants: Constants) -> tuple[float, ...]:
    """Of the log of a step by each fitted value, in the order of their names."""
    return tuple(
        (math.log(step_ms(what, up)) - math.log(step_ms(what, down))) / width for up, down, width in _shifted(constants)
    )


@lru_cache(maxsize=64)
def _shifted(constants: Constants) -> tuple[tuple[Constants, Constants, float], ...]:
    """For each fitted value the constants with it a little higher and a little lower, and the difference."""
    found = []
    for name, value in zip(_NAMES, astuple(constants.fitted), strict=True):
        step = 1e-4 * max(abs(value), 1e-2)
        up, down = (
            replace(constants, fitted=replace(constants.fitted, **{name: value + way * step})) for way in (1, -1)
        )
        found.append((up, down, 2 * step))
    return tuple(found)


def step_log_sd(what: Setup, calibration: Calibration) -> float:
    """Of the log of a predicted step."""
    own = _variance(gradient(what, calibration.constants), calibration.covariance)
    return math.sqrt(own + calibration.residual_sd**2 + sum(e.log_sd**2 for e in extrapolations(what)))


def ratio_log_sd(what: Setup, other: Setup, calibration: Calibration) -> float:
    """Of the log of the ratio of two predicted steps: what both are off by alike cancels."""
    if what == other:
        return 0.0
    mine, theirs = gradient(what, calibration.constants), gradient(other, calibration.constants)
    own = _variance([a - b for a, b in zip(mine, theirs, strict=True)], calibration.covariance)
    apart = set(extrapolations(what)) ^ set(extrapolations(other))
    return math.sqrt(own + calibration.residual_sd**2 + sum(e.log_sd**2 for e in apart))


def _variance(slopes: Sequence[float], covariance: Sequence[Sequence[float]]) -> float:
    return sum(a * b * covariance[i][j] for i, a in enumerate(slopes) for j, b in enumerate(slopes))
