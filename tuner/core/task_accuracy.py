"""Task accuracy as a quality check: a candidate's right and wrong answers beside the baseline's. Pure.

The tasks generate their answers, so that they run the decode path. With several tasks each must pass at the full
level: a candidate that is worse in any of them passes all with a chance of at most 5 %.
"""

from collections.abc import Mapping, Sequence

from tuner.core.accuracy import non_inferior
from tuner.core.decision import QualityResult
from tuner.core.ports import Answers

NAME = "task_accuracy"
PREFIX = "task "  # of the workload's key, where answers are stored as a measurement


def judged(candidate_key: str, candidate: Answers, baseline: Answers, margin: float) -> QualityResult:
    """value: the largest loss of accuracy that the answers leave possible, at 95 % confidence.

    Raises:
        ValueError: the two did not answer the same questions.
    """
    if candidate.task != baseline.task or candidate.questions != baseline.questions:
        raise ValueError(
            f"the candidate and the baseline answered different questions: {candidate.task}, "
            f"{len(candidate.questions)} of them, and {baseline.task}, {len(baseline.questions)}"
        )
    found = non_inferior(baseline.right, candidate.right, margin=margin)
    return QualityResult(
        name=NAME,
        candidate_key=candidate_key,
        value=-found.lower,
        limit=margin,
        unit="of all answers lost, at 95 % confidence",
        passed=found.passed,
        at=candidate.task,
        detail=(
            f"{_share(candidate)} right, the baseline {_share(baseline)}, of {found.questions} questions; "
            f"{found.lost} lost and {found.won} won, p = {found.p:.3g} of losing {margin:.1%}, "
            f"McNemar's p = {found.mcnemar_p:.3g} of no difference"
        ),
    )


def to_samples(answers: Answers) -> dict[str, list[float]]:
    return {"question": list(map(float, answers.questions)), "right": list(map(float, answers.right))}


def from_samples(workload_key: str, samples: Mapping[str, Sequence[float]]) -> Answers:
    return Answers(
        task=workload_key.removeprefix(PREFIX),
        questions=tuple(map(int, samples["question"])),
        right=tuple(value > 0 for value in samples["right"]),
    )


def _share(answers: Answers) -> str:
    return f"{sum(answers.right) / len(answers.right):.1%}" if answers.right else "nothing"
