"""The contract of the port `Studies`: what is written is what is read, and what may not be written is refused."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from search_spaces.rule import Reason
from tests.contract import nouns
from tests.contract.nouns import a_confirmation, a_measurement, a_start, a_study, a_trial, an_ended_start, opened
from tests.fakes import FakeClock
from tuner.core.measurement import FailureKind, Purpose
from tuner.core.ports import Studies
from tuner.core.study import IllegalStateError, LeaseLostError, Study, StudyState, UnknownStudyError
from tuner.core.trial import Failed, Measured, Rejected

REJECTED = Rejected(reasons=(Reason(rule="fits", sentence="needs 3 GiB more", source="arithmetic"),))
FAILED = Failed(kind=FailureKind.OUT_OF_MEMORY, sentence="CUDA out of memory", evidence="line\n\0\x1b[31m\ud800 最後")


@pytest.mark.parametrize("document", [nouns.SMALL, nouns.EVERY_SERVING_SECTION, nouns.EVERY_KERNEL_SECTION])
def test_a_study_is_read_as_it_was_written(studies: Studies, document: dict[str, Any]) -> None:
    study = a_study(document, group="g", owner="Ада <ada@example.org>", reason="")
    studies.create(study)
    assert studies.get(study.id) == study
    assert studies.get(study.id).file.key == study.file_key


@pytest.mark.parametrize("name", ["a/b\\c", 'it\'s "quoted"', "<script>alert(1)</script>", "汉" * 300, "100%_x", "🚀"])
def test_any_name_is_kept_and_found(studies: Studies, name: str) -> None:
    named, other = a_study(name=name), a_study(name="plain")
    studies.create(named)
    studies.create(other)
    assert studies.get(named.id).name == name
    assert [study.id for study in studies.find(text=name)] == [named.id]


def test_an_unknown_study_is_said_by_its_name(studies: Studies) -> None:
    with pytest.raises(UnknownStudyError, match="'nobody'"):
        studies.get("nobody")
    with pytest.raises(UnknownStudyError, match="'nobody'"):
        studies.request_cancel("nobody")
    with pytest.raises(UnknownStudyError, match="'nobody'"):
        studies.add_event("nobody", "x", {})
    with pytest.raises(UnknownStudyError, match="'nobody'"):
        studies.find(before="nobody")
    assert studies.trials("nobody") == []


def test_an_id_is_taken_once(studies: Studies) -> None:
    study = a_study()
    studies.create(study)
    with pytest.raises(ValueError, match=study.id):
        studies.create(replace(study, name="another"))
    assert studies.get(study.id) == study


def test_pages_show_every_study_once_newest_first(studies: Studies) -> None:
    written = [a_study(age_s=n // 3) for n in range(10)]  # three of each age
    for study in written[::2] + written[1::2]:
        studies.create(study)
    seen: list[Study] = []
    before: str | None = None
    while page := studies.find(limit=3, before=before):
        assert len(page) <= 3
        seen += page
        before = page[-1].id
    assert sorted(seen, key=lambda s: (s.created_at, s.id), reverse=True) == seen
    assert {study.id for study in seen} == {study.id for study in written}
    assert len(seen) == len(written)


def test_find_narrows_by_state_and_by_a_part_of_the_name_or_owner(studies: Studies) -> None:
    ours, theirs = a_study(name="Kimi decode", owner="Alice"), a_study(name="kimi prefill")
    for study in (ours, theirs):
        studies.create(study)
    lease = studies.claim("w", ttl_s=20, study_id=ours.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    assert {study.id for study in studies.find(text="KIMI")} == {ours.id, theirs.id}
    assert [study.id for study in studies.find(state=StudyState.RUNNING, text="kimi")] == [ours.id]
    assert studies.find(text="%") == []
    assert [study.id for study in studies.find(text="alic")] == [ours.id]


def test_the_newest_unfinished_study_of_a_file_is_found_until_it_ends(studies: Studies) -> None:
    old, new = a_study(age_s=5), a_study()
    assert studies.unfinished(new.file_key) is None
    for study in (new, old, a_study(nouns.EVERY_KERNEL_SECTION)):
        studies.create(study)
    assert studies.unfinished(new.file_key) == new
    studies.request_cancel(new.id)
    assert studies.unfinished(new.file_key) == old


def test_a_group_is_its_studies_in_order_of_creation(studies: Studies) -> None:
    first, second = a_study(group="g", age_s=9), a_study(group="g", age_s=3)
    for study in (second, a_study(group="h"), a_study(), first):
        studies.create(study)
    assert studies.group("g") == [first, second]
    assert studies.group("none") == []


def test_a_state_follows_only_where_the_life_of_a_study_allows_it(studies: Studies) -> None:
    lease = opened(studies)
    with pytest.raises(IllegalStateError, match="queued and cannot become done"):
        studies.set_state(lease, StudyState.DONE)
    assert studies.get(lease.study_id).state is StudyState.QUEUED
    for state in (StudyState.RUNNING, StudyState.RUNNING, StudyState.CONFIRMING, StudyState.FAILED):
        studies.set_state(lease, state, reason=f"now {state}")
        assert (studies.get(lease.study_id).state, studies.get(lease.study_id).reason) == (state, f"now {state}")
    for state in StudyState:
        with pytest.raises(IllegalStateError, match=f"failed and cannot become {state}"):
            studies.set_state(lease, state)


def test_trials_are_read_in_order_of_number_whatever_became_of_them(studies: Studies) -> None:
    lease = opened(studies)
    written = [a_trial(0, baseline=True), a_trial(1, REJECTED), a_trial(2), a_trial(3)]
    for trial in (written[2], written[0], written[3], written[1]):
        studies.add_trial(lease, trial)
    studies.finish_trial(lease, 2, FAILED)
    expected = [written[0], written[1], replace(written[2], outcome=FAILED), written[3]]
    assert studies.trials(lease.study_id) == expected
    assert studies.trials(lease.study_id, after=0, limit=2) == expected[1:3]
    assert studies.trials(lease.study_id, after=3) == []


def test_a_candidate_is_tried_once_in_a_study_and_again_in_another(studies: Studies) -> None:
    lease, other = opened(studies), opened(studies)
    studies.add_trial(lease, a_trial(0))
    with pytest.raises(ValueError, match="already"):
        studies.add_trial(lease, replace(a_trial(0), number=1))
    with pytest.raises(ValueError, match="already"):
        studies.add_trial(lease, replace(a_trial(1), number=0))
    studies.add_trial(other, a_trial(0))
    assert [len(studies.trials(one.study_id)) for one in (lease, other)] == [1, 1]


def test_an_outcome_is_written_once_and_a_retry_clears_it(studies: Studies) -> None:
    lease = opened(studies)
    studies.add_trial(lease, a_trial(0))
    studies.finish_trial(lease, 0, FAILED)
    with pytest.raises(ValueError, match="outcome"):
        studies.finish_trial(lease, 0, Measured(measurements=()))
    studies.retry_trial(lease, 0)
    assert studies.trials(lease.study_id) == [replace(a_trial(0), attempts=2)]
    studies.finish_trial(lease, 0, REJECTED)
    assert studies.trials(lease.study_id) == [replace(a_trial(0), attempts=2, outcome=REJECTED)]


def test_a_trial_that_is_not_there_is_neither_finished_nor_retried(studies: Studies) -> None:
    lease = opened(studies)
    with pytest.raises(ValueError, match="no trial 7"):
        studies.finish_trial(lease, 7, FAILED)
    with pytest.raises(ValueError, match="no trial 7"):
        studies.retry_trial(lease, 7)


def test_a_measured_outcome_holds_the_search_runs_of_all_its_starts_in_order(studies: Studies) -> None:
    lease = opened(studies)
    for number in range(3):
        studies.add_trial(lease, a_trial(number))
    crashed, again, drift, other = a_start(1), a_start(1), a_start(1, purpose=Purpose.DRIFT), a_start(2)
    for start in (crashed, again, drift, other):
        studies.open_start(lease, start)
    runs = [a_measurement(crashed.id), a_measurement(again.id, repeat=1), a_measurement(again.id, repeat=2)]
    for run in (runs[0], a_measurement(drift.id, purpose=Purpose.DRIFT), runs[1], a_measurement(other.id), runs[2]):
        studies.add_measurement(lease, run)
    studies.finish_trial(lease, 1, Measured(measurements=tuple(runs)))
    assert studies.trials(lease.study_id) == [
        a_trial(0),
        a_trial(1, Measured(measurements=tuple(runs))),
        a_trial(2),
    ]


def test_a_start_is_read_as_it_was_written_and_as_it_ended(studies: Studies) -> None:
    lease = opened(studies)
    studies.add_trial(lease, a_trial(0))
    first, second = a_start(0), a_start(None, purpose=Purpose.CONFIRM)
    studies.open_start(lease, first)
    studies.open_start(lease, second)
    assert studies.starts(lease.study_id) == [first, second]
    studies.update_start(lease, an_ended_start(first))
    assert studies.starts(lease.study_id) == [an_ended_start(first), second]


def test_a_start_belongs_to_one_study_and_to_a_trial_of_it(studies: Studies) -> None:
    lease, other = opened(studies), opened(studies)
    studies.add_trial(lease, a_trial(0))
    start = a_start(0)
    studies.open_start(lease, start)
    with pytest.raises(ValueError, match=start.id):
        studies.open_start(lease, start)
    with pytest.raises(ValueError, match="no trial 0"):
        studies.open_start(other, a_start(0))
    with pytest.raises(ValueError, match="no start"):
        studies.update_start(other, start)
    with pytest.raises(ValueError, match="no start"):
        studies.add_measurement(other, a_measurement(start.id))
    assert studies.starts(other.study_id) == []


def test_measurements_are_read_in_order_and_narrowed(studies: Studies) -> None:
    lease = opened(studies)
    for number in range(2):
        studies.add_trial(lease, a_trial(number))
    zero, one, free = a_start(0), a_start(1), a_start(None, purpose=Purpose.NOISE)
    for start in (zero, one, free):
        studies.open_start(lease, start)
    runs = [
        a_measurement(one.id),
        a_measurement(zero.id),
        a_measurement(free.id, purpose=Purpose.NOISE),
        a_measurement(zero.id, workload_key="c8-ctx1"),
        a_measurement(zero.id, purpose=Purpose.REPEAT),
    ]
    for run in runs:
        studies.add_measurement(lease, run)
    study_id = lease.study_id
    assert studies.measurements(study_id) == runs
    assert studies.measurements(study_id, purpose=Purpose.NOISE) == [runs[2]]
    assert studies.measurements(study_id, start_id=zero.id) == [runs[1], runs[3], runs[4]]
    assert studies.measurements(study_id, trial=0, purpose=Purpose.SEARCH) == [runs[1], runs[3]]
    assert studies.measurements(study_id, trial=1, start_id=zero.id) == []
    assert studies.measurements("nobody") == []


def test_a_run_is_written_once(studies: Studies) -> None:
    lease = opened(studies)
    studies.add_trial(lease, a_trial(0))
    start = a_start(0)
    studies.open_start(lease, start)
    studies.add_measurement(lease, a_measurement(start.id))
    with pytest.raises(ValueError, match="written already"):
        studies.add_measurement(lease, a_measurement(start.id, metrics={"ttft_p99_ms": 1.0}))
    assert studies.measurements(lease.study_id) == [a_measurement(start.id)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sample_that_is_no_number_is_refused(studies: Studies, value: float) -> None:
    lease = opened(studies)
    studies.add_trial(lease, a_trial(0))
    start = a_start(0)
    studies.open_start(lease, start)
    with pytest.raises(ValueError, match="ttft_ms"):
        studies.add_measurement(lease, a_measurement(start.id, samples={"ttft_ms": (1.0, value)}))
    assert studies.measurements(lease.study_id) == []


def test_an_event_holds_strict_json_only(studies: Studies) -> None:
    lease = opened(studies)
    for data in ({"ratio": math.nan}, {"what": {1, 2}}):
        with pytest.raises(ValueError, match="not strict JSON"):
            studies.add_event(lease.study_id, "trial_finished", data)
    assert studies.events(lease.study_id) == []


def test_the_confirmation_of_a_gpu_count_is_replaced(studies: Studies) -> None:
    lease, other = opened(studies), opened(studies)
    studies.save_confirmation(lease, a_confirmation(16, decided=False))
    studies.save_confirmation(lease, a_confirmation(8, decided=False))
    studies.save_confirmation(other, a_confirmation(8, decided=False))
    studies.save_confirmation(lease, a_confirmation(16, decided=True))
    assert studies.confirmations(lease.study_id) == [
        a_confirmation(8, decided=False),
        a_confirmation(16, decided=True),
    ]
    assert studies.confirmations(other.study_id) == [a_confirmation(8, decided=False)]


def test_events_grow_and_are_read_from_where_one_left_off(studies: Studies, clock: FakeClock) -> None:
    lease, other = opened(studies), opened(studies)
    for number in range(5):
        studies.add_event(lease.study_id, "trial_finished", {"trial": number, "text": "最\n"})
        studies.add_event(other.study_id, "noise", {})
        clock.sleep(1)
    events = studies.events(lease.study_id)
    ids = [event.id for event in events]
    assert [event.data["trial"] for event in events] == [0, 1, 2, 3, 4]
    assert all(earlier < later for earlier, later in itertools.pairwise(ids))
    assert (events[1].at - events[0].at).total_seconds() == 1
    assert events[0].at.utcoffset() is not None
    assert studies.events(lease.study_id, after=ids[1], limit=2) == events[2:4]
    assert studies.events(lease.study_id, after=ids[-1]) == []


def test_a_queued_study_that_nobody_holds_is_cancelled_at_once(studies: Studies) -> None:
    study = a_study()
    studies.create(study)
    studies.request_cancel(study.id)
    studies.request_cancel(study.id)
    found = studies.get(study.id)
    assert (found.state, found.cancel_requested) == (StudyState.CANCELLED, True)
    assert studies.claim("w", ttl_s=20) is None


def test_a_study_that_is_held_is_cancelled_by_its_holder(studies: Studies) -> None:
    lease = opened(studies)
    studies.request_cancel(lease.study_id)
    assert studies.get(lease.study_id).state is StudyState.QUEUED
    assert studies.get(lease.study_id).cancel_requested
    studies.set_state(lease, StudyState.CANCELLED, "on request")
    assert studies.get(lease.study_id).state is StudyState.CANCELLED


def test_cancelling_takes_the_study_from_a_worker_that_died_before_it_began(studies: Studies, clock: FakeClock) -> None:
    lease = opened(studies)
    clock.sleep(21)
    studies.request_cancel(lease.study_id)
    assert studies.get(lease.study_id).state is StudyState.CANCELLED
    with pytest.raises(LeaseLostError):
        studies.add_trial(lease, a_trial(0))


def test_what_has_ended_cannot_be_cancelled(studies: Studies) -> None:
    lease = opened(studies)
    studies.set_state(lease, StudyState.RUNNING)
    studies.set_state(lease, StudyState.DONE)
    with pytest.raises(IllegalStateError, match="done and cannot be cancelled"):
        studies.request_cancel(lease.study_id)
    assert not studies.get(lease.study_id).cancel_requested
