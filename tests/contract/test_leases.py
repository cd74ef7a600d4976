"""The contract of leases: one holder at a time, and no write from who has lost it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest

from tests.contract.conftest import Place
from tests.contract.nouns import a_confirmation, a_measurement, a_start, a_study, a_trial, an_ended_start, opened
from tests.fakes import FakeClock
from tuner.core.measurement import FailureKind
from tuner.core.ports import Studies
from tuner.core.study import Lease, LeaseLostError, StudyState
from tuner.core.trial import Failed

T = TypeVar("T")

FAILED = Failed(kind=FailureKind.CRASHED, sentence="it crashed")


def test_the_oldest_study_that_nobody_holds_is_claimed(studies: Studies) -> None:
    young, old, ended = a_study(), a_study(age_s=60), a_study(age_s=90)
    for study in (young, old, ended):
        studies.create(study)
    studies.request_cancel(ended.id)
    claimed = [studies.claim(f"w{n}", ttl_s=20) for n in range(3)]
    assert [lease and lease.study_id for lease in claimed] == [old.id, young.id, None]


def test_a_lease_is_held_until_it_runs_out(studies: Studies, clock: FakeClock) -> None:
    lease = opened(studies, "first")
    assert lease.expires_at == clock.now() + timedelta(seconds=20)
    clock.sleep(19.9)
    assert studies.claim("second", ttl_s=20, study_id=lease.study_id) is None
    assert studies.claim("first", ttl_s=20, study_id=lease.study_id) is None
    clock.sleep(0.1)
    taken = studies.claim("second", ttl_s=20, study_id=lease.study_id)
    assert taken is not None
    assert taken.token > lease.token
    assert taken.owner == "second"


def test_a_heartbeat_holds_the_lease_longer(studies: Studies, clock: FakeClock) -> None:
    lease = opened(studies)
    clock.sleep(15)
    renewed = studies.heartbeat(lease, ttl_s=20)
    assert (renewed.token, renewed.expires_at) == (lease.token, clock.now() + timedelta(seconds=20))
    clock.sleep(15)
    assert studies.claim("other", ttl_s=20) is None
    studies.set_state(lease, StudyState.RUNNING)  # the older copy of the same lease is as good


def test_a_worker_that_was_slow_and_not_replaced_goes_on(studies: Studies, clock: FakeClock) -> None:
    lease = opened(studies)
    clock.sleep(3600)
    studies.add_trial(lease, a_trial(0))
    assert studies.heartbeat(lease, ttl_s=20).token == lease.token
    assert studies.claim("other", ttl_s=20) is None


def test_a_released_study_is_free_and_its_old_lease_worthless(studies: Studies) -> None:
    lease = opened(studies, "same")
    studies.release(lease)
    with pytest.raises(LeaseLostError):
        studies.set_state(lease, StudyState.RUNNING)
    again = studies.claim("same", ttl_s=20, study_id=lease.study_id)
    assert again is not None
    assert again.token > lease.token
    with pytest.raises(LeaseLostError, match="any more"):
        studies.set_state(lease, StudyState.RUNNING)


def test_a_study_that_ended_is_not_claimed(studies: Studies) -> None:
    lease = opened(studies)
    studies.set_state(lease, StudyState.FAILED)
    studies.release(lease)
    assert studies.claim("w", ttl_s=20) is None
    assert studies.claim("w", ttl_s=20, study_id=lease.study_id) is None
    assert studies.claim("w", ttl_s=20, study_id="nobody") is None


_START = a_start(0)
_LATE: dict[str, Callable[[Studies, Lease], object]] = {
    "heartbeat": lambda studies, lease: studies.heartbeat(lease, ttl_s=20),
    "release": lambda studies, lease: studies.release(lease),
    "set_state": lambda studies, lease: studies.set_state(lease, StudyState.CONFIRMING),
    "add_trial": lambda studies, lease: studies.add_trial(lease, a_trial(1)),
    "retry_trial": lambda studies, lease: studies.retry_trial(lease, 0),
    "finish_trial": lambda studies, lease: studies.finish_trial(lease, 0, FAILED),
    "open_start": lambda studies, lease: studies.open_start(lease, a_start(0)),
    "update_start": lambda studies, lease: studies.update_start(lease, an_ended_start(_START)),
    "add_measurement": lambda studies, lease: studies.add_measurement(lease, a_measurement(_START.id, repeat=1)),
    "save_confirmation": lambda studies, lease: studies.save_confirmation(lease, a_confirmation(1, decided=True)),
}


def test_every_write_that_takes_a_lease_is_tried_late() -> None:
    takes_lease = {name for name, method in vars(Studies).items() if "lease" in getattr(method, "__annotations__", {})}
    assert takes_lease == set(_LATE)


@pytest.mark.parametrize("write", _LATE)
@pytest.mark.parametrize("owner", ["second", "first"])
def test_a_late_write_changes_nothing(studies: Studies, clock: FakeClock, write: str, owner: str) -> None:
    """Also where the one who took over goes by the same name: a process number may come again."""
    late = opened(studies, "first")
    study_id = late.study_id
    studies.set_state(late, StudyState.RUNNING)
    studies.add_trial(late, a_trial(0))
    studies.open_start(late, _START)
    studies.add_measurement(late, a_measurement(_START.id))
    clock.sleep(21)
    holder = studies.claim(owner, ttl_s=20, study_id=study_id)
    assert holder is not None
    before = everything(studies, study_id)
    with pytest.raises(LeaseLostError, match="first"):
        _LATE[write](studies, late)
    assert everything(studies, study_id) == before
    assert studies.claim("third", ttl_s=20, study_id=study_id) is None
    studies.finish_trial(holder, 0, FAILED)


def everything(studies: Studies, study_id: str) -> tuple[object, ...]:
    return (
        studies.get(study_id),
        studies.trials(study_id),
        studies.starts(study_id),
        studies.measurements(study_id),
        studies.confirmations(study_id),
    )


def at_once(work: Callable[[int], T], threads: int = 8) -> list[T]:
    """What `work` gave in each thread; none begins before all are there."""
    barrier = threading.Barrier(threads)

    def one(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


def test_of_eight_that_claim_one_study_one_gets_it(place: Place) -> None:
    workers = [place.connect() for _ in range(8)]
    study = a_study()
    workers[0].create(study)
    for _ in range(3):
        place.clock.sleep(21)
        leases = at_once(lambda n: workers[n].claim(f"w{n}", ttl_s=20, study_id=study.id))
        assert sum(lease is not None for lease in leases) == 1


def test_eight_that_claim_any_get_one_each(place: Place) -> None:
    workers = [place.connect() for _ in range(8)]
    for _ in range(16):
        workers[0].create(a_study())
    leases = at_once(lambda n: [workers[n].claim(f"w{n}", ttl_s=20) for _ in range(2)])
    flat = [lease for pair in leases for lease in pair if lease is not None]
    # Two that look at the same moment may both be told of nothing; a third look finds what is left.
    while (lease := workers[0].claim("last", ttl_s=20)) is not None:
        flat.append(lease)
    assert len({lease.study_id for lease in flat}) == len(flat) == 16


def test_eight_writers_and_readers_lose_nothing_and_wait_for_nobody(place: Place) -> None:
    """Each writes a study of its own and events of a shared one; while they do, each reads what the others wrote."""
    workers = [place.connect() for _ in range(8)]
    shared = a_study()
    workers[0].create(shared)

    def work(number: int) -> list[int]:
        studies = workers[number]
        lease = opened(studies, f"w{number}")
        seen: list[int] = []
        for trial in range(4):
            studies.add_trial(lease, a_trial(trial))
            start = a_start(trial)
            studies.open_start(lease, start)
            studies.add_measurement(lease, a_measurement(start.id))
            studies.finish_trial(lease, trial, FAILED)
            studies.add_event(shared.id, "trial_finished", {"worker": number, "trial": trial})
            studies.find()
            seen += [event.id for event in studies.events(shared.id, after=seen[-1] if seen else 0)]
        assert len(studies.trials(lease.study_id)) == len(studies.measurements(lease.study_id)) == 4
        return seen

    followed = at_once(work)
    ids = [event.id for event in workers[0].events(shared.id)]
    assert len(ids) == 32
    for seen in followed:
        assert seen == ids[: len(seen)]  # who asks for the events after one has missed none before it
