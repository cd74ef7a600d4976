"""The service under faults, as real processes: few of each here; `python -m scripts.faults` injects many."""

import random
from collections.abc import Callable, Iterator

import pytest

from scripts.faults.losses import Outcome
from scripts.faults.on_api import crowd, kill_api
from scripts.faults.on_workers import fill_disk, kill_holders, kill_workers, pause_worker, restart_database
from scripts.faults.places import PLACES, Place

pytestmark = pytest.mark.slow

SQLITE, POSTGRES = pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)
# Where only one database is named, the script covers the other: a case here takes half a minute.
on_both = pytest.mark.parametrize("place", [SQLITE, POSTGRES], indirect=True)
on_sqlite = pytest.mark.parametrize("place", [SQLITE], indirect=True)
on_postgres = pytest.mark.parametrize("place", [POSTGRES], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    random.seed(0)
    with PLACES[request.param]() as place:
        try:
            yield place
        finally:
            place.end_all()


def nothing_is_lost(place: Place, inject: Callable[[Outcome], None]) -> int:
    """How many faults there were."""
    result = Outcome(place.name, "")
    inject(result)
    assert result.losses == []
    return result.injected


@on_both
def test_a_study_whose_workers_are_killed_again_and_again_loses_and_doubles_nothing(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: kill_workers(place, result, 3)) == 3


@on_both
def test_a_worker_that_was_paused_past_its_lease_finds_its_late_write_refused(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: pause_worker(place, result, 1)) == 1


@on_sqlite
def test_a_log_on_a_full_disk_costs_a_start_and_no_trial(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: fill_disk(place, result, 10)) >= 1


@on_postgres
def test_workers_that_are_killed_while_they_hold_gpus_never_make_two_studies_share_one(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: kill_holders(place, result, 2)) == 2


@on_sqlite
def test_a_submission_whose_api_was_killed_is_there_once_when_it_is_sent_again(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: kill_api(place, result, 2)) == 2


@on_postgres
def test_fifty_studies_of_twenty_clients_all_end_each_in_one_of_three_workers(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: crowd(place, result, 50, 20, 3, "--no-engines")) == 50


@on_postgres
def test_a_study_goes_on_where_its_postgres_restarts(place: Place) -> None:
    assert nothing_is_lost(place, lambda result: restart_database(place, result, 2)) == 2
