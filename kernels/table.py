"""A tuned tile table: the file that carries tiles, and the evidence for each, to vLLM. Knows no database and no vLLM.

Version 1 is JSON, keyed by GPU, vLLM version and kernel version, and within by shape and rows. The plug-in in the
engine (tuner_inside/kernel_table.py) takes a validated table for exactly that vLLM, kernel and GPU, and no other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from search_spaces.gemm import LibraryGemm, SkinnyTile, skinny_rules
from search_spaces.rule import broken
from tuner.core.compiled import CompiledKernel
from tuner.core.workload import GemmProblem

FORMAT = 1

Stock = Callable[[GemmProblem], SkinnyTile | LibraryGemm]


class TableError(ValueError):
    """No tuned table, or one that contradicts itself; the message says where."""


class Status(StrEnum):
    """validated: every tile was confirmed on independent passes on that GPU.   not_measured: compiled only."""

    VALIDATED = "validated"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """gain: of time over the baseline's, 0.05 is 5 % faster.   lower: its confidence bound.   us, baseline_us: medians
    over the passes."""

    gain: float
    lower: float
    p: float
    passes: int
    us: float
    baseline_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """baseline: what vLLM runs without the table.   evidence: None where nothing was measured.
    resources: registers and memory that the compiler reported."""

    problem: GemmProblem
    tile: SkinnyTile
    baseline: SkinnyTile | LibraryGemm
    evidence: Evidence | None = None
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTable:
    """gpu: product name.   capability: compute capability, `9.0`.   versions: what else the timings depend on."""

    gpu: str
    capability: str
    vllm_version: str
    kernel_version: str
    status: Status
    date: str
    entries: tuple[Entry, ...]
    driver: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for entry in self.entries:
            where = entry.problem.key
            if where in seen:
                raise TableError(f"{where}: two tiles for one problem")
            seen.add(where)
            reasons = broken(skinny_rules(entry.problem.n, entry.problem.k, entry.problem.m), entry.tile)
            if reasons:
                raise TableError(f"{where}: {reasons[0].sentence}")
            if self.status is Status.VALIDATED and (entry.evidence is None or entry.evidence.lower <= 0):
                raise TableError(f"{where}: a validated table has a tile that was not shown to be faster")


def compiled_table(
    table: TunedTable, compiled: Sequence[CompiledKernel], *, gpu: str, capability: str, stock: Stock, date: str
) -> TunedTable:
    """The same tiles as compiled for another GPU, with what each takes of it. Nothing was measured there, so there is
    no evidence; a tile that the compiler refused is left out.

    gpu: product name.   stock: what vLLM runs there without a table.
    """
    made = {(kernel.m, kernel.tile): kernel for kernel in compiled if not kernel.refused}
    entries = [
        Entry(problem=e.problem, tile=e.tile, baseline=stock(e.problem), resources=_resources(kernel))
        for e in table.entries
        if (kernel := made.get((e.problem.m, e.tile))) is not None
    ]
    return replace(
        table,
        gpu=gpu,
        capability=capability,
        driver="",
        versions={"tuned_on": table.gpu, **_compiler(compiled)},
        status=Status.NOT_MEASURED,
        date=date,
        entries=tuple(entries),
    )


def _compiler(compiled: Sequence[CompiledKernel]) -> dict[str, str]:
    return {"architecture": compiled[0].architecture, "compiler": compiled[0].compiler} if compiled else {}


def _resources(kernel: CompiledKernel) -> dict[str, int]:
    return {name: getattr(kernel, name) for name in ("registers", "local_bytes", "shared_bytes", "code_bytes")}


def to_json(table: TunedTable) -> str:
    document = {
        "format": FORMAT,
        "status": table.status.value,
        "gpu": {"name": table.gpu, "capability": table.capability, "driver": table.driver},
        "vllm_version": table.vllm_version,
        "kernel_version": table.kernel_version,
        "versions": dict(table.versions),
        "date": table.date,
        "tiles": [_entry_document(entry) for entry in sorted(table.entries, key=_place)],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> TunedTable:
    """The inverse of `to_json`. Raises TableError."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise TableError(f"its format is {document['format']!r}, and {FORMAT} is understood")
        return TunedTable(
            gpu=document["gpu"]["name"],
            capability=document["gpu"]["capability"],
            driver=document["gpu"]["driver"],
            vllm_version=document["vllm_version"],
            kernel_version=document["kernel_version"],
            versions=document["versions"],
            status=Status(document["status"]),
            date=document["date"],
            entries=tuple(_entry(entry) for entry in document["tiles"]),
        )
    except TableError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"no tuned tile table: {type(error).__name__} {error}") from error


def _place(entry: Entry) -> tuple[int, int, int]:
    return entry.problem.n, entry.problem.k, entry.problem.m


def _entry_document(entry: Entry) -> dict[str, Any]:
    problem, evidence = entry.problem, entry.evidence
    names = ("gain", "lower", "p", "passes", "us", "baseline_us")
    return {
        "n": problem.n,
        "k": problem.k,
        "m": problem.m,
        "name": problem.name,
        "tile": entry.tile.values(),
        "baseline": {"kind": entry.baseline.kind, **entry.baseline.values()},
        "evidence": None if evidence is None else {name: getattr(evidence, name) for name in names},
        "resources": dict(entry.resources),
    }


def _entry(document: Mapping[str, Any]) -> Entry:
    baseline = dict(document["baseline"])
    kind = SkinnyTile if baseline.pop("kind") == "skinny_gemm" else LibraryGemm
    evidence = document["evidence"]
    return Entry(
        problem=GemmProblem(n=document["n"], k=document["k"], m=document["m"], name=document["name"]),
        tile=SkinnyTile.from_values(document["tile"]),
        baseline=kind.from_values(baseline),
        evidence=None if evidence is None else Evidence(**evidence),
        resources=document["resources"],
    )
