"""Evaluations until a tile is within 1 % of the best mean time, on the recorded H200 sweep, beside other searches.

    python -m benchmarks.kernel_search [--kernel-tuner PYTHON] [--seeds 20]

Leave one shape out: before a shape's problems are searched, the prior learns from the other shapes alone. Every search
sees the recorded mean of a tile. PYTHON is an interpreter that has Kernel Tuner 1.5; without it that side is left out,
and the result says so.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import optuna

from benchmarks.writing import Goal, write
from kernels.sweeps import h200_examples
from kernels.transfer import Experience, learn
from search_spaces.candidate import candidate_key
from search_spaces.gemm import SkinnyTile
from tuner.core.ports import Belief
from tuner.core.roofline import H200
from tuner.core.search import Search
from tuner.core.workload import GemmProblem

WITHIN = 1.01
MOST = 100  # evaluations of one run; a run that has not arrived by then counts as 100, which flatters it
STRATEGIES = (
    "random_sample", "simulated_annealing", "genetic_algorithm", "greedy_ils", "mls", "dual_annealing", "bayes_opt",
)  # fmt: skip
OURS, PRIOR, AVERAGE = "ours", "the prior alone, re-ranked by what was measured", "average of the neighbouring problems"

Timed = Mapping[SkinnyTile, float]


def arrival(order: Iterator[SkinnyTile] | Sequence[SkinnyTile], timed: Timed) -> int:
    """Which evaluation is the first within 1 % of the best."""
    goal = WITHIN * min(timed.values())
    for count, tile in enumerate(order, start=1):
        if timed[tile] <= goal:
            return count
        if count == MOST:
            break
    return MOST


def random_order(timed: Timed, seed: int) -> Iterator[SkinnyTile]:
    tiles = list(timed)
    yield from (tiles[place] for place in np.random.default_rng(seed).permutation(len(tiles)))


def searched(timed: Timed, seed: int, beliefs: Mapping[str, Belief]) -> Iterator[SkinnyTile]:
    """The product's search; told of log ratios to a tile in the middle, as it is of ratios to a baseline."""
    search = Search(candidates=list(timed), trials=min(MOST, len(timed) - 1), seed=seed, beliefs=beliefs)
    middle = float(np.median(list(timed.values())))
    while (choice := search.ask()) is not None:
        assert isinstance(choice.candidate, SkinnyTile)
        yield choice.candidate
        search.tell(candidate_key(choice.candidate), float(np.log(middle / timed[choice.candidate])))


def tpe(timed: Timed, seed: int) -> Iterator[SkinnyTile]:
    """Optuna's TPE on its own: a proposal that is illegal, or was measured, is told again and not counted."""
    by_values = {tuple(tile.values().values()): tile for tile in timed}
    axes = [sorted(set(column)) for column in zip(*by_values, strict=True)]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    seen: set[SkinnyTile] = set()
    for _ in range(20 * MOST):
        trial = study.ask()
        values = tuple(trial.suggest_categorical(f"x{axis}", choices) for axis, choices in enumerate(axes))
        tile = by_values.get(values)
        if tile is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        if tile not in seen:
            seen.add(tile)
            yield tile
        study.tell(trial, timed[tile])


def reranked(experience: Experience, problem: GemmProblem, timed: Timed) -> Iterator[SkinnyTile]:
    measured: dict[SkinnyTile, float] = {}
    while left := experience.ranked(problem, list(timed), measured):
        yield left[0]
        measured[left[0]] = timed[left[0]]


def averaged(others: Mapping[GemmProblem, Timed], problem: GemmProblem, timed: Timed) -> list[SkinnyTile]:
    """By the mean of each tile's time over the best of its problem, over other shapes with about as many rows."""
    near = [tiles for other, tiles in others.items() if 0.5 <= other.m / problem.m <= 2]
    ratios = {
        tile: [tiles[tile] / min(tiles.values()) for tiles in near if tile in tiles] or [np.inf] for tile in timed
    }
    return sorted(timed, key=lambda tile: float(np.mean(ratios[tile])))


def kernel_tuner(
    python: Path, examples: Mapping[GemmProblem, Timed], seeds: int, folder: Path
) -> subprocess.Popen[str]:
    names = ["block_size", "outputs_per_block", "k_unroll", "vector_width"]
    problems = {
        problem.key: {
            "names": names,
            "tiles": [[tile.values()[name] for name in names] for tile in timed],
            "ms": [us / 1000 for us in timed.values()],
            "restrictions": [
                f"{problem.k} % (block_size * vector_width) == 0", f"{problem.n} % outputs_per_block == 0",
            ],
        }
        for problem, timed in examples.items()
    }  # fmt: skip
    asked = {"problems": problems, "strategies": STRATEGIES, "seeds": seeds, "most": MOST, "folder": str(folder)}
    (folder / "asked.json").write_text(json.dumps(asked))
    with (
        (folder / "asked.json").open() as stdin,
        (folder / "answers").open("w") as out,
        (folder / "log").open("w") as log,
    ):
        return subprocess.Popen(
            [python, Path(__file__).with_name("kernel_tuner_side.py")], stdin=stdin, stdout=out, stderr=log, text=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel-tuner", type=Path, help="an interpreter that has Kernel Tuner")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    begun, seeds = time.monotonic(), arguments.seeds
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    examples = h200_examples()
    found: dict[str, list[int]] = defaultdict(list)
    versions = {"optuna": version("optuna"), "numpy": version("numpy")}
    with tempfile.TemporaryDirectory() as folder:
        side = None
        if arguments.kernel_tuner:
            side = kernel_tuner(arguments.kernel_tuner, examples, seeds, Path(folder))
            versions["kernel-tuner"] = _version_in(arguments.kernel_tuner)
        for shape in sorted({(problem.n, problem.k) for problem in examples}):
            _one_shape(shape, examples, seeds, found)
            print(shape, {name: float(np.median(counts)) for name, counts in found.items()}, flush=True)
        if side is not None:
            if side.wait() != 0:
                raise SystemExit((Path(folder) / "log").read_text()[-4000:])
            _read_kernel_tuner(Path(folder) / "answers", examples, found)
    summary = {name: _summary(counts) for name, counts in found.items()}
    for name, figures in summary.items():
        print(f"{name:50} {figures}")
    ours = summary[OURS]
    write(
        "kernel_search",
        seconds=time.monotonic() - begun,
        versions=versions,
        results={
            "problems": len(examples), "seeds": seeds, "cap": MOST, "evaluations": summary,
            "not_run": [] if side is not None else ["Kernel Tuner: no interpreter was given that has it"],
        },
        goals=[
            Goal("median evaluations to within 1 %", "<= 8", ours["median"], ours["median"] <= 8),
            Goal("90th percentile", "<= 24", ours["p90"], ours["p90"] <= 24),
        ],
    )  # fmt: skip


def _one_shape(
    shape: tuple[int, int], examples: Mapping[GemmProblem, Timed], seeds: int, found: dict[str, list[int]]
) -> None:
    others = {problem: timed for problem, timed in examples.items() if (problem.n, problem.k) != shape}
    experience = learn(others, H200)
    for problem in (problem for problem in examples if (problem.n, problem.k) == shape):
        timed = examples[problem]
        tiles = list(timed)
        mean, sd = experience.about(problem, tiles)
        beliefs = {candidate_key(t): Belief(-float(u), float(s)) for t, u, s in zip(tiles, mean, sd, strict=True)}
        found[PRIOR].append(arrival(reranked(experience, problem, timed), timed))
        found[AVERAGE].append(arrival(averaged(others, problem, timed), timed))
        for seed in range(seeds):
            found[OURS].append(arrival(searched(timed, seed, beliefs), timed))
            found["ours without the prior"].append(arrival(searched(timed, seed, {}), timed))
            found["random"].append(arrival(random_order(timed, seed), timed))
            found["Optuna TPE"].append(arrival(tpe(timed, seed), timed))


def _read_kernel_tuner(path: Path, examples: Mapping[GemmProblem, Timed], found: dict[str, list[int]]) -> None:
    by_key = {problem.key: timed for problem, timed in examples.items()}
    for line in path.read_text().splitlines():
        key, strategy, _, order = json.loads(line)
        tiles = list(by_key[key])
        found[f"Kernel Tuner {strategy}"].append(arrival([tiles[place] for place in order], by_key[key]))


def _summary(counts: Sequence[int]) -> dict[str, float]:
    return {
        "median": float(np.median(counts)), "p90": float(np.percentile(counts, 90)), "mean": float(np.mean(counts)),
        "runs": len(counts), "runs_at_the_cap": sum(count >= MOST for count in counts),
    }  # fmt: skip


def _version_in(python: Path) -> str:
    code = "from importlib.metadata import version; print(version('kernel-tuner'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
