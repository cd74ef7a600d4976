"""Our decode GEMM on one H200 beside cuBLAS and vLLM's skinny GEMM: one timing pass, so nothing of it is validated.

    python -m benchmarks.h200_decode_gemm compile --dsl PYTHON --vllm FOLDER --runtimes FOLDER -o kernels.so
    python -m benchmarks.h200_decode_gemm time    --engine PYTHON --vllm FOLDER --library kernels.so -o raw.jsonl
    python -m benchmarks.h200_decode_gemm report  raw.jsonl

Only `time` needs the GPU; it compiles what no `--library` brings. The best of many tiles is taken from the pass that
compares them, which flatters whoever has more of them.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.h200_decode_timing import CUBLAS, OURS, VLLM_BEST, VLLM_TABLE, compile_tiles_of, time_all
from benchmarks.h200_timing import Line, absolute, geometric_mean, one_environment, read_lines
from benchmarks.writing import Goal, write
from kernels.targets import DECODE_TARGET, SKINNY_TARGET
from tuner.core.workload import GemmProblem

LARGE_BYTES = 40_000_000
BANDWIDTH_GOAL, FEW_GOAL, TILED_GOAL = 0.9, 1.10, 1.04
FEW_ROWS = 4
NOTES = (
    "One timing pass: no tile was confirmed on an independent one, so nothing is validated.",
    "The best of many tiles of ours is taken from the same pass that is reported, beside one or two of vLLM's and one "
    "run of cuBLAS; that flatters ours.",
    "The early start is flattered: a graph replays launches of one kernel back to back, so the next launch asks for "
    "its weights during the last one's tail. In a model another kernel is in front.",
    "early and late have their own fastest tiles; early_start_on_the_same_tile compares like with like.",
    "The bandwidth is the largest that any candidate reached on any problem: a lower bound of what can be read, so "
    "shares of it are upper bounds.",
)


def report(arguments: argparse.Namespace) -> None:
    lines = [line for path in arguments.raw for line in read_lines(path.read_text())]
    environment, timings = environment_of(lines, arguments), [line for line in lines if "who" in line]
    rows = rows_of(timings)
    results = {
        "gpu": environment["gpu"],
        "driver": environment["driver"],
        "status": "one_pass_not_validated",
        "notes": [*NOTES, *arguments.note],
        "timings": {name: sum(t.get("failed", "timed") == name for t in timings) for name in outcomes(timings)},
        "read_tb_per_s_at_least": bandwidth(timings),
        **summary(rows, timings),
        "problems": rows,
    }
    path = write(
        "h200_decode_gemm",
        seconds=arguments.device_seconds,
        versions=environment["versions"],
        results=results,
        goals=goals(rows),
    )
    print(f"{path}: {len(rows)} problems")


def environment_of(lines: Sequence[Line], arguments: argparse.Namespace) -> Line:
    """Of the recording; a recording that has none is told what it was made on.

    Raises:
        SystemExit: nobody says, or the timings are of two machines.
    """
    found = one_environment(lines)
    if found is not None:
        return found
    if not (arguments.gpu and arguments.driver and arguments.version):
        raise SystemExit("the recording does not say where it was made: name --gpu, --driver and each --version")
    return {
        "gpu": arguments.gpu,
        "driver": arguments.driver,
        "versions": dict(text.split("=", 1) for text in arguments.version),
    }


def outcomes(timings: Iterable[Line]) -> list[str]:
    return sorted({line.get("failed", "timed") for line in timings})


def rows_of(timings: Sequence[Line]) -> list[dict[str, Any]]:
    """One row a problem: the fastest of each side, and its share of what was read at most."""
    most = bandwidth(timings)
    by_problem: dict[tuple[int, int, int], list[Line]] = defaultdict(list)
    for line in timings:
        if "failed" not in line:
            by_problem[line["n"], line["k"], line["m"]].append(line)
    rows = []
    for (n, k, m), lines in sorted(by_problem.items()):
        problem = GemmProblem(n=n, k=k, m=m)
        sides = {
            CUBLAS: [line for line in lines if line["who"] == CUBLAS],
            VLLM_TABLE: [line for line in lines if line["who"] == VLLM_TABLE],
            VLLM_BEST: [line for line in lines if line["who"] in (VLLM_TABLE, VLLM_BEST)],
            "early": [line for line in lines if line["who"] == OURS and line["values"]["early"]],
            "late": [line for line in lines if line["who"] == OURS and not line["values"]["early"]],
        }
        rows.append(
            {
                "n": n, "k": k, "m": m, "weight_bytes": problem.weight_bytes,
                **{name: _fastest(side, problem, most) for name, side in sides.items()},
            }
        )  # fmt: skip
    return rows


def _fastest(lines: Sequence[Line], problem: GemmProblem, most: float) -> dict[str, Any] | None:
    if not lines:
        return None
    best = min(lines, key=_us)
    read = problem.weight_bytes / _us(best) / 1e6
    return {
        "us": round(_us(best), 4),
        "us_replays": [round(us, 4) for us in best["us"]],
        "read_tb_per_s": round(read, 3),
        "share_of_read_bandwidth": round(read / most, 4),
        "tiles_timed": len(lines),
        "tile": best["values"],
    }


def _us(line: Line) -> float:
    return statistics.median(line["us"])


def bandwidth(timings: Iterable[Line]) -> float:
    """TB/s of weights, the most that any candidate read on any problem."""
    return max(2e-6 * line["n"] * line["k"] / _us(line) for line in timings if "failed" not in line)


def summary(rows: Sequence[Mapping[str, Any]], timings: Sequence[Line]) -> dict[str, Any]:
    groups: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "m1_4": lambda row: row["m"] <= FEW_ROWS,
        "m5_16": lambda row: row["m"] > FEW_ROWS,
    }
    found: dict[str, Any] = {
        f"{ours}_times_faster_than_{other}": {
            name: ratio_of([row for row in rows if chosen(row)], ours, other) for name, chosen in groups.items()
        }
        for ours in ("early", "late")
        for other in (CUBLAS, VLLM_TABLE, VLLM_BEST)
    }
    return found | {"early_start_on_the_same_tile": early_start(timings)}


def ratio_of(rows: Iterable[Mapping[str, Any]], ours: str, other: str) -> dict[str, Any]:
    """Over the rows that have both: how often ours is faster, and the geometric mean of how many times."""
    ratios = [row[other]["us"] / row[ours]["us"] for row in rows if row[ours] and row[other]]
    return {
        "rows": len(ratios),
        "faster": sum(ratio > 1 for ratio in ratios),
        "geometric_mean": geometric_mean(ratios),
        "least": min(ratios, default=None),
    }


def early_start(timings: Iterable[Line]) -> dict[str, Any]:
    """How many times faster a tile is with the early start than without, where both were timed."""
    both: dict[tuple[Any, ...], dict[bool, float]] = defaultdict(dict)
    for line in timings:
        if line["who"] == OURS and "failed" not in line:
            values = dict(line["values"])
            early = values.pop("early")
            both[line["n"], line["k"], line["m"], *sorted(values.items())][early] = _us(line)
    ratios = [us[False] / us[True] for us in both.values() if len(us) == 2]
    return {
        "tiles": len(ratios),
        "faster": sum(ratio > 1 for ratio in ratios),
        "geometric_mean": geometric_mean(ratios),
        "least": min(ratios, default=None),
        "most": max(ratios, default=None),
    }


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    large = [row for row in rows if row["weight_bytes"] > LARGE_BYTES and row["early"]]
    shares = [row["early"]["share_of_read_bandwidth"] for row in large]
    few = [row for row in rows if row["m"] <= FEW_ROWS]
    many = [row for row in rows if row["m"] > FEW_ROWS]
    values = (
        ("least share of the read bandwidth, weights above 40 MB", min(shares, default=None), BANDWIDTH_GOAL),
        ("mean share of the read bandwidth, weights above 40 MB", geometric_mean(shares), BANDWIDTH_GOAL),
        ("geometric mean against cuBLAS, M 1-4", ratio_of(few, "early", CUBLAS)["geometric_mean"], FEW_GOAL),
        ("geometric mean against cuBLAS, M 5-16", ratio_of(many, "early", CUBLAS)["geometric_mean"], 1.0),
        ("geometric mean against vLLM's tile, M 1-4", ratio_of(few, "early", VLLM_TABLE)["geometric_mean"], TILED_GOAL),
    )
    return [Goal(name, f">= {bound:g}", value, value is not None and value >= bound) for name, value, bound in values]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(required=True)
    compiling = commands.add_parser("compile")
    compiling.add_argument("--dsl", type=absolute, required=True, help="an interpreter that has nvidia-cutlass-dsl")
    compiling.add_argument("--architecture", default="sm_90a")
    compiling.add_argument("--processes", type=int, default=2)
    compiling.add_argument(
        "--runtimes",
        type=absolute,
        action="append",
        required=True,
        help="folders of the DSL's and tvm-ffi's libraries",
    )
    compiling.set_defaults(run=compile_tiles_of)
    timing = commands.add_parser("time")
    timing.add_argument("--engine", type=absolute, required=True)
    timing.add_argument("--library", type=absolute, help="what `compile` linked")
    timing.add_argument("--runtime", type=absolute, help="libcute_dsl_runtime.so, which the library needs")
    timing.add_argument("--targets", nargs=2, default=[DECODE_TARGET, SKINNY_TARGET], help="ours and vLLM's")
    timing.add_argument("--device", default="cuda")
    timing.add_argument("--seconds", type=float, default=500.0)
    timing.set_defaults(run=time_all)
    for command in (compiling, timing):
        command.add_argument("--vllm", type=absolute, required=True)
        command.add_argument(
            "--path", type=absolute, action="append", default=[], help="further folders for its PYTHONPATH"
        )
        command.add_argument("--tiles", type=int, default=22, help="of ours, for each shape")
        command.add_argument("-o", "--output", type=absolute, required=True)
    reporting = commands.add_parser("report")
    reporting.add_argument("raw", type=absolute, nargs="+")
    reporting.add_argument("--device-seconds", type=float, default=0.0, help="for which the GPU was held; 0: not known")
    reporting.add_argument("--gpu", help="where the recording does not say")
    reporting.add_argument("--driver", help="where the recording does not say")
    reporting.add_argument("--version", action="append", default=[], help="NAME=VERSION, likewise")
    reporting.add_argument("--note", action="append", default=[], help="what else must be known of the recording")
    reporting.set_defaults(run=report)
    return made


def main() -> None:
    arguments = parser().parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
