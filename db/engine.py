"""Open a database and bring its tables to this version. Knows SQLite, PostgreSQL and Alembic, not what is stored."""

import json
import sqlite3
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import tenacity
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, inspect, make_url, text

from db.errors import DatabaseError, DatabaseUrlError, explained, shown
from db.tables import Base

# Optuna's storage has tables `studies` and `trials` and an `alembic_version` too; a file of its is not taken for ours.
VERSION_TABLE = "tuner_revision"
WRITING = {"tuner_writing": True}  # execution option of a connection whose transactions will write
BUSY_S = 30.0  # a writer waits so long for another one
CONNECT_S = 5
IDLE_S = 10  # within a transaction, of a client that is paused or gone; then PostgreSQL ends its session
_MIGRATION_LOCK = 7_205_759_403  # any number; PostgreSQL's advisory locks are told apart by it

_KINDS = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


def open_database(url: str) -> Engine:
    """An engine whose database can be reached; an SQLite file is made where there is none, its tables are not.

    Transactions only read unless the connection has the execution options WRITING. On SQLite those begin with
    BEGIN IMMEDIATE: a transaction that reads first and writes later would fail at once, whatever the timeout, where
    another has written in between.

    Raises:
        DatabaseUrlError: no URL, or of a database that we do not store in.
        DatabaseError: it cannot be reached, is no database, cannot be written, or is of a newer version than ours.
    """
    parsed = _parse(url)
    engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgres(parsed)
    try:
        with explained(parsed):
            _refuse_newer(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def upgrade(engine: Engine, to: str = "head") -> None:
    """Make the tables, or bring them to this version; nothing is done where they are. Several may call it at once.

    Raises:
        DatabaseError: also where the tables are another program's.
    """
    with explained(engine.url):
        _migrate(engine, partial(command.upgrade, revision=to))


def downgrade(engine: Engine, to: str) -> None:
    """Take migrations back, and what they stored with them. to: a revision, or `base` for none."""
    with explained(engine.url):
        _migrate(engine, partial(command.downgrade, revision=to))


def revision(engine: Engine) -> str | None:
    """The database's; None before the first upgrade."""
    with explained(engine.url), engine.connect() as connection:
        return _revision(connection)


def is_current(engine: Engine) -> bool:
    return revision(engine) == _scripts().get_current_head()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise DatabaseUrlError(f"{url!r} is no database URL; write {_KINDS}") from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise DatabaseUrlError(f"database {shown(parsed)}: cannot store in {parsed.drivername!r}; write {_KINDS}")
    return parsed


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise DatabaseUrlError(f"database {shown(url)}: a database in memory is lost at the end; write sqlite:///FILE")
    if not url.database.startswith("file:"):
        path = Path(url.database)
        if path.is_dir():
            raise DatabaseError(f"database {shown(url)}: {path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise DatabaseError(f"database {shown(url)}: the folder {path.parent} does not exist; make it first")
    engine = create_engine(url, json_serializer=_strict_json, connect_args={"timeout": BUSY_S, "isolation_level": None})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres(url: URL) -> Engine:
    try:
        return create_engine(
            url,
            json_serializer=_strict_json,
            pool_pre_ping=True,
            # A client that stops in the middle of a transaction keeps its locks: nobody could take its study over.
            connect_args={
                "connect_timeout": CONNECT_S,
                "options": f"-c idle_in_transaction_session_timeout={1000 * IDLE_S}",
            },
        )
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"database {shown(url)}: PostgreSQL needs psycopg: pip install 'llm-serving-tuner[postgres]'"
        ) from error


_strict_json = partial(json.dumps, allow_nan=False, separators=(",", ":"))


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    _use_wal(connection)
    # NORMAL in WAL: a commit survives every death of a process; a power cut may take the last ones, never the file.
    for setting in ("foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {setting}")


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


@tenacity.retry(  # the first change to WAL does not wait for other connections, it fails
    retry=tenacity.retry_if_exception(_is_busy),
    wait=tenacity.wait_random(0.01, 0.1),
    stop=tenacity.stop_after_delay(BUSY_S),
    reraise=True,
)
def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers then never wait for the writer, nor it for them. The file remembers it."""
    connection.execute("PRAGMA journal_mode=WAL")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("tuner_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "db:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _migrate(engine: Engine, step: Callable[[Config], None]) -> None:
    """In one transaction, whole or not at all, and after every other process that migrates."""
    with engine.connect().execution_options(**WRITING) as connection:
        sqlite = engine.dialect.name == "sqlite"
        if sqlite:
            # Rebuilding a table drops the old one, which with foreign keys on would delete what points at it; the
            # setting cannot be changed within a transaction.
            _foreign_keys(connection, "OFF")
        try:
            with connection.begin():
                if not sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
                _refuse_foreign(connection)
                step(_config(connection))
                if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                    raise DatabaseError(f"database {shown(engine.url)}: rows point at rows that are not there")
        finally:
            if sqlite:
                _foreign_keys(connection, "ON")


def _foreign_keys(connection: Connection, value: str) -> None:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.execute(f"PRAGMA foreign_keys={value}")


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _refuse_newer(engine: Engine) -> None:
    with engine.connect() as connection:
        found = _revision(connection)
    known = {script.revision for script in _scripts().walk_revisions()}
    if found is not None and found not in known:
        raise DatabaseError(
            f"database {shown(engine.url)}: its tables are of a newer version (revision {found}; this one knows up to "
            f"{_scripts().get_current_head()}); upgrade the tuner"
        )


def _refuse_foreign(connection: Connection) -> None:
    if _revision(connection) is None:
        others = sorted(set(inspect(connection).get_table_names()) & set(Base.metadata.tables))
        if others:
            raise DatabaseError(
                f"database {shown(connection.engine.url)}: it has tables of another program ({', '.join(others)}); "
                "name another database"
            )
