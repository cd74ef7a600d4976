"""Predicted against measured, as a study goes: what the model is off by here, and what it never expected. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.ports import Belief

ALARM_SD = 3.0
# A bias of all predictions alike, before one was measured: another machine, driver or build.
BIAS_SD = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """name: of the candidate and workload.   log_sd: that the prediction claimed for itself."""

    name: str
    predicted: float
    log_sd: float
    measured: float

    @property
    def off(self) -> float:
        """Log of measured over predicted."""
        return math.log(self.measured / self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """surprise: distance from what the other pairs lead to expect, in sd.   alarm: beyond three."""

    pair: Pair
    surprise: float

    @property
    def alarm(self) -> bool:
        return abs(self.surprise) > ALARM_SD


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """bias: mean log of measured over predicted, learnt; bias_sd: of it.   spread: by which predictions scatter about
    that, as a factor of the sd that they claimed: above one they were too sure.   entries: in the order given.
    """

    bias: float
    bias_sd: float
    spread: float
    entries: tuple[Entry, ...]

    @property
    def alarms(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.alarm)

    def corrected(self, belief: Belief) -> Belief:
        """Of a level, not of a ratio to a measured baseline: there the bias has cancelled already."""
        return Belief(belief.mean + self.bias, math.hypot(belief.sd * self.spread, self.bias_sd))

    def sentence(self) -> str:
        """What a study shows of it."""
        if not self.entries:
            return "nothing that was predicted has been measured yet"
        off = math.exp(self.bias) - 1
        alarms = f"; {len(self.alarms)} far outside what was expected" if self.alarms else ""
        return (
            f"{len(self.entries)} predictions measured: {off:+.1%} off on the whole, scatter {self.spread:.2g} times "
            f"what was claimed{alarms}"
        )


def ledger(pairs: Sequence[Pair]) -> Ledger:
    """Raises ValueError for a figure that is not above zero."""
    for pair in pairs:
        if min(pair.predicted, pair.measured, pair.log_sd) <= 0:
            raise ValueError(f"{pair.name}: predicted, measured and sd must be above zero")
    bias, bias_sd = _bias(pairs)
    entries = tuple(Entry(pair=pair, surprise=_surprise(pair, _without(pairs, at))) for at, pair in enumerate(pairs))
    return Ledger(bias=bias, bias_sd=bias_sd, spread=_spread(pairs, bias), entries=entries)


def _bias(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Mean of a normal about zero, updated by each pair at its claimed sd."""
    precision = 1 / BIAS_SD**2 + math.fsum(1 / pair.log_sd**2 for pair in pairs)
    return math.fsum(pair.off / pair.log_sd**2 for pair in pairs) / precision, 1 / math.sqrt(precision)


def _spread(pairs: Sequence[Pair], bias: float) -> float:
    """Root mean square of the scaled residuals, with one imaginary pair that scatters as claimed."""
    return math.sqrt((1 + math.fsum(((p.off - bias) / p.log_sd) ** 2 for p in pairs)) / (1 + len(pairs)))


def _surprise(pair: Pair, others: Sequence[Pair]) -> float:
    bias, bias_sd = _bias(others)
    return (pair.off - bias) / math.hypot(pair.log_sd * max(1.0, _spread(others, bias)), bias_sd)


def _without(pairs: Sequence[Pair], at: int) -> Sequence[Pair]:
    return [*pairs[:at], *pairs[at + 1 :]]
