"""Kernel Tuner's strategies on recorded problems, in simulation mode. Runs in Kernel Tuner's own environment.

Reads from standard input
{"problems": {key: {"names": [...], "tiles": [[...], ...], "ms": [...], "restrictions": [...]}},
"strategies": [...], "seeds": n, "most": evaluations of one run, "folder": path}; answers one line for each problem,
strategy and seed: the tiles, by their place in the list, in the order in which they were first evaluated.
"""

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import kernel_tuner
import numpy as np
from kernel_tuner.util import read_cache

KERNEL = "__global__ void gemm() {}"


def main() -> None:
    asked = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    for key, problem in asked["problems"].items():
        cache = Path(asked["folder"]) / f"{key}.json"
        _write_cache(cache, problem)
        for strategy in asked["strategies"]:
            for seed in range(asked["seeds"]):
                order = _order(cache, problem, strategy, seed, asked["most"])
                out.write(json.dumps([key, strategy, seed, order]) + "\n")
                out.flush()


def _choices(problem: dict[str, Any]) -> dict[str, list[int]]:
    return {name: sorted({tile[axis] for tile in problem["tiles"]}) for axis, name in enumerate(problem["names"])}


def _write_cache(path: Path, problem: dict[str, Any]) -> None:
    entries = {}
    for tile, ms in zip(problem["tiles"], problem["ms"], strict=True):
        values = dict(zip(problem["names"], tile, strict=True))
        timings = {"compile_time": 0.0, "verification_time": 0.0, "benchmark_time": 0.0, "framework_time": 0.0}
        entries[",".join(map(str, tile))] = {**values, "time": ms, "times": [ms], **timings}
    document = {
        "device_name": "recorded", "kernel_name": "gemm", "problem_size": [1, 1, 1],
        "tune_params_keys": problem["names"], "tune_params": _choices(problem), "objective": "time", "cache": entries,
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=0))
    read_cache(str(path), open_cache=False)


def _order(cache: Path, problem: dict[str, Any], strategy: str, seed: int, most: int) -> list[int]:
    """What a run visits a second time does not count."""
    random.seed(seed)
    np.random.seed(seed)
    legal = {tuple(tile): place for place, tile in enumerate(problem["tiles"])}
    names = problem["names"]
    results, _ = kernel_tuner.tune_kernel(
        "gemm", KERNEL, (1, 1, 1), [], _choices(problem), lang="CUDA",
        restrictions=problem["restrictions"],
        strategy=strategy, strategy_options={"max_fevals": min(most, len(legal))}, cache=str(cache),
        simulation_mode=True, quiet=True, seed=seed,
    )  # fmt: skip
    places = [legal[tuple(result[name] for name in names)] for result in results]
    return list(dict.fromkeys(places))


if __name__ == "__main__":
    main()
