"""Lower bounds that the product does not use, on the same simulated pairs: what they would gain, and what they would
cost. Exact tests by changed signs cannot do better than the product's (docs/decisions/confirmation.md); these two are
no exact tests.
"""

import math

import numpy as np
from scipy.stats import t as student

from benchmarks.start_noise import Array
from tuner.core.confirm import ALPHA
from tuner.core.paired import critical_rank, p_value


def shares_above(pairs: Array, min_gain: float) -> dict[str, float]:
    """Share of studies whose bound exceeds the least gain asked for.   pairs: log ratios, (studies, rounds)."""
    n, least = pairs.shape[1], math.log1p(min_gain)
    first, second = np.triu_indices(n)
    rank = critical_rank(n, ALPHA)
    low, high = p_value(n, rank - 1), p_value(n, rank)  # the levels of the bound and of the next Walsh average
    weight = (ALPHA - low) / (high - low)
    walsh = np.partition((pairs[:, first] + pairs[:, second]) / 2, (rank - 1, rank), axis=1)
    between = (1 - weight) * walsh[:, rank - 1] + weight * walsh[:, rank]
    half = student.ppf(1 - ALPHA, n - 1) * pairs.std(axis=1, ddof=1) / math.sqrt(n)
    return {
        "interpolated to 5 %": float(np.mean(between > least)),
        "Student's t": float(np.mean(pairs.mean(axis=1) - half > least)),
    }
