"""What earlier studies say of the noise of starts, and what that asks for."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.confirmations import BASELINE, FIRST, SECOND, from_ratios
from tests.fakes import FakeClock, MemoryStudies
from tests.unit.core.test_loop import study_file
from tuner.core.noise import pair_noise, starts_by_gain
from tuner.core.starts import LEASE_S
from tuner.core.study import Study
from tuner.core.study_file import StudyFile

RATIOS = np.exp(np.random.default_rng(4).normal(0.03, 0.02, (2, 12)))


def with_decision(studies: MemoryStudies, name: str, file: StudyFile, *finalists: list[float]) -> None:
    studies.create(
        Study(id=name, name=name, file=file, file_key=file.key, created_at=datetime(2026, 12, 1, tzinfo=UTC))
    )
    lease = studies.claim("test", ttl_s=LEASE_S, study_id=name)
    assert lease is not None
    found = from_ratios(dict(zip((FIRST, SECOND), finalists, strict=False)))
    assert found.confirmation.baseline_key == BASELINE
    studies.save_confirmation(lease, replace(found.confirmation, decision=found.decide()))


@pytest.fixture
def studies() -> MemoryStudies:
    return MemoryStudies(FakeClock())


def test_nothing_is_known_before_a_study_has_confirmed(studies: MemoryStudies) -> None:
    assert pair_noise(studies, study_file()) is None


def test_noise_is_pooled_within_finalists_so_that_their_gains_are_no_noise(studies: MemoryStudies) -> None:
    shifted = [float(value) * 1.3 for value in RATIOS[1]]
    with_decision(studies, "a", study_file(), list(RATIOS[0]), shifted)
    known = pair_noise(studies, study_file())
    assert known is not None
    expected = math.sqrt((np.log(RATIOS).var(axis=1) * 12).sum() / 22)
    assert known.spread == pytest.approx(expected)
    assert (known.pairs, known.studies) == (24, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "another"},
        {"hardware": {"gpu": "H200"}},
        {"workload": {"input_tokens": 8, "output_tokens": 9}},
        {"objective": {"minimize": "ttft_p99_ms"}},
        {"evaluator": "predicted"},
    ],
)
def test_a_study_of_something_else_says_nothing(studies: MemoryStudies, other: dict[str, object]) -> None:
    with_decision(studies, "a", study_file(**other), list(RATIOS[0]))
    assert pair_noise(studies, study_file()) is None


def test_another_budget_or_space_is_still_the_same_noise(studies: MemoryStudies) -> None:
    with_decision(studies, "a", study_file(budget={"trials": 3}, confirm={"starts": 9}), list(RATIOS[0]))
    assert pair_noise(studies, study_file()) is not None


def test_the_starts_needed_follow_the_files_least_gain_and_finalists() -> None:
    plain = starts_by_gain(study_file(), 0.01)
    assert list(plain) == [0.02, 0.03, 0.05, 0.10]
    assert plain[0.02] == 9
    assert starts_by_gain(study_file(confirm={"min_gain": 0.02}), 0.01).keys() == {0.03, 0.05, 0.10}
    three = starts_by_gain(study_file(confirm={"finalists": 3}), 0.01)
    assert all((three[gain] or 51) >= (plain[gain] or 51) for gain in plain)
    assert starts_by_gain(study_file(), 0.05)[0.02] is None
