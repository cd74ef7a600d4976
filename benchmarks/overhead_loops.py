"""The loops that `service_overhead` times: the product's search and tables, and Optuna's ask and tell on a storage."""

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import IntDistribution, distribution_to_json
from optuna.storages._rdb import models
from optuna.trial import TrialState, create_trial
from sqlalchemy.orm import Session

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
        """The same rows that `one` writes, many in a transaction; not too many, or PostgreSQL thinks that we hang."""
        while self._number < size:
            self._fill(min(size, self._number + 500))

    def _fill(self, size: int) -> None:
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
