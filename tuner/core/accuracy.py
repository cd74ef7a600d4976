"""Task accuracy: is a candidate worse than the baseline by less than a margin? Paired; knows no task and no engine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """The same questions answered by both.

    difference: share right of the candidate minus the baseline's.   lower: its one-sided lower bound.
    lost, won: questions that only the baseline, only the candidate answered rightly.
    p: of a loss as large as the margin.   mcnemar_p: exact, two-sided, of no difference at all.
    passed: p < alpha, which is lower > -margin.
    """

    questions: int
    difference: float
    lower: float
    lost: int
    won: int
    margin: float
    p: float
    mcnemar_p: float
    passed: bool


def non_inferior(
    baseline: Sequence[bool], candidate: Sequence[bool], *, margin: float, alpha: float = 0.05
) -> NonInferiority:
    """Score test of the paired difference, its variance estimated under the hypothesis that is tested, so that few
    discordant questions do not pass for certainty.

    baseline, candidate: whether each question was answered rightly, in the same order.   margin: the loss of accuracy
    that is accepted, as a share; 0.01 is one question in a hundred.

    Raises:
        ValueError: no question, not the same number of them, or a margin outside (0, 1).
    Source: Tango 1998, Statistics in Medicine 17, 891-908; McNemar 1947, Psychometrika 12.
    """
    if not baseline or len(baseline) != len(candidate):
        raise ValueError("non-inferiority needs the same questions, at least one, answered by both")
    if not 0 < margin < 1:
        raise ValueError("the margin is a share between 0 and 1")
    n = len(baseline)
    lost = sum(b and not c for b, c in zip(baseline, candidate, strict=True))
    won = sum(c and not b for b, c in zip(baseline, candidate, strict=True))
    p = _upper_tail(_score(n, lost, won, -margin))
    return NonInferiority(
        questions=n,
        difference=(won - lost) / n,
        lower=_lower_bound(n, lost, won, alpha),
        lost=lost,
        won=won,
        margin=margin,
        p=p,
        mcnemar_p=_mcnemar(lost, won),
        passed=p < alpha,
    )


def fewest_questions(margin: float, *, alpha: float = 0.05) -> int:
    """Fewer cannot show that no more than the margin is lost, even were every one answered alike."""
    n = 1
    while _upper_tail(_score(n, 0, 0, -margin)) >= alpha:
        n += 1
    return n


def _score(n: int, lost: int, won: int, difference: float) -> float:
    """z of the hypothesis that the true difference is that one, larger where the candidate did better than it."""
    share = _won_share(n, lost, won, difference)
    variance = n * (2 * share - difference - difference * difference)
    distance = won - lost - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _won_share(n: int, lost: int, won: int, difference: float) -> float:
    """The likeliest share of questions that only the candidate answers rightly, were that the true difference: with
    q = P(lost) and P(won) = q + difference, the positive root of the likelihood's derivative."""
    kept = n - lost - won
    a = 2.0 * n
    b = -((won + lost) * (1 - difference) - 2 * difference * (lost + kept))
    c = -lost * difference * (1 - difference)
    lost_share = (-b + math.sqrt(max(0.0, b * b - 4 * a * c))) / (2 * a)
    return lost_share + difference


def _lower_bound(n: int, lost: int, won: int, alpha: float) -> float:
    """The least difference that the same test does not reject; by bisection, to 1e-9."""
    low, high = -1.0, (won - lost) / n
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(_score(n, lost, won, middle)) < alpha else (low, middle)
    return low


def _upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def _mcnemar(lost: int, won: int) -> float:
    discordant, fewer = lost + won, min(lost, won)
    return min(1.0, 2 * sum(math.comb(discordant, k) for k in range(fewer + 1)) / (1 << discordant))
