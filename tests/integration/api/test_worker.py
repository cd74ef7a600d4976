"""The worker: what it does with studies that end well, that cannot run, that meet a bug, or that it loses."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.nouns import a_start
from tests.fakes import FakeClock, MemoryStudies
from tests.integration.api.conftest import SMALL
from tuner.app.errors import WrongInputError
from tuner.app.worker import MakesParts, Worker
from tuner.core.loop import Parts, Progress
from tuner.core.measurement import Process
from tuner.core.ports import Studies
from tuner.core.study import LeaseLostError, Study, StudyState
from tuner.core.study_file import StudyFile, parse
from tuner.core.use_cases import open_studies
from tuner.predict.evaluator import PredictedEvaluator


class AwayError(Exception):
    """The database cannot be reached."""


def predicted(file: StudyFile, studies: Studies, progress: Progress) -> Parts:
    return Parts(
        studies=studies, evaluator=PredictedEvaluator(file), clock=FakeClock(), reap=nothing_alive, progress=progress
    )


def nothing_alive(_process: Process) -> bool:
    return False


def failing(error: Exception, times: int = 1) -> MakesParts:
    """Parts that cannot be made the first so many times."""
    left = iter(range(times))

    @contextlib.contextmanager
    def parts(file: StudyFile, studies: Studies, progress: Progress) -> Iterator[Parts]:
        if next(left, None) is not None:
            raise error
        yield predicted(file, studies, progress)

    return parts


def opened(studies: Studies, name: str) -> Study:
    return open_studies(parse({**SMALL, "name": name}), studies, FakeClock())[0]


@pytest.fixture
def studies() -> MemoryStudies:
    return MemoryStudies(FakeClock())


def run(studies: Studies, parts: MakesParts, until: Callable[[], bool]) -> None:
    """In this thread, until that is true after a study or a pause."""
    stop = _When(until)
    Worker(owner="w", studies=studies, parts=parts, unavailable=(AwayError,), stop=stop).run()


class _When(threading.Event):
    def __init__(self, true: Callable[[], bool]) -> None:
        super().__init__()
        self._true = true
        self._looked = 0

    def is_set(self) -> bool:
        self._looked += 1
        assert self._looked < 50
        return self._true()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def ended(studies: Studies, *which: Study) -> Callable[[], bool]:
    return lambda: all(studies.get(study.id).state.ended for study in which)


def test_studies_are_run_oldest_first_to_their_end(studies: MemoryStudies) -> None:
    first, second = opened(studies, "first"), opened(studies, "second")
    run(studies, failing(ValueError(), 0), ended(studies, first, second))
    assert [studies.get(s.id).state for s in (first, second)] == [StudyState.DONE] * 2
    assert studies.claim("other", ttl_s=20) is None


@pytest.mark.parametrize("error", [WrongInputError("no interpreter"), TypeError("a bug")])
def test_a_study_that_cannot_run_fails_with_its_reason_and_the_next_one_runs(
    studies: MemoryStudies, error: Exception
) -> None:
    bad, good = opened(studies, "bad"), opened(studies, "good")
    run(studies, failing(error), ended(studies, bad, good))
    states = {studies.get(s.id).state for s in (bad, good)}
    assert states == {StudyState.FAILED, StudyState.DONE}
    failed = next(s for s in studies.find() if s.state is StudyState.FAILED)
    assert str(error) in failed.reason
    assert studies.events(failed.id)[-1].kind == "study_failed"


def test_a_database_that_was_away_costs_a_study_nothing(studies: MemoryStudies) -> None:
    study = opened(studies, "study")
    run(studies, failing(AwayError("restarting")), ended(studies, study))
    assert studies.get(study.id).state is StudyState.DONE


def test_a_study_that_was_lost_to_another_worker_is_left_alone(studies: MemoryStudies) -> None:
    study = opened(studies, "study")
    lost: list[Any] = []

    @contextlib.contextmanager
    def parts(file: StudyFile, studies: Studies, progress: Progress) -> Iterator[Parts]:
        lost.append(file)
        raise LeaseLostError("somebody else has it")
        yield

    run(studies, parts, lambda: bool(lost))
    assert studies.get(study.id).state is StudyState.QUEUED


def test_a_study_whose_worker_died_before_it_could_cancel_is_cancelled_by_the_next(studies: MemoryStudies) -> None:
    study = opened(studies, "study")
    lease = studies.claim("dead", ttl_s=-1, study_id=study.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    studies.request_cancel(study.id)
    run(studies, failing(ValueError(), 0), ended(studies, study))
    assert studies.get(study.id).state is StudyState.CANCELLED
    kinds = [event.kind for event in studies.events(study.id)]
    assert kinds == ["engines_gone", "study_cancelled"]
    assert studies.trials(study.id) == []


def test_engines_left_on_another_host_are_not_said_to_be_gone(studies: MemoryStudies) -> None:
    """Their worker may only be paused; nobody here can look, so the study does not end as cancelled."""
    study = opened(studies, "study")
    lease = studies.claim("paused", ttl_s=-1, study_id=study.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    there = a_start(None, process=Process(pid=7, started_s=1.0, host="elsewhere"))
    studies.open_start(lease, there)
    studies.request_cancel(study.id)
    run(studies, failing(ValueError(), 0), ended(studies, study))
    assert studies.get(study.id).state is StudyState.FAILED
    assert "only elsewhere can tell whether engines left there live" in studies.get(study.id).reason
    assert "engines_gone" not in [event.kind for event in studies.events(study.id)]
