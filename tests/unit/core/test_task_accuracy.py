"""Answers of two sides side by side, stored and read again."""

import pytest

from tests.confirmations import FIRST
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import Answers
from tuner.core.quality_run import evaluated
from tuner.core.task_accuracy import PREFIX, from_samples, judged, to_samples
from tuner.core.trial import Failed

ALL = 2**48 - 1


def answers(right: int, of: int = 300, *, task: str = "sums", first: int = ALL - 1000) -> Answers:
    return Answers(task=task, questions=tuple(range(first, first + of)), right=tuple(n < right for n in range(of)))


def test_answers_survive_storage_with_the_largest_question_numbers() -> None:
    told = answers(200, task="gsm8k: exact_match, strict-match")
    assert from_samples(PREFIX + told.task, to_samples(told)) == told


def test_the_value_is_the_largest_loss_that_remains_possible() -> None:
    found = judged(FIRST, answers(280), answers(281), 0.02)
    assert found.passed == (found.value < found.limit)
    assert found.value > 1 / 300


@pytest.mark.parametrize("other", [answers(280, of=299), answers(280, task="words"), answers(280, first=7)])
def test_other_questions_are_not_paired(other: Answers) -> None:
    with pytest.raises(ValueError, match="different questions"):
        judged(FIRST, other, answers(280), 0.02)


def test_a_side_that_was_not_asked_fails_the_check() -> None:
    told = answers(280)
    run = Measurement(
        start_id="a",
        workload_key=PREFIX + told.task,
        purpose=Purpose.QUALITY,
        repeat=0,
        origin=Origin.MEASURED,
        metrics={},
        samples=to_samples(told),
    )
    found = evaluated(FIRST, ["a", "b", "c"], [run], 0.02)
    assert isinstance(found, Failed)
    assert found.kind is FailureKind.INCOMPLETE
