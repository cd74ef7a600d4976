"""Replay a file of measurements in the place of an engine, its repeats and failures included. Runs nothing.

Files, plain or gzipped:

- CSV, one row a timing: the problem (`n, k, m`, and `dtype` where it is not bfloat16), the candidate's options, `pass`
  and `kernel_us`; or the passes side by side as `us_1, us_2, ...`. `kind` names the candidate's kind (skinny_gemm where
  there is no such column). A row with `failed` holds a FailureKind and no timing. Empty options are absent.
- Kernel Tuner's cache JSON; times there are milliseconds.
"""

import contextlib
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.gemm import SKINNY
from search_spaces.knob import Scalar
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose
from tuner.core.ports import Answers, Generated, Running, Scored, StartRequest, TaskSet
from tuner.core.trial import Failed
from tuner.core.workload import GemmProblem, Workload

METRIC = "kernel_us"
_PROBLEM = ("n", "k", "m", "dtype")
_NO_OPTION = frozenset((*_PROBLEM, "kind", "pass", METRIC, "failed"))
_PASS = re.compile(r"us_(\d+)")
# Kernel Tuner 1.x writes the failure's name where the time would stand, or as `__error__`.
_KERNEL_TUNER_FAILURES = {
    "InvalidConfig": FailureKind.REJECTED_BY_ENGINE,
    "CompilationFailedConfig": FailureKind.REJECTED_BY_ENGINE,
    "RuntimeFailedConfig": FailureKind.CRASHED,
}


class RecordingError(ValueError):
    """A file that holds no recording; the message names it, the row and the reason."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One candidate under one workload. values: its options.   us: microseconds of each pass, in order.
    failed: how it failed, where it did; then there is no timing."""

    kind: str
    values: Mapping[str, Scalar]
    us: tuple[float, ...] = ()
    failed: FailureKind | None = None

    @property
    def mean_us(self) -> float:
        return sum(self.us) / len(self.us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """source: the file's name.   entries: workload key to candidate key to what was recorded."""

    source: str
    entries: Mapping[str, Mapping[str, Recorded]]

    def of(self, workload: Workload) -> Mapping[str, Recorded]:
        """Empty for a workload that was not recorded."""
        return self.entries.get(workload.key, {})


def load(path: Path, *, problem: GemmProblem | None = None) -> Recording:
    """problem: what a Kernel Tuner cache was recorded for; such a file does not say it in our words.

    Raises:
        RecordingError: the file cannot be read, a row has no number, or two rows claim one pass.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RecordingError(f"{path}: {error}") from error
    name = path.name.removesuffix(".gz")
    if name.endswith(".json"):
        if problem is None:
            raise RecordingError(f"{path}: say which problem a Kernel Tuner cache was recorded for")
        return Recording(source=path.name, entries={problem.key: _kernel_tuner(path, text)})
    return Recording(source=path.name, entries=_csv(path, text))


def write(path: Path, rows: Iterable[tuple[GemmProblem, Recorded]]) -> None:
    """As CSV, one row a timing, gzipped where the name ends in .gz."""
    found = list(rows)
    options = sorted({name for _, recorded in found for name in recorded.values})
    buffer = io.StringIO()
    out = csv.writer(buffer, lineterminator="\n")
    out.writerow([*_PROBLEM, "kind", *options, "pass", METRIC, "failed"])
    for problem, recorded in found:
        head = [problem.n, problem.k, problem.m, problem.dtype, recorded.kind]
        head += [_text(recorded.values.get(name)) for name in options]
        if recorded.failed is not None:
            out.writerow([*head, 1, "", recorded.failed.value])
        for place, us in enumerate(recorded.us, start=1):
            out.writerow([*head, place, repr(us), ""])
    data = buffer.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


class RecordedEvaluator:
    """A start is one timing pass: a candidate's first start replays its first pass, the next start the next one."""

    origin = Origin.RECORDED

    def __init__(self, recording: Recording, *, gpu: str = "recorded", versions: Mapping[str, str] | None = None):
        self._recording = recording
        self._gpu = gpu
        self._versions = {"recording": recording.source, **(versions or {})}
        self._starts: Counter[str] = Counter()

    def fingerprint(self, gpus: int) -> Fingerprint:
        return Fingerprint(engine="recorded", versions=self._versions, gpu=self._gpu, gpus=gpus)

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        del started  # there is no process
        key = candidate_key(request.candidate)
        place = self._starts[key]
        self._starts[key] += 1
        yield _Pass(self._recording, request, place, self.fingerprint(1))

    def close(self) -> None:
        """Nothing is open."""


class _Pass:
    ready_s = 0.0
    process = None
    command: Sequence[str] = ()
    log_path = ""

    def __init__(self, recording: Recording, request: StartRequest, place: int, fingerprint: Fingerprint) -> None:
        self._recording = recording
        self._request = request
        self._place = place
        self.fingerprint = fingerprint

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        source = self._recording.source
        found = self._recording.of(workload).get(candidate_key(self._request.candidate))
        if found is None:
            return _none(f"{source} has no timing of this candidate for {workload.key}")
        if found.failed is not None:
            return Failed(kind=found.failed, sentence=f"it failed when {source} was recorded")
        if self._place >= len(found.us):
            return _none(f"{source} has {len(found.us)} passes of this candidate, and {self._place} are used")
        if repeat:
            return _none(f"{source} has one timing a pass")
        us = found.us[self._place]
        return Measurement(
            start_id=self._request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.RECORDED,
            metrics={METRIC: us},
            samples={METRIC: (us,)},
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return _none(f"a recording generates nothing ({len(prompts)} x {max_tokens} tokens, {concurrency} at once)")

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return _none(f"a recording scores nothing ({len(outputs)} outputs)")

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        return _none(f"a recording answers no question of {', '.join(asked.tasks)}")


@dataclass(frozen=True, slots=True)
class _Named:
    """Options that name a candidate; enough for its key."""

    kind: str
    options: Mapping[str, Scalar]

    def values(self) -> dict[str, Scalar]:
        return dict(self.options)


def key_of(kind: str, values: Mapping[str, Scalar]) -> str:
    candidate: Candidate = _Named(kind, values)
    return candidate_key(candidate)


def _csv(path: Path, text: str) -> dict[str, dict[str, Recorded]]:
    rows = csv.DictReader(io.StringIO(text))
    columns = list(rows.fieldnames or ())
    side_by_side = sorted((int(match[1]), name) for name in columns if (match := _PASS.fullmatch(name)))
    missing = [name for name in ("n", "k", "m") if name not in columns]
    if missing or (METRIC not in columns and not side_by_side):
        raise RecordingError(f"{path}: needs the columns n, k, m and {METRIC} (or us_1, us_2, ...); has {columns}")
    options = [name for name in columns if name not in _NO_OPTION and not _PASS.fullmatch(name)]
    passes: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    named: dict[tuple[str, str], tuple[str, dict[str, Scalar], FailureKind | None]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            problem = GemmProblem(
                n=int(row["n"]), k=int(row["k"]), m=int(row["m"]), dtype=row.get("dtype") or "bfloat16"
            )
            kind = row.get("kind") or SKINNY
            values = {name: _scalar(row[name]) for name in options if row[name]}
            failed = FailureKind(row["failed"]) if row.get("failed") else None
            where = problem.key, key_of(kind, values)
            named[where] = kind, values, failed
            if failed is not None:
                continue
            found = [(place, row[name]) for place, name in side_by_side if row[name]]
            found = found or [(int(row.get("pass") or len(passes[where]) + 1), row[METRIC])]
            for place, us in found:
                if place in passes[where]:
                    raise ValueError(f"pass {place} of this candidate is there already")
                passes[where][place] = _positive(us)
        except (TypeError, ValueError, KeyError) as error:
            raise RecordingError(f"{path}, line {number}: {error}") from error
    entries: dict[str, dict[str, Recorded]] = defaultdict(dict)
    for where, (kind, values, failed) in named.items():
        us = tuple(us for _, us in sorted(passes[where].items()))
        entries[where[0]][where[1]] = Recorded(kind, values, () if failed else us, failed)
    return dict(entries)


def _kernel_tuner(path: Path, text: str) -> dict[str, Recorded]:
    """Every entry holds its parameters by name, `time` in ms (or a failure's name) and often `times`, each run's."""
    found: dict[str, Recorded] = {}
    try:
        document = json.loads(text)
        names: list[str] = document["tune_params_keys"]
        entries: Mapping[str, Mapping[str, Any]] = document["cache"]
        for entry in entries.values():
            values: dict[str, Scalar] = {name: entry[name] for name in names}
            failure = entry.get("__error__", entry.get("time"))
            if isinstance(failure, str):
                recorded = Recorded(SKINNY, values, (), _KERNEL_TUNER_FAILURES[failure])
            else:
                times = entry.get("times") or [entry["time"]]
                recorded = Recorded(SKINNY, values, tuple(1000 * _positive(ms) for ms in times))
            found[key_of(SKINNY, values)] = recorded
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecordingError(f"{path}: no cache of Kernel Tuner: {type(error).__name__} {error}") from error
    return found


def _positive(value: object) -> float:
    number = float(str(value))
    if not 0 < number < float("inf"):
        raise ValueError(f"{value!r} is no time")
    return number


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _text(value: Scalar) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _none(sentence: str) -> Failed:
    return Failed(kind=FailureKind.REJECTED_BY_ENGINE, sentence=sentence)
