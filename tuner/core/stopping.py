"""Whether the rest of a search is worth its starts: what it can still be expected to gain, beside the noise. Pure.

What is known of the candidates is a Gaussian process: a common level, a contribution of each option's value, and a
remainder of each candidate's own. How large the last two are is not known, so every size on a grid is weighed by how
well it explains what was measured. The gain of the trials that are left is then the expected rise of the best
posterior mean, were the most promising ones measured: what noise hides, they cannot show either.

That model cannot foresee what two options only do together, so no search stops before nearly every two values that the
rest could combine were measured together once. A single candidate that nothing tells of is found by trying them all.
Source: Frazier, Powell & Dayanik 2009, INFORMS Journal on Computing 21, 599-613 (the knowledge gradient).
"""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import log_ndtr

MOST_TRIED, MOST_LEFT = 500, 2000  # candidates that the arithmetic takes; of more that are left, so many are drawn
BETWEEN_BASELINES = 2 / 3  # variance of the baseline's interpolated value, in that of one start, on average
SIZES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # of the options' effects and of the remainders, as log ratios
UNTRIED_PAIRS = 0.05  # share of the pairs of values that may be unknown: with that chance a gain of one pair is missed
LEVEL_SD = 0.3  # of the common level
BELIEF_SD = 1.0  # of the factor that the beliefs are right by, around 1

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """points: by candidate and option, which of its values.   believed: log of the ratio to the baseline that each is
    thought to have, 0 where nothing is thought.   tried: rows of `points`.   values: the log ratios measured there.
    feasible: whether each of those kept its limits.   baseline_feasible: whether the baseline did.
    left: rows not tried.   trials: how many will be.   noise: standard deviation of the log of one start."""

    points: npt.NDArray[np.int32]
    believed: Array
    tried: Rows
    values: Array
    feasible: npt.NDArray[np.bool_]
    baseline_feasible: bool
    left: Rows
    trials: int
    noise: float


def why_stop(known: Known) -> str:
    """Why the rest of a search is not worth its starts; empty where it is, or where too little is known."""
    if not known.trials or not len(known.left) or not 0 < len(known.tried) <= MOST_TRIED:
        return ""
    if not known.baseline_feasible and not known.feasible.any():  # any that keeps the limits would be a gain
        return ""
    if untried_pairs(known) > UNTRIED_PAIRS:
        return ""
    expected = math.expm1(expected_gain(known))
    if expected >= known.noise:
        return ""
    return (
        f"the search stopped with {known.trials} trials left: they are expected to gain {expected:.2%}, less than the "
        f"noise of one start, {known.noise:.2%}"
    )


def untried_pairs(known: Known) -> float:
    """Share of the pairs of values of two options, and of the single values, that only untried candidates have."""
    pairs = new = 0
    for one, other in combinations_with_replacement(known.points.T, 2):
        codes = one.astype(np.intp) * (int(other.max()) + 1) + other
        tried, left = (np.zeros(int(codes.max()) + 1, dtype=bool) for _ in range(2))
        tried[codes[known.tried]] = True
        left[codes[known.left]] = True
        pairs += int((tried | left).sum())
        new += int((left & ~tried).sum())
    return new / pairs if pairs else 0.0


def expected_gain(known: Known) -> float:
    """Of the log ratio of the best candidate, by the trials that are left."""
    left = _some(known.left)
    variance = known.noise**2 * (1 + BETWEEN_BASELINES)
    alike = _alike(known.points, known.tried, known.tried)
    across = _alike(known.points, left, known.tried)
    prior_tried, prior_left = known.believed[known.tried], known.believed[left]
    shifted = known.values - prior_tried
    level = LEVEL_SD**2 + BELIEF_SD**2 * np.outer(prior_tried, prior_tried)
    level_across = LEVEL_SD**2 + BELIEF_SD**2 * np.outer(prior_left, prior_tried)
    level_left = LEVEL_SD**2 + BELIEF_SD**2 * prior_left**2
    gains, weights = [], []
    for option_sd, own_sd in product(SIZES, SIZES):
        signal = level + option_sd**2 * alike + own_sd**2 * np.eye(len(shifted))
        factor = cho_factor(signal + variance * np.eye(len(shifted)), lower=True)
        solved = cho_solve(factor, shifted)
        weights.append(-shifted @ solved / 2 - float(np.log(np.diag(factor[0])).sum()))
        gains.append((factor, solved, signal, option_sd, own_sd))
    shares = np.exp(np.array(weights) - max(weights))
    shares /= shares.sum()
    total = 0.0
    for share, (factor, solved, signal, option_sd, own_sd) in zip(shares, gains, strict=True):
        if share < 0.002:
            continue
        kept = (prior_tried + signal @ solved)[known.feasible]
        best = float(max([*kept, 0.0] if known.baseline_feasible else kept))
        covariance = level_across + option_sd**2 * across
        mean = prior_left + covariance @ solved
        explained = (solve_triangular(factor[0], covariance.T, lower=True) ** 2).sum(axis=0)
        unknown = np.maximum(level_left + option_sd**2 + own_sd**2 - explained, 0.0)
        told_sd = unknown / np.sqrt(unknown + variance)
        total += float(share) * _rise(mean, told_sd, best, known.trials)
    return total


def _rise(mean: Array, sd: Array, best: float, trials: int) -> float:
    """Expected rise above `best` of the largest of the most promising ones, as if independent of one another."""
    top = np.argsort(-(mean + sd))[:trials]
    mean, sd = mean[top], np.maximum(sd[top], 1e-9)
    highest = float((mean + 6 * sd).max())
    if highest <= best:
        return 0.0
    at = np.linspace(best, highest, 200)
    none_above = np.exp(log_ndtr((at[:, None] - mean) / sd).sum(axis=1))
    return float(np.trapezoid(1 - none_above, at))


def _alike(points: npt.NDArray[np.int32], a: Rows, b: Rows) -> Array:
    """Share of the options in which two candidates agree."""
    found: Array = np.zeros((len(a), len(b)))
    for column in points.T:
        found = found + (column[a][:, None] == column[b][None, :]) / points.shape[1]
    return found


def _some(rows: Rows) -> Rows:
    if len(rows) <= MOST_LEFT:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, MOST_LEFT, replace=False))
