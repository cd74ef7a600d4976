"""Tokens, submissions, the audit log and the counts, on every database that we store in."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from db.access import KEPT, SqlAudit, SqlSubmissions, SqlTokens
from db.engine import downgrade, upgrade
from db.readings import SqlReadings
from db.sessions import Sessions
from db.studies import SqlStudies
from tests.contract.conftest import Opens
from tests.contract.nouns import a_measurement, a_start, a_submission, a_trial, an_audit_entry, an_ended_start, opened
from tests.fakes import FakeClock
from tuner.core.access import AccessToken, Scope, TokenNameError, digest_of, make_token
from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed, Measured

NOW = FakeClock().now()


@pytest.fixture
def engine(migrated_url: str, opens: Opens) -> Engine:
    return opens(migrated_url)


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    return Sessions(engine)


@pytest.fixture
def tokens(sessions: Sessions) -> SqlTokens:
    return SqlTokens(sessions)


def test_a_token_is_found_by_the_hash_of_its_secret_which_is_kept_nowhere(tokens: SqlTokens, engine: Engine) -> None:
    assert not tokens.any()
    token, secret = make_token("alice", Scope.WRITE, NOW)
    tokens.add(token)
    assert tokens.any()
    assert tokens.find(digest_of(secret)) == token
    assert tokens.find(digest_of(secret + "x")) is None
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT name, scope, digest FROM tokens")).one()
    assert secret not in str(stored)
    assert stored.digest == token.digest != secret


def test_a_name_is_given_once_and_again_after_it_was_revoked(tokens: SqlTokens) -> None:
    first, _ = make_token("alice", Scope.READ, NOW)
    second, _ = make_token("alice", Scope.ADMIN, NOW)
    tokens.add(first)
    with pytest.raises(ValueError, match="a token named 'alice' already"):
        tokens.add(second)
    assert tokens.revoke("alice")
    assert not tokens.revoke("alice")
    assert tokens.find(first.digest) is None
    tokens.add(second)
    assert tokens.all() == [second]


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 65, "a\nb", "é"])
def test_a_name_that_would_not_fit_on_a_line_is_refused(name: str) -> None:
    with pytest.raises(TokenNameError, match="1 to 64"):
        make_token(name, Scope.READ, NOW)


def test_scopes_include_the_lesser_ones() -> None:
    allowed = {scope: [needed.value for needed in Scope if scope.allows(needed)] for scope in Scope}
    assert allowed == {
        Scope.READ: ["read"],
        Scope.WRITE: ["read", "write"],
        Scope.ADMIN: ["read", "write", "admin"],
    }


def test_a_key_keeps_what_was_first_stored_under_it(sessions: Sessions) -> None:
    submissions = SqlSubmissions(sessions)
    first = a_submission()
    assert submissions.keep(first) == first
    assert submissions.keep(a_submission(study_ids=("other",), body_digest="b" * 64)) == first
    bobs = a_submission(actor="bob", study_ids=("s3",))
    assert submissions.keep(bobs) == bobs


def test_a_key_is_forgotten_after_a_week(sessions: Sessions) -> None:
    submissions = SqlSubmissions(sessions)
    submissions.keep(a_submission())
    late = a_submission(study_ids=("later",), at=a_submission().at + KEPT + timedelta(seconds=1))
    assert submissions.keep(late) == late


def test_of_many_at_once_under_one_key_all_get_the_same(sessions: Sessions) -> None:
    submissions = SqlSubmissions(sessions)
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda n: submissions.keep(a_submission(study_ids=(f"s{n}",))), range(16)))
    assert len({submission.study_ids for submission in kept}) == 1


def test_the_audit_log_is_read_page_by_page_newest_first(sessions: Sessions) -> None:
    audit = SqlAudit(sessions)
    for number in range(5):
        audit.record(an_audit_entry(subject=f"s{number}"))
    page = audit.entries(limit=3)
    rest = audit.entries(limit=3, before=page[-1].id)
    assert [entry.subject for entry in (*page, *rest)] == ["s4", "s3", "s2", "s1", "s0"]
    assert page[0].detail == {"name": "small"}
    assert page[0].at == an_audit_entry().at


def test_counts_starts_and_the_census_say_what_the_tables_hold(engine: Engine, sessions: Sessions) -> None:
    studies, readings = SqlStudies(engine, FakeClock()), SqlReadings(engine, sessions)
    lease = opened(studies)
    idle = opened(studies)
    for number in range(3):
        studies.add_trial(lease, a_trial(number))
    start = a_start(1)
    studies.open_start(lease, start)
    studies.add_measurement(lease, a_measurement(start.id))
    studies.update_start(lease, an_ended_start(start))
    studies.finish_trial(lease, 1, Measured(measurements=()))
    studies.finish_trial(lease, 2, Failed(kind=FailureKind.CRASHED, sentence="it crashed"))
    studies.add_event(lease.study_id, "trial_finished", {"trial": 1})
    studies.add_event(lease.study_id, "other", {})

    counts = readings.counts([lease.study_id, idle.study_id])
    assert counts == {lease.study_id: {1: {"running": 1, "measured": 1, "failed": 1}}, idle.study_id: {}}
    assert [data for _, data in readings.told(lease.study_id, "trial_finished")] == [{"trial": 1}]
    last = readings.told(lease.study_id, "trial_finished")[-1][0]
    assert readings.told(lease.study_id, "trial_finished", after=last) == []
    assert [found.id for found in readings.starts_of(lease.study_id, 1)] == [start.id]
    assert readings.starts_of(lease.study_id, 0) == []
    census = readings.census()
    assert census.trials == {"running": 1, "measured": 1, "failed": 1}
    assert sum(census.studies.values()) == 2
    assert census.held_s == {"stopped": (1, pytest.approx(0.3))}
    assert census.ready == (1, 12.25)
    assert census.oldest_queued_at == studies.get(lease.study_id).created_at


def test_tables_of_another_version_are_not_ready(engine: Engine, sessions: Sessions) -> None:
    readings = SqlReadings(engine, sessions)
    assert readings.is_ready()
    downgrade(engine, "0001")
    assert not readings.is_ready()
    upgrade(engine)


def test_a_token_row_says_scope_and_time_as_they_were(tokens: SqlTokens) -> None:
    token = AccessToken(name="bob", scope=Scope.ADMIN, digest="d" * 64, created_at=NOW)
    tokens.add(token)
    assert tokens.all() == [token]
