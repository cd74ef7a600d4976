"""The product's confirmation over many simulated studies at once, and the proof that it is the product's.

`confirm_all` counts what `tuner.core.confirm.decide` would decide, with arrays; it takes the order of the starts from
`schedule` and the rank of the bound and the p values from `tuner.core.paired`. `check_against_product` runs some of the
same studies through `decide`, start by start, and refuses any difference.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np

from benchmarks.start_noise import Array
from tuner.core.confirm import ALPHA, Terms, decide, schedule
from tuner.core.decision import Confirmation, Decision, DecisionKind, QualityResult
from tuner.core.measurement import Fingerprint, Measurement, Origin, Purpose, Start
from tuner.core.paired import best_lower_bound, critical_rank, p_value
from tuner.core.study_file import ObjectiveSection

BASELINE, FINALIST, METRIC = "baseline", "finalist", "decode_tokens_per_s_per_user"
NOISE_STARTS = 2
CHECKED = 25  # studies of a cell that also go through `decide`


@dataclass(frozen=True)
class Confirmed:
    """By study. gain: Hodges-Lehmann, log.   pair_sd: standard deviation of the log of a paired start ratio.
    rounds: how many were run before the finalist was lost, or all.   pairs: log ratios, (studies, rounds)."""

    validated: np.ndarray
    gain: Array
    lower: Array
    rounds: np.ndarray
    pairs: Array

    @property
    def pair_sd(self) -> float:
        return float(self.pairs.std())


def confirmation(starts: int, seed: int) -> Confirmation:
    return Confirmation(
        gpus=1,
        baseline_key=BASELINE,
        finalists=(FINALIST,),
        starts=starts,
        noise_starts=NOISE_STARTS,
        seed=seed,
    )


@lru_cache(maxsize=64)
def rounds_order(studies: int, starts: int) -> np.ndarray:
    """(studies, all starts): 0 for the baseline, 1 for the finalist, as scheduled with the study's number as seed."""
    return np.array(
        [[slot.candidate_key == FINALIST for slot in schedule(confirmation(starts, seed))] for seed in range(studies)],
        dtype=int,
    )


def confirm_all(levels: Array, order: np.ndarray, *, min_gain: float) -> Confirmed:
    """levels: log of the average of each start, in the order of the schedule."""
    studies = len(levels)
    rounds = levels[:, NOISE_STARTS:].reshape(studies, -1, 2)
    finalist = order[:, NOISE_STARTS:].reshape(studies, -1, 2) == 1
    pairs = rounds[finalist].reshape(studies, -1) - rounds[~finalist].reshape(studies, -1)
    n = pairs.shape[1]
    first, second = np.triu_indices(n)
    walsh = np.sort((pairs[:, first] + pairs[:, second]) / 2, axis=1)
    count, rank = walsh.shape[1], critical_rank(n, ALPHA)
    p_values = np.array([p_value(n, total) for total in range(count + 1)])
    lower = walsh[:, rank - 1]
    validated = (p_values[(walsh <= 0).sum(axis=1)] < ALPHA) & (lower > math.log1p(min_gain))
    gain = (walsh[:, (count - 1) // 2] + walsh[:, count // 2]) / 2
    return Confirmed(validated, gain, lower, _rounds_run(pairs, rank, math.log1p(min_gain)), pairs)


def _rounds_run(pairs: Array, rank: int, least: float) -> np.ndarray:
    """After each round: whether the bound can still come above `least`, as `paired.best_lower_bound` has it."""
    studies, n = pairs.shape
    ran = np.full(studies, n)
    for count in range(n - 1, 0, -1):
        first, second = np.triu_indices(count)
        if len(first) >= rank:
            means = np.partition((pairs[:, first] + pairs[:, second]) / 2, rank - 1, axis=1)
            ran[means[:, rank - 1] <= least] = count
    return ran


def check_against_product(
    draw: Callable[[Array], Array],
    min_gain: float,
    *,
    truth: float = 0.02,
    starts: int = 6,
    studies: int = CHECKED,
) -> int:
    """draw: the levels of starts with those true logs.

    Returns:
        how many studies were decided both ways.
    Raises:
        AssertionError: one came out differently.
    """
    order = rounds_order(studies, starts)
    levels = draw(np.where(order == 1, truth, 0.0))
    found = confirm_all(levels, order, min_gain=min_gain)
    for number in range(studies):
        decision = decided(confirmation(starts, number), levels[number], min_gain)
        comparison = decision.comparisons[0]
        assert (decision.kind is DecisionKind.VALIDATED) == bool(found.validated[number])
        assert math.isclose(comparison.gain, math.expm1(found.gain[number]), rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(comparison.lower, math.expm1(found.lower[number]), rel_tol=1e-9, abs_tol=1e-12)
        assert _rounds_before_lost(comparison.ratios, starts, min_gain) == found.rounds[number]
    return studies


def _rounds_before_lost(ratios: tuple[float, ...], starts: int, min_gain: float) -> int:
    """What `slots_left` does with one finalist, round by round."""
    for count in range(1, starts):
        if best_lower_bound(ratios[:count], starts, alpha=ALPHA) <= min_gain:
            return count
    return starts


def decided(confirmed: Confirmation, levels: Array, min_gain: float) -> Decision:
    """The product's decision on starts of those levels, in the order of the schedule."""
    fingerprint = Fingerprint(engine="simulated", versions={}, gpu="none", gpus=1)
    starts, measurements = [], []
    for slot, level in zip(schedule(confirmed), levels, strict=True):
        starts.append(
            Start(
                id=str(slot.index),
                trial=None,
                gpus=1,
                candidate_key=slot.candidate_key,
                purpose=slot.purpose,
                fingerprint=fingerprint,
                opened_at=datetime(2026, 1, 1, tzinfo=UTC),
                ended="stopped",
                slot=slot.index,
            )
        )
        measurements.append(
            Measurement(
                start_id=str(slot.index),
                workload_key="w",
                purpose=Purpose.CONFIRM,
                repeat=0,
                origin=Origin.MEASURED,
                metrics={METRIC: math.exp(level)},
            )
        )
    good = QualityResult(name="simulated", candidate_key=FINALIST, value=0.0, limit=0.0, unit="nats", passed=True)
    terms = Terms(objective=ObjectiveSection(maximize=METRIC), min_gain=min_gain)
    return decide(confirmed, starts, measurements, terms, quality=(good,))
