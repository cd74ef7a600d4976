"""How numbers, states and decisions are put for a reader. Strings only; the templates place and escape them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from tuner.core.decision import DecisionKind, QualityResult
from tuner.core.metrics import METRICS
from tuner.core.study import StudyState

# A sign beside each word, so that nothing is told by colour alone.
DECISIONS: Mapping[str | None, tuple[str, str]] = {
    DecisionKind.VALIDATED: ("✓", "good"),
    DecisionKind.NO_VALIDATED_IMPROVEMENT: ("=", "plain"),
    DecisionKind.INFEASIBLE: ("✕", "bad"),
    DecisionKind.NOT_MEASURED: ("?", "warn"),
    None: ("…", "plain"),
}
ORIGINS: Mapping[str, tuple[str, str]] = {
    "measured": ("●", "good"),
    "recorded": ("◐", "warn"),
    "predicted": ("○", "warn"),
}
STATES: Mapping[str, tuple[str, str]] = {
    StudyState.QUEUED: ("…", "plain"),
    StudyState.RUNNING: ("▶", "live"),
    StudyState.CONFIRMING: ("▶", "live"),
    StudyState.DONE: ("■", "plain"),
    StudyState.CANCELLED: ("■", "warn"),
    StudyState.FAILED: ("✕", "bad"),
}


def words(name: str) -> str:
    return name.replace("_", " ")


def number(value: object) -> str:
    """Four figures, or whole above 10,000; a dash for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:+.{digits}%}"


def unit(metric: str) -> str:
    known = METRICS.get(metric)
    return known.unit if known else ""


def short(value: str) -> str:
    """At most 40 characters; None is what the engine does when nothing is said."""
    if value == "None":
        return "engine's default"
    return value if len(value) <= 40 else value[:39] + "…"


def clip(text: str, characters: int) -> str:
    """So many at most, and how many more there are."""
    more = len(text) - characters
    return text if more <= 0 else f"{text[:characters]} … {more:,} more characters in REST"


def moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of the output over every size that it was made at: the worst of them."""

    name: str
    sizes: int
    worst: float
    limit: float
    unit: str
    passed: bool


def checks(results: Sequence[QualityResult]) -> list[Checked]:
    """Failed ones first."""
    found = []
    for name, group in groupby(sorted(results, key=lambda r: r.name), key=lambda r: r.name):
        mine = list(group)
        worst = max(mine, key=lambda r: (not r.passed, r.value - r.limit))
        found.append(
            Checked(words(name), len(mine), worst.value, worst.limit, worst.unit, all(one.passed for one in mine))
        )
    return sorted(found, key=lambda one: one.passed)


@dataclass(frozen=True, slots=True)
class Dot:
    """x: 0 to 100, from the left."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """The paired start ratios of a confirmation on one axis."""

    dots: Sequence[Dot]
    low: Dot
    high: Dot
    one: Dot
    least: Dot


def pairs(ratios: Iterable[float], lower: float, upper: float, min_gain: float) -> Pairs | None:
    """Positions on an axis that holds them all; None where one is no finite number."""
    found = list(ratios)
    ends = [1.0, 1 + min_gain, 1 + lower, 1 + upper, *found]
    if not found or not all(map(math.isfinite, ends)):
        return None
    least, most = min(ends), max(ends)
    room = (most - least or 0.01) * 0.06
    low, width = least - room, most - least + 2 * room

    def dot(ratio: float) -> Dot:
        return Dot(round(100 * (ratio - low) / width, 2), f"{ratio:.4f}")

    return Pairs([dot(r) for r in found], dot(1 + lower), dot(1 + upper), dot(1.0), dot(1 + min_gain))
