"""Starts and measurements: what was run, on what, and what came out. Knows nothing of objectives or storage."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Origin(StrEnum):
    """Predicted is not recorded, recorded is not measured; only measured can become validated."""

    PREDICTED = "predicted"
    RECORDED = "recorded"
    MEASURED = "measured"


class Purpose(StrEnum):
    SEARCH = "search"
    DRIFT = "drift"
    NOISE = "noise"
    REPEAT = "repeat"
    CONFIRM = "confirm"
    QUALITY = "quality"
    REVALIDATE = "revalidate"


class FailureKind(StrEnum):
    REJECTED_BY_ENGINE = "rejected_by_engine"
    START_TIMEOUT = "start_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    HUNG = "hung"
    WRONG_OUTPUT = "wrong_output"
    INCOMPLETE = "incomplete"
    INFRASTRUCTURE = "infrastructure"

    @property
    def retried(self) -> bool:
        """Whether the same candidate may fare better next time; the others are deterministic."""
        return self in _RETRIED


_RETRIED = frozenset({FailureKind.CRASHED, FailureKind.HUNG, FailureKind.INCOMPLETE, FailureKind.INFRASTRUCTURE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The environment that a number belongs to; two that differ are not compared.

    engine: `vllm`, `predicted`, a kernel's name.   versions: package to version.   gpu: product name, or `cpu`.
    gpus: how many the start held.   driver: of the GPU; empty where there is none.   settings: environment
    variables that the engine was given, and hashes of tables and caches that it read.
    """

    engine: str
    versions: Mapping[str, str]
    gpu: str
    gpus: int
    driver: str = ""
    host: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """An operating system process that outlives a reuse of its number.

    started_s: seconds since the epoch, as the system reports it.
    """

    pid: int
    started_s: float
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One engine or worker process: why it was started, on what, how long it was held, how it ended.

    ended: None while it runs; `stopped`, `interrupted`, a `FailureKind`, or `lost` where its worker died.
    slot: its place in the confirmation's schedule; None for a search start.
    excluded: why the confirmation leaves this start out, where it does; only for a recorded cause.
    """

    id: str
    trial: int | None
    gpus: int
    candidate_key: str
    purpose: Purpose
    fingerprint: Fingerprint
    opened_at: datetime
    process: Process | None = None
    ready_s: float | None = None
    held_s: float | None = None
    ended: str | None = None
    command: Sequence[str] = ()
    log_path: str = ""
    slot: int | None = None
    excluded: str = ""


def held_s(starts: Iterable[Start]) -> dict[str, float]:
    """Seconds that starts were held, by purpose."""
    found: dict[str, float] = {}
    for start in starts:
        found[start.purpose] = found.get(start.purpose, 0.0) + (start.held_s or 0.0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run in a start, of one candidate under one workload.

    metrics: name with unit to value, finite only; `missing` says why a metric has no value.
    samples: name with unit to the raw values that the metrics were computed from.
    """

    start_id: str
    workload_key: str
    purpose: Purpose
    repeat: int
    origin: Origin
    metrics: Mapping[str, float]
    missing: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        bad = [name for name, value in self.metrics.items() if not math.isfinite(value)]
        if bad:
            raise ValueError(f"metric {bad[0]!r} is not finite; say why in `missing` instead")
        bad = [name for name, values in self.samples.items() if not all(map(math.isfinite, values))]
        if bad:
            raise ValueError(f"samples {bad[0]!r} hold a value that is not finite")


def finite(metrics: Mapping[str, float | None]) -> tuple[dict[str, float], dict[str, str]]:
    """Split metrics into the finite ones and, for the rest, the reason that there is no number."""
    good = {name: float(v) for name, v in metrics.items() if v is not None and math.isfinite(v)}
    missing = {name: "not reported" if v is None else f"was {v}" for name, v in metrics.items() if name not in good}
    return good, missing
