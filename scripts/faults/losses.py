"""What is not as it would be without a fault: of a study, its engines, its GPUs. Knows no fault."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import yaml

from scripts.faults.places import MARK, ROOT, Place
from tuner.app.clock import SystemClock
from tuner.core.measurement import Purpose
from tuner.core.study import StudyState
from tuner.core.study_file import parse
from tuner.core.trial import Measured
from tuner.core.use_cases import open_studies

EXAMPLE = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
GUARDS_S = 15.0  # guards stop what their killed worker started within their grace


@dataclass(slots=True)
class Outcome:
    """losses: a sentence each."""

    database: str
    fault: str
    injected: int = 0
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


def document(name: str, trials: int, fix: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """fix: more knobs; a smaller space is planned sooner."""
    return {
        **EXAMPLE,
        "name": name,
        "budget": {"trials": trials},
        "workload": {**EXAMPLE["workload"], "context_tokens": [1, 8192]},
        "fix": {"tensor_parallel_size": 8, **(fix or {})},
    }


def opened(place: Place, name: str, trials: int) -> str:
    """The id of a new study of that many trials and a baseline."""
    with place.studies() as studies:
        return open_studies(parse(document(name, trials)), studies, SystemClock(), new=True)[0].id


def losses(place: Place, study: str, trials: int) -> list[str]:
    """Of a study that has ended: nothing lost, nothing twice, states legal, no engine left."""
    with place.studies() as studies:
        found: list[str] = []
        asked = studies.get(study)
        if asked.state is not StudyState.DONE:
            found.append(f"the study is {asked.state}: {asked.reason}")
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
        expected = {(t.number, w.key, 0) for t in there for w in asked.file.workloads}
        found += [f"run {run} is missing" for run in expected - runs.keys()]
        found += [f"run {run} is there {count} times" for run, count in runs.items() if count > 1]
        finished = Counter(e.data["trial"] for e in studies.events(study, limit=10_000) if e.kind == "trial_finished")
        found += [f"trial {trial} is told to have finished {n} times" for trial, n in finished.items() if n > 1]
    return found + engines_left(place)


def engines_left(place: Place) -> list[str]:
    """Stand-ins for engines, and guards of theirs, that live although no start is open."""
    deadline = time.monotonic() + GUARDS_S
    while (left := _engines(place)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"engine {pid} is left" for pid in left]


def _engines(place: Place) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "faults-engine" in process.cmdline() and process.environ().get(MARK) == str(place.folder):
                found.append(process.pid)
    return found


def held_by_two(place: Place, names: Collection[str]) -> list[str]:
    """Of these studies those that two workers had at the same moment, by the workers' own account (see `worker`)."""
    found = []
    holders: dict[str, int] = {}
    for line in sorted(_held(place, names), key=lambda line: line["at_s"]):
        study, worker = line["study"], line["worker"]
        if line["what"] == "begin":
            if study in holders:
                found.append(f"study {study} was in workers {holders[study]} and {worker} at once")
            holders[study] = worker
        else:
            holders.pop(study, None)
    return found


def workers_that_ran(place: Place, names: Collection[str]) -> int:
    return len({line["worker"] for line in _held(place, names)})


def _held(place: Place, names: Collection[str]) -> list[dict[str, Any]]:
    path = place.folder / "held.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["study"] in names]


def shared_gpus(place: Place) -> list[str]:
    """GPUs that two engines had at the same moment, by the engines' own account (see `engine`)."""
    path = place.folder / "shared.txt"
    return path.read_text().splitlines() if path.exists() else []
