"""Statistics of paired ratios: exact signed-rank test, estimate, bounds, Holm, smallest gain. Knows no start or study.

Everything follows from one set of numbers, the Walsh averages (means of two of the log ratios, each with itself too):
their median is the Hodges-Lehmann estimate, how many of them lie at or below 0 is the Wilcoxon statistic of the
negative ranks, and the bound is the one of them at which the same test stops rejecting. Zeros and ties count against
the candidate, so the exact distribution holds for them as well.
Source: Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, 3rd ed. 2014, sections 3.1 to 3.3.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.stats import wilcoxon

POWER = 0.8  # share of confirmations that would show a gain of the stated size
MOST_STARTS = 50  # a side, that a study file may ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one ratio, minus 1. gain: Hodges-Lehmann.   lower, upper: one-sided bounds at `alpha` each, by inverting the
    test; -1 and infinity where so few pairs reach no such level.   p: one-sided, of a ratio above 1, not adjusted."""

    gain: float
    lower: float
    upper: float
    p: float


def estimate(ratios: Sequence[float], *, alpha: float) -> Estimate:
    """Raises ValueError for no ratio, or one that is not positive and finite."""
    walsh = _walsh(ratios)
    n, rank = len(ratios), critical_rank(len(ratios), alpha)
    return Estimate(
        gain=math.expm1((walsh[(len(walsh) - 1) // 2] + walsh[len(walsh) // 2]) / 2),
        lower=math.expm1(walsh[rank - 1]) if rank else -1.0,
        upper=math.expm1(walsh[-rank]) if rank else math.inf,
        p=p_value(n, sum(average <= 0 for average in walsh)),
    )


def _walsh(ratios: Sequence[float]) -> list[float]:
    if not ratios or not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise ValueError("paired ratios are positive and finite, and there is at least one")
    logs = [math.log(ratio) for ratio in ratios]
    return sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))


def best_lower_bound(ratios: Sequence[float], n: int, *, alpha: float) -> float:
    """The lower bound of n pairs, minus 1, were all those still missing as good as can be; infinite where they decide
    alone. It never rises as pairs come in, so once it is too low the rest need not be made.

    ratios: of the pairs that are known, at most n.
    """
    rank, missing = critical_rank(n, alpha), n - len(ratios)
    if rank == 0:
        return -1.0
    walsh = _walsh(ratios) if ratios else []  # a mean with a missing pair is larger than any of these
    return math.expm1(walsh[rank - 1]) if len(walsh) >= rank else (math.inf if missing else -1.0)


@lru_cache(maxsize=4096)
def p_value(n: int, negative_ranks: int) -> float:
    """Exact one-sided p of n pairs whose negative ranks sum to that: the chance of so few, were the ratio 1."""
    signed = np.arange(1, n + 1, dtype=float)
    left = negative_ranks
    for rank in range(n, 0, -1):  # any choice of ranks with that sum has the same p
        if rank <= left:
            signed[rank - 1] = -rank
            left -= rank
    return float(wilcoxon(signed, alternative="greater", method="exact").pvalue)


@lru_cache(maxsize=256)
def critical_rank(n: int, alpha: float) -> int:
    """Which Walsh average, counted from the smallest, is the lower bound; 0 where n pairs cannot reach the level."""
    return bisect_right(range(n * (n + 1) // 2 + 1), alpha, key=lambda rank: p_value(n, rank))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted so that the chance of any false rejection stays below the level (Holm 1979, Scand. J. Statist. 6)."""
    adjusted, worst = [1.0] * len(p_values), 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, (len(p_values) - position) * p_values[index])
        adjusted[index] = min(1.0, worst)
    return tuple(adjusted)


def start_spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the log of one start, from differences of neighbours in time, which drift hardly moves.

    None for fewer than two values. Source: von Neumann 1941, Ann. Math. Statist. 12.
    """
    logs = [math.log(value) for value in values]
    squares = [(b - a) ** 2 for a, b in pairwise(logs)]
    return math.sqrt(math.fsum(squares) / (2 * len(squares))) if squares else None


def smallest_gain(baseline_starts: Sequence[float], n: int, *, min_gain: float, alpha: float) -> float | None:
    """The gain that n pairs would show in 8 confirmations of 10, were the candidate's starts as noisy as these.

    baseline_starts: the objective of the baseline's starts in order of time.
    None where there are fewer than two of them, or n pairs cannot reach the level.
    """
    spread, distance = start_spread(baseline_starts), detectable_distance(n, alpha)
    if spread is None or distance is None:
        return None
    return (1 + min_gain) * math.exp(math.sqrt(2) * spread * distance) - 1


def starts_needed(pair_spread: float, gain: float, *, min_gain: float, alpha: float) -> int | None:
    """Pairs with which a true gain is shown in 8 confirmations of 10; None where 50 do not suffice.

    pair_spread: standard deviation of the log of a paired start ratio.
    """
    room = math.log((1 + gain) / (1 + min_gain))

    def enough(n: int) -> bool:
        distance = detectable_distance(n, alpha)
        return distance is not None and pair_spread * distance <= room

    if not enough(MOST_STARTS):
        return None
    return next(n for n in range(2, MOST_STARTS + 1) if enough(n))


@lru_cache(maxsize=256)
def detectable_distance(n: int, alpha: float) -> float | None:
    """How many standard deviations of a normal log ratio the true ratio must lie above the threshold.

    By simulation with a fixed seed, within 2 %: the bound moves with the truth, so one set of draws around 0 gives the
    distance for every size of gain. None where n pairs cannot reach the level.
    """
    rank = critical_rank(n, alpha)
    if rank == 0:
        return None
    first, second = np.triu_indices(n)
    draws = min(40_000, 2_000_000 // len(first))
    logs = np.random.default_rng(n).standard_normal((draws, n))
    bounds = np.partition((logs[:, first] + logs[:, second]) / 2, rank - 1, axis=1)[:, rank - 1]
    return float(-np.quantile(bounds, 1 - POWER))
