"""From a kernel study's timings to what they show: a decision for each problem, the goals, and a tuned tile table.

Of what a search found only the confirmation's passes count. Where no tile is shown to be faster, nothing changes and
the ratio is 1. Rows that vLLM gives to `dsv3_fused_a` were compared with cuBLAS alone, so no tile of theirs is used.
The table holds tiles of vLLM's own kernel: those alone can be given to it.
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
    group_of,
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
# Which groups of tiles an answer is about (h200_timing.group_of); the first is every one of them.
SKINNY, LATE, EARLY = "skinny_gemm", "decode_late", "decode_early"
SETS = {
    "both_kernels": (SKINNY, LATE, EARLY),
    "vllms_kernel_alone": (SKINNY,),
    "both_without_early_start": (SKINNY, LATE),
}
NOTES = (
    "The early start is flattered: a graph replays launches of one kernel back to back, so the next launch asks for "
    "its weights during the last one's tail. In a model another kernel is in front.",
    "vLLM's tiles compiled for one k (static_k) ask for their first weights early too.",
    "ratio and tile of a problem are those of the fastest shown tile of either kernel; `shown` has each group's best.",
)


def decide(arguments: argparse.Namespace) -> None:
    lines = [line for path in arguments.raw for line in read_lines(path.read_text())]
    environment, rows = read_environment(lines), decided(lines)
    failures = counts([line for line in lines if line["line"] in ("search", "pass")])
    results = {
        "gpu": environment["gpu"],
        "driver": environment["driver"],
        "notes": list(NOTES),
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
            "tiles": sum(not isinstance(c, LibraryGemm) for c in searched),
            "failed": sum("failed" in t for t in row["timings"]),
            "baseline_us": searched.get(baseline),
            "cublas_us": searched.get(LibraryGemm()),
            "best_us": min((us for c, us in searched.items() if not isinstance(c, LibraryGemm)), default=None),
        },
        "passes": 0, "finalists": [], "shown": {}, "tile": None, "ratio": 1.0,
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
            "group": group_of(tile), "tile": document_of(tile)["values"], "gain": e.gain, "lower": e.lower,
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
        best = {one["group"]: one for one in reversed(shown)}
        found |= {"shown": best, "tile": shown[0], "ratio": 1 + shown[0]["gain"]}
        found["read_tb_per_s"] = round(problem.weight_bytes / shown[0]["us"] / 1e6, 3)
    return found


def ratio_of(row: Mapping[str, Any], groups: Sequence[str]) -> float:
    """What the fastest shown tile of these groups brings; 1 where there is none."""
    return max((1.0 + row["shown"][group]["gain"] for group in groups if group in row["shown"]), default=1.0)


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
    return {name: {which: _summed(group, of) for which, of in SETS.items()} for name, group in groups.items()}


def _summed(rows: Sequence[Mapping[str, Any]], groups: Sequence[str]) -> dict[str, Any]:
    ratios = [ratio_of(row, groups) for row in rows]
    used = [ratio for ratio in ratios if ratio > 1.0]
    return {
        "rows": len(rows),
        "rows_with_a_faster_tile": len(used),
        "geometric_mean": geometric_mean(ratios),
        "geometric_mean_where_a_tile_is_used": geometric_mean(used),
    }


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    used = [r for r in rows if r["tile"] and _vllm_runs(r) != DSV3]
    found = summary(rows)
    bounds = [
        Goal(f"least lower bound of a tile's gain over {name}", "> 0", *_least([r["tile"]["lower"] for r in over]))
        for name, kind in (("vLLM's tile", "tile"), ("cuBLAS", "cublas"))
        for over in [[r for r in used if _vllm_runs(r) == kind]]
    ]
    means = [
        Goal(f"geometric mean over {name}, {which.replace('_', ' ')}", f">= {bound:.2f}", *_at_least(mean, bound))
        for name, group, bound in (
            ("the rows where vLLM has a tile", "vllm_has_a_tile", TILED_GOAL),
            ("cuBLAS's rows, M 1-4", "left_to_cublas_m1_4", CUBLAS_GOAL),
        )
        for which in SETS
        for mean in [found[group][which]["geometric_mean"]]
    ]
    return [*bounds, *means]


def _least(bounds: Sequence[float]) -> tuple[float | None, bool]:
    return (min(bounds), min(bounds) > 0) if bounds else (None, False)


def _at_least(value: float | None, bound: float) -> tuple[float | None, bool]:
    return value, value is not None and value >= bound


def tuned_table(environment: Line, rows: Sequence[Mapping[str, Any]], date: str) -> TunedTable:
    names = ("gain", "lower", "p", "passes", "us", "baseline_us")
    entries = [
        Entry(
            problem=problem_of({"problem": {name: row[name] for name in ("n", "k", "m", "name")}}),
            tile=SkinnyTile.from_values(row["shown"][SKINNY]["tile"]),
            baseline=candidate_of(row["vllm"]),
            evidence=Evidence(**{name: row["shown"][SKINNY][name] for name in names}),
        )
        for row in rows
        if SKINNY in row["shown"] and _vllm_runs(row) != DSV3
    ]
    versions = dict(environment["versions"])
    return TunedTable(
        gpu=environment["gpu"],
        capability=environment["plan"]["capability"],
        driver=environment["driver"],
        vllm_version=environment["plan"]["vllm"],
        kernel_version=environment["plan"]["kernel"],
        versions={
            name: version for name, version in versions.items() if name not in ("kernel", "decode_kernel", "vllm")
        },
        status=Status.VALIDATED,
        date=date,
        entries=tuple(entries),
    )
