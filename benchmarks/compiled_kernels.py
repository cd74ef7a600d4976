"""What the tuned table's tiles and our decode GEMM's fastest ones take of a multiprocessor, compiled without a GPU.

    tuner kernels compile --dsl PYTHON --vllm FOLDER --architecture sm_103a --table TABLE --json > table-103.json
    python -m benchmarks.compiled_kernels tiles > tiles.json
    tuner kernels compile --dsl PYTHON --architecture sm_103a --tiles tiles.json --json > ours-103.json
    python -m benchmarks.compiled_kernels report table-*.json ours-*.json

Nothing here was measured, on any GPU.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_decode_timing import FASTEST
from benchmarks.writing import Goal, write

FIGURES = ("kind", "m", "tile", "symbol", "registers", "local_bytes", "shared_bytes", "code_bytes", "refused", "status")


def tiles(_: argparse.Namespace) -> None:
    """Of our decode GEMM: each shape's fastest, for up to 8 and up to 16 rows."""
    chosen = [{"kind": tile.kind, "m": m, "values": tile.values()} for tile in FASTEST.values() for m in (8, 16)]
    json.dump(chosen, sys.stdout)


def report(arguments: argparse.Namespace) -> None:
    kernels = [one for path in arguments.compiled for one in json.loads(path.read_text())["kernels"]]
    write(
        "compiled_kernels",
        seconds=sum(one["compile_s"] for one in kernels),
        versions=versions(kernels),
        results={
            "status": "not_measured",
            "kernels": {name: [{f: one[f] for f in FIGURES} for one in group] for name, group in grouped(kernels)},
            "summary": {name: summary(group) for name, group in grouped(kernels)},
        },
        goals=[
            goal
            for name, group in grouped(kernels)
            for goal in (
                Goal(f"{name}: refused", "0", *_none(sum(bool(one["refused"]) for one in group))),
                Goal(f"{name}: spill", "0", *_none(sum(one["spills"] for one in group))),
            )
        ],
    )


def grouped(kernels: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """By architecture and kernel."""
    names = sorted({f"{one['architecture']} {one['kind']}" for one in kernels})
    return [(name, [one for one in kernels if f"{one['architecture']} {one['kind']}" == name]) for name in names]


def versions(kernels: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Raises SystemExit where they were compiled from several texts of one kernel, or by several compilers."""
    found = {(one["kind"], one["kernel_version"]) for one in kernels}
    compilers = {one["compiler"] for one in kernels}
    if len({kind for kind, _ in found}) != len(found) or len(compilers) != 1:
        raise SystemExit("the kernels are not of one text each, or not of one compiler")
    return {**dict(sorted(found)), "compiler": compilers.pop()}


def summary(kernels: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    made = [one for one in kernels if not one["refused"]]
    return {
        "kernels": len(kernels),
        "least_registers": min((one["registers"] for one in made), default=0),
        "most_registers": max((one["registers"] for one in made), default=0),
        "most_shared_bytes": max((one["shared_bytes"] for one in made), default=0),
    }


def _none(count: int) -> tuple[float, bool]:
    return float(count), count == 0


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(required=True)
    commands.add_parser("tiles").set_defaults(run=tiles)
    reporting = commands.add_parser("report")
    reporting.add_argument("compiled", type=Path, nargs="+", help="what `tuner kernels compile --json` printed")
    reporting.set_defaults(run=report)
    arguments = made.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
