"""Databases: opened or refused with a sentence, brought to this version, whole after what may happen to them."""

import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, event, inspect, text

import db
from db.access import SqlAudit, SqlSubmissions, SqlTokens
from db.engine import VERSION_TABLE, WRITING, _migrate, downgrade, is_current, revision, upgrade
from db.errors import DatabaseError, DatabaseUrlError
from db.kernels import SqlCompiledKernels
from db.sessions import Sessions
from db.studies import SqlStudies
from db.tables import Base
from tests.contract.conftest import Opens, PostgresServer
from tests.contract.nouns import (
    a_compiled_kernel,
    a_confirmation,
    a_measurement,
    a_start,
    a_study,
    a_submission,
    a_trial,
    an_audit_entry,
    opened,
)
from tests.fakes import FakeClock
from tuner.core.access import Scope, make_token
from tuner.core.study import StudyState

REVISIONS = [
    script.revision for script in ScriptDirectory(str(Path(db.__file__).parent / "migrations")).walk_revisions()
][::-1]


@pytest.fixture
def engine(migrated_url: str, opens: Opens) -> Engine:
    return opens(migrated_url)


def filled(engine: Engine) -> SqlStudies:
    """At least one row in each table."""
    studies = SqlStudies(engine, FakeClock())
    lease = opened(studies)
    studies.add_trial(lease, a_trial(0))
    start = a_start(0)
    studies.open_start(lease, start)
    studies.add_measurement(lease, a_measurement(start.id))
    studies.save_confirmation(lease, a_confirmation(1, decided=True))
    studies.add_event(lease.study_id, "x", {})
    sessions = Sessions(engine)
    token, _ = make_token(f"t{secrets.token_hex(4)}", Scope.READ, FakeClock().now())
    SqlTokens(sessions).add(token)
    SqlSubmissions(sessions).keep(a_submission())
    SqlAudit(sessions).record(an_audit_entry())
    SqlCompiledKernels(sessions).keep([a_compiled_kernel()])
    return studies


def create_many(studies: SqlStudies, many: int, written: list[str]) -> None:
    for _ in range(many):
        study = a_study()
        studies.create(study)
        written.append(study.id)


def counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {
            name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in sorted(inspect(connection).get_table_names())
            if name != VERSION_TABLE
        }


def test_the_migrations_make_what_the_declarations_say(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []
        made = MetaData()
        made.reflect(connection)
    for name, table in Base.metadata.tables.items():  # what Alembic does not compare
        assert [c.name for c in made.tables[name].primary_key] == [c.name for c in table.primary_key]
        assert {c.name for c in made.tables[name].foreign_key_constraints} == {
            c.name for c in table.foreign_key_constraints
        }


def test_revisions_are_one_line(engine: Engine) -> None:
    assert sorted(REVISIONS) == REVISIONS
    assert revision(engine) == REVISIONS[-1]
    assert is_current(engine)


@pytest.mark.parametrize("step", REVISIONS)
def test_each_migration_goes_down_and_up_with_rows_in_the_tables(engine: Engine, step: str) -> None:
    filled(engine)
    assert all(counts(engine).values())
    before = REVISIONS[REVISIONS.index(step) - 1] if step != REVISIONS[0] else "base"
    downgrade(engine, before)
    assert not is_current(engine)
    if before == "base":
        assert revision(engine) is None
        assert counts(engine) == {}
    upgrade(engine)
    assert is_current(engine)
    filled(engine)
    assert all(counts(engine).values())


def test_an_upgrade_of_what_is_current_changes_nothing(engine: Engine) -> None:
    filled(engine)
    before = counts(engine)
    upgrade(engine)
    assert counts(engine) == before


def test_tables_that_are_not_there_yet_are_said(engine: Engine) -> None:
    downgrade(engine, "base")
    with pytest.raises(DatabaseError, match="tuner db upgrade"):
        SqlStudies(engine, FakeClock()).get("x")
    upgrade(engine)


def test_a_database_of_a_newer_version_is_refused(engine: Engine, migrated_url: str, opens: Opens) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    try:
        with pytest.raises(DatabaseError, match=f"newer version .revision 9999; this one knows up to {REVISIONS[-1]}"):
            opens(migrated_url)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{REVISIONS[-1]}'"))


def test_tables_of_another_program_are_left_alone(tmp_path: Path, opens: Opens) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE trials (trial_id INTEGER PRIMARY KEY)")
    other.close()
    engine = opens(f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(DatabaseError, match=r"another program \(trials\)"):
        upgrade(engine)
    assert counts(engine) == {"trials": 0}


def test_a_migration_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    engine = opens(f"sqlite:///{tmp_path / 'tuner.db'}")
    monkeypatch.setattr("alembic.op.create_index", lambda *_args, **_more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        upgrade(engine)
    assert counts(engine) == {}
    monkeypatch.undo()
    upgrade(engine)
    assert is_current(engine)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "is no database URL"),
        ("tuner.db", "is no database URL"),
        ("mysql://user:secret@host/name", r"cannot store in 'mysql'; write sqlite:///FILE or postgresql://"),
        ("postgresql+asyncpg://host/name", "cannot store in"),
        ("sqlite://", "in memory is lost"),
        ("sqlite:///:memory:", "in memory is lost"),
    ],
)
def test_a_url_that_names_no_database_of_ours_is_refused(url: str, sentence: str, opens: Opens) -> None:
    with pytest.raises(DatabaseUrlError, match=sentence) as refused:
        opens(url)
    assert "secret" not in str(refused.value)


def test_what_is_no_database_file_is_refused(tmp_path: Path, opens: Opens) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and long enough to be read as a header\n" * 10)
    with pytest.raises(DatabaseError, match="not an SQLite database"):
        opens(f"sqlite:///{tmp_path / 'notes.txt'}")
    with pytest.raises(DatabaseError, match=r"folder .*/none does not exist"):
        opens(f"sqlite:///{tmp_path / 'none' / 'tuner.db'}")
    with pytest.raises(DatabaseError, match="is a folder"):
        opens(f"sqlite:///{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_database_that_can_only_be_read_says_so(sqlite_url: str, opens: Opens) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    engine = opens(f"sqlite:///file:{path}?mode=ro&uri=true")
    studies = SqlStudies(engine, FakeClock())
    assert studies.find() == []
    with pytest.raises(DatabaseError, match="can only be read"):
        studies.create(a_study())


def test_a_full_disk_says_so_and_keeps_what_was_written(sqlite_url: str, opens: Opens) -> None:
    engine = opens(sqlite_url)
    studies = filled(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # SQLite then says what it says of a full disk
    written: list[str] = []
    with pytest.raises(DatabaseError, match="disk is full"):
        create_many(studies, 1000, written)
    engine.dispose()
    found = SqlStudies(opens(sqlite_url), FakeClock()).find(limit=1000)
    assert 0 < len(written) == len(found) - 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "/nowhere"])
def test_a_server_that_is_not_there_says_so_without_the_password(address: str, opens: Opens) -> None:
    host = f"postgresql://u:secret@/name?host={address}" if address[0] == "/" else f"postgresql://u:secret@{address}/n"
    with pytest.raises(DatabaseError, match="cannot be reached") as refused:
        opens(host)
    assert "secret" not in str(refused.value)


@pytest.mark.postgres
def test_a_database_that_the_server_does_not_have_is_said(emptied_postgres: str, opens: Opens) -> None:
    with pytest.raises(DatabaseError, match="no_such"):
        opens(emptied_postgres.replace("/postgres?", "/no_such?"))


def test_readers_go_on_while_a_writer_holds_the_file(sqlite_url: str, opens: Opens) -> None:
    studies = filled(opens(sqlite_url))
    other = opens(sqlite_url).execution_options(**WRITING)
    with other.begin() as connection:
        connection.execute(text("UPDATE studies SET name = 'not yet'"))
        seen = studies.find()[0]
        assert seen.name == "small"
        assert len(studies.trials(seen.id)) == 1


def test_a_writer_waits_for_another_one(sqlite_url: str, opens: Opens) -> None:
    studies = filled(opens(sqlite_url))
    other = opens(sqlite_url).execution_options(**WRITING)
    connection = other.connect()
    transaction = connection.begin()
    waiting = threading.Thread(target=studies.create, args=(a_study(),))
    waiting.start()
    waiting.join(0.15)
    assert waiting.is_alive()
    transaction.rollback()
    connection.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(studies.find()) == 2


@pytest.fixture
def paused(migrated_url: str, opens: Opens) -> tuple[SqlStudies, threading.Event]:
    """Studies whose writes stop before their commit until the event is set."""
    engine = opens(migrated_url)
    gate = threading.Event()
    event.listen(engine, "commit", lambda _connection: gate.wait(30))
    return SqlStudies(engine, FakeClock()), gate


def test_nobody_takes_a_study_over_in_the_middle_of_a_write(
    engine: Engine, paused: tuple[SqlStudies, threading.Event]
) -> None:
    """The lease has run out when the check has passed and the commit has not: the claim comes after it."""
    writer, gate = paused
    clock = FakeClock()
    studies = SqlStudies(engine, clock)
    lease = opened(studies)
    clock.sleep(60)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(writer.add_trial, lease, a_trial(0))
        time.sleep(0.1)
        claimed = pool.submit(studies.claim, "other", ttl_s=20, study_id=lease.study_id)
        time.sleep(0.15)
        assert not claimed.done()
        gate.set()
        written.result()
        assert claimed.result() is not None
    assert len(studies.trials(lease.study_id)) == 1


def test_an_event_is_not_seen_before_an_earlier_one(engine: Engine, paused: tuple[SqlStudies, threading.Event]) -> None:
    """Or who asks for the events after it would never see the earlier one, committed later."""
    writer, gate = paused
    studies = SqlStudies(engine, FakeClock())
    study = a_study()
    studies.create(study)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(writer.add_event, study.id, "first", {})
        time.sleep(0.1)
        second = pool.submit(studies.add_event, study.id, "second", {})
        time.sleep(0.15)
        assert not second.done()
        assert studies.events(study.id) == []
        gate.set()
        first.result()
        second.result()
    assert [one.kind for one in studies.events(study.id)] == ["first", "second"]


_HALF = """
import os, signal, sys
from sqlalchemy import text
from db.engine import WRITING, open_database
connection = open_database(sys.argv[1]).execution_options(**WRITING).connect()
connection.begin()
connection.execute(text("UPDATE studies SET name = 'half'"))
connection.execute(text("DELETE FROM events"))
print("written", flush=True)
signal.pause()
"""


def test_a_process_that_is_killed_within_a_write_has_written_nothing(engine: Engine, migrated_url: str) -> None:
    studies = filled(engine)
    before = counts(engine)
    command = [sys.executable, "-c", _HALF, migrated_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    studies.create(a_study())
    assert {study.name for study in studies.find()} == {"small"}
    assert counts(engine) == {**before, "studies": 2, "leases": 2}


@pytest.mark.slow
def test_processes_that_open_a_new_file_together_all_find_the_tables(tmp_path: Path, opens: Opens) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    code = "import sys; from db.engine import *; e = open_database(sys.argv[1]); upgrade(e); assert is_current(e)"
    running = [subprocess.Popen([sys.executable, "-c", code, url], stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in running] == [b""] * 3
    assert [process.returncode for process in running] == [0] * 3
    filled(opens(url))


def test_a_table_is_rebuilt_without_losing_what_points_at_it(sqlite_url: str, opens: Opens) -> None:
    """What a later migration will do to SQLite: with foreign keys on, dropping the old table deletes or fails."""
    engine = opens(sqlite_url)
    filled(engine)
    before = counts(engine)

    def rebuild(config: Config) -> None:
        context = MigrationContext.configure(config.attributes["connection"])
        with Operations(context).batch_alter_table("studies", recreate="always") as batch:
            batch.drop_column("owner")

    _migrate(engine, rebuild)
    assert counts(engine) == before
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_connections_are_set_up_for_many_readers_and_one_writer(sqlite_url: str, opens: Opens) -> None:
    with opens(sqlite_url).connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 1, "busy_timeout": 30_000}


def test_rows_are_strict_json(engine: Engine) -> None:
    filled(engine)
    with engine.connect() as connection:
        for column in ("metrics", "samples", "missing"):
            stored = connection.execute(text(f"SELECT CAST({column} AS TEXT) FROM measurements")).scalar_one()
            assert "NaN" not in stored
            assert stored.startswith("{")


def test_a_reason_out_of_a_broken_log_is_kept_as_far_as_it_is_text(engine: Engine) -> None:
    studies = SqlStudies(engine, FakeClock())
    lease = opened(studies)
    studies.set_state(lease, StudyState.FAILED, "exit \0 \ud800 \x1b[31m 最後")
    assert studies.get(lease.study_id).reason == "exit ? ? \x1b[31m 最後"


@pytest.mark.postgres
def test_a_server_that_restarts_is_found_again(emptied_postgres: str, postgres: PostgresServer, opens: Opens) -> None:
    studies = filled(opens(emptied_postgres))
    postgres.stop()
    with pytest.raises(DatabaseError):
        studies.find()
    postgres.ensure_postgres_running()
    assert len(studies.find()) == 1
    studies.create(a_study())


@pytest.mark.postgres
def test_what_has_not_begun_waits_for_a_server_that_restarts(
    emptied_postgres: str, postgres: PostgresServer, opens: Opens
) -> None:
    engine = opens(emptied_postgres)
    filled(engine)
    patient = SqlStudies(engine, FakeClock(), wait_s=30)
    postgres.stop()
    back = threading.Timer(1.0, postgres.ensure_postgres_running)
    back.start()
    patient.create(a_study())
    back.join()
    assert len(patient.find()) == 2
