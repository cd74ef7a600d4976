"""From a kernel study's timings to what they show: a decision for each problem, the goals, and a tuned tile table.

Of what a search found only the confirmation's passes count. Where no tile is shown to be faster, nothing changes and
the ratio is 1. Rows that vLLM gives to `dsv3_fused_a` were compared with cuBLAS alone, so no tile of theirs is used.
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.h200_plan import FEW_ROWS, candidate_of, document_of, problem_of
from benchmarks.h200_timing import (
    LEAST_PASSES,
    Line,
    baseline_of,
    counts,
    geometric_mean,
    one_environment,
    read_lines,
)
from benchmarks.writing import RESULTS, Goal, write
from kernels.table import Entry, Evidence, Status, TunedTable, to_json
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.paired import estimate, holm

ALPHA = 0.05
TILED_GOAL, CUBLAS_GOAL = 1.04, 1.10
DSV3 = "dsv3_fused_a"


def decide(arguments: argparse.Namespace) -> None:
    lines = [line for path in arguments.raw for line in read_lines(path.read_text())]
    environment, rows = read_environment(lines), decided(lines)
    failures = counts([line for line in lines if line["line"] in ("search", "pass")])
    results = {
        "gpu": environment["gpu"],
        "driver": environment["driver"],
        "passes": max((row["passes"] for row in rows), default=0),
        "timings": failures,
        **summary(rows),
        "problems": rows,
    }
    path = write(
        "h200_kernels",
        seconds=arguments.device_seconds,
        versions=environment["versions"],
        results=results,
        goals=goals(rows),
    )
    table = tuned_table(environment, rows, datetime.now(UTC).date().isoformat())
    out = arguments.table or RESULTS / path.name.replace("h200_kernels", "h200_kernels_table")
    Path(out).write_text(to_json(table))
    print(f"{path}: {len(rows)} problems\n{out}: {len(table.entries)} tiles")


def read_environment(lines: Sequence[Line]) -> Line:
    """Raises SystemExit where the timings are not of one machine, or not of the kernel that was planned."""
    found = one_environment(lines)
    if found is None:
        raise SystemExit("no worker was ever open, so nothing was timed")
    made, planned = found["versions"], found["plan"]
    if made["kernel"] != planned["kernel"]:
        raise SystemExit(f"kernel {made['kernel']} was timed, and {planned['kernel']} was planned")
    return found


def decided(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """One row a problem; `ratio` is what the table would bring, and 1 where it changes nothing."""
    passes: dict[str, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        if line["line"] == "pass":
            passes[problem_of(line).key][line["pass"]] = line
    searched = [line for line in lines if line["line"] == "search"]
    return [_decided(row, [line for _, line in sorted(passes[problem_of(row).key].items())]) for row in searched]


def _decided(row: Line, passes: Sequence[Line]) -> dict[str, Any]:
    problem, baseline, stock = problem_of(row), baseline_of(row), candidate_of(row["stock"])
    searched = {candidate_of(t["candidate"]): t["us"] for t in row["timings"] if "us" in t}
    found: dict[str, Any] = {
        "n": problem.n, "k": problem.k, "m": problem.m, "name": problem.name,
        "vllm": document_of(stock), "compared_with": document_of(baseline),
        "search": {
            "tiles": sum(isinstance(c, SkinnyTile) for c in searched),
            "failed": sum("failed" in t for t in row["timings"]),
            "baseline_us": searched.get(baseline),
            "cublas_us": searched.get(LibraryGemm()),
            "best_us": min((us for c, us in searched.items() if isinstance(c, SkinnyTile)), default=None),
        },
        "passes": 0, "finalists": [], "tile": None, "ratio": 1.0,
    }  # fmt: skip
    times = [{candidate_of(t["candidate"]): t["us"] for t in line["timings"] if "us" in t} for line in passes]
    planned = {candidate_of(t["candidate"]) for line in passes for t in line["timings"]} - {baseline}
    pairs = {tile: [(t[baseline], t[tile]) for t in times if baseline in t and tile in t] for tile in planned}
    whole = {tile: pair for tile, pair in pairs.items() if len(pair) >= LEAST_PASSES}
    if not whole:
        return found
    seen = {tile: estimate([b / t for b, t in pair], alpha=ALPHA / len(planned)) for tile, pair in whole.items()}
    adjusted = holm([*(e.p for e in seen.values()), *[1.0] * (len(planned) - len(seen))])
    compared = [
        {
            "tile": document_of(tile)["values"], "gain": e.gain, "lower": e.lower,
            "upper": e.upper if math.isfinite(e.upper) else None, "p": p, "passes": len(whole[tile]),
            "us": statistics.median(t for _, t in whole[tile]),
            "baseline_us": statistics.median(b for b, _ in whole[tile]),
            "ratios": [round(b / t, 5) for b, t in whole[tile]],
        }
        for (tile, e), p in zip(seen.items(), adjusted, strict=False)
    ]  # fmt: skip
    compared.sort(key=lambda c: (-c["gain"], -c["lower"]))
    found |= {"finalists": compared, "passes": max(c["passes"] for c in compared)}
    shown = [c for c in compared if c["p"] < ALPHA and c["lower"] > 0]
    if shown:
        found |= {"tile": shown[0], "ratio": 1 + shown[0]["gain"]}
        found["read_tb_per_s"] = round(problem.weight_bytes / shown[0]["us"] / 1e6, 3)
    return found


def _vllm_runs(row: Mapping[str, Any]) -> str:
    document = row["vllm"]
    return "tile" if document["kind"] == "skinny_gemm" else str(document["values"]["backend"])


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups = {
        "vllm_has_a_tile": [r for r in rows if _vllm_runs(r) == "tile"],
        "left_to_cublas_m1_4": [r for r in rows if _vllm_runs(r) == "cublas" and r["m"] <= FEW_ROWS],
        "left_to_cublas_m5_8": [r for r in rows if _vllm_runs(r) == "cublas" and r["m"] > FEW_ROWS],
        "dsv3_fused_a_against_cublas": [r for r in rows if _vllm_runs(r) == DSV3],
    }
    return {
        name: {
            "rows": len(group),
            "rows_with_a_faster_tile": sum(r["tile"] is not None for r in group),
            "geometric_mean": geometric_mean(r["ratio"] for r in group),
            "geometric_mean_where_a_tile_is_used": geometric_mean(r["ratio"] for r in group if r["tile"]),
        }
        for name, group in groups.items()
    }


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    used = [r for r in rows if r["tile"] and _vllm_runs(r) != DSV3]
    over_tiles = [r["tile"]["lower"] for r in used if _vllm_runs(r) == "tile"]
    over_cublas = [r["tile"]["lower"] for r in used if _vllm_runs(r) == "cublas"]
    found = summary(rows)
    tiled, left = found["vllm_has_a_tile"]["geometric_mean"], found["left_to_cublas_m1_4"]["geometric_mean"]
    return [
        Goal("least lower bound of a tile's gain over vLLM's tile", "> 0", *_least(over_tiles)),
        Goal("geometric mean over the rows where vLLM has a tile", f">= {TILED_GOAL}", *_at_least(tiled, TILED_GOAL)),
        Goal("least lower bound of a tile's gain over cuBLAS", "> 0", *_least(over_cublas)),
        Goal("geometric mean over cuBLAS's rows, M 1-4", f">= {CUBLAS_GOAL:.2f}", *_at_least(left, CUBLAS_GOAL)),
    ]


def _least(bounds: Sequence[float]) -> tuple[float | None, bool]:
    return (min(bounds), min(bounds) > 0) if bounds else (None, False)


def _at_least(value: float | None, bound: float) -> tuple[float | None, bool]:
    return value, value is not None and value >= bound


def tuned_table(environment: Line, rows: Sequence[Mapping[str, Any]], date: str) -> TunedTable:
    names = ("gain", "lower", "p", "passes", "us", "baseline_us")
    entries = [
        Entry(
            problem=problem_of({"problem": {name: row[name] for name in ("n", "k", "m", "name")}}),
            tile=SkinnyTile.from_values(row["tile"]["tile"]),
            baseline=candidate_of(row["vllm"]),
            evidence=Evidence(**{name: row["tile"][name] for name in names}),
        )
        for row in rows
        if row["tile"] and _vllm_runs(row) != DSV3
    ]
    versions = dict(environment["versions"])
    return TunedTable(
        gpu=environment["gpu"],
        capability=environment["plan"]["capability"],
        driver=environment["driver"],
        vllm_version=environment["plan"]["vllm"],
        kernel_version=environment["plan"]["kernel"],
        versions={name: version for name, version in versions.items() if name not in ("kernel", "vllm")},
        status=Status.VALIDATED,
        date=date,
        entries=tuple(entries),
    )
