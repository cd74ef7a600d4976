"""How noisy a paired start ratio was in earlier studies like this one, and how many starts that asks for. Pure reading.

Like this one: the same model, hardware, workloads, objective and evaluator, measured.
"""

import math
from dataclasses import dataclass

from tuner.core.confirm import ALPHA
from tuner.core.paired import starts_needed
from tuner.core.ports import Studies
from tuner.core.study import Study
from tuner.core.study_file import StudyFile

GAINS = (0.02, 0.03, 0.05, 0.10)  # true gains that a user may hope for
LOOKED_AT = 200  # newest studies


@dataclass(frozen=True, slots=True, kw_only=True)
class PairNoise:
    """spread: standard deviation of the log of a paired start ratio.   pairs, studies: that it was told from."""

    spread: float
    pairs: int
    studies: int


def pair_noise(studies: Studies, file: StudyFile) -> PairNoise | None:
    """From the confirmations of the newest studies; None where nothing like this was confirmed before."""
    squares, freedom, pairs, seen = 0.0, 0, 0, 0
    for study in studies.find(limit=LOOKED_AT):
        groups = _log_ratios(studies, study) if _alike(study.file, file) else []
        for logs in groups:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
            pairs += len(logs)
        seen += bool(groups)
    return PairNoise(spread=math.sqrt(squares / freedom), pairs=pairs, studies=seen) if freedom else None


def starts_by_gain(file: StudyFile, spread: float) -> dict[float, int | None]:
    """Starts a side with which 8 of 10 true gains are validated, by gain; None where 50 do not suffice. Only gains
    above the file's least one."""
    level = ALPHA / file.confirm.finalists
    least = file.confirm.min_gain
    return {gain: starts_needed(spread, gain, min_gain=least, alpha=level) for gain in GAINS if gain > least}


def _alike(a: StudyFile, b: StudyFile) -> bool:
    return (a.model, a.hardware.gpu, a.workloads, a.objective, a.evaluator) == (
        b.model,
        b.hardware.gpu,
        b.workloads,
        b.objective,
        b.evaluator,
    )


def _log_ratios(studies: Studies, study: Study) -> list[list[float]]:
    """Of each finalist that was confirmed on two rounds or more."""
    decided = [c.decision for c in studies.confirmations(study.id) if c.decision is not None]
    compared = [comparison.ratios for decision in decided for comparison in decision.comparisons]
    return [[math.log(ratio) for ratio in ratios] for ratios in compared if len(ratios) > 1]
