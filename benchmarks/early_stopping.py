"""How often a search stops while it still misses a gain of 5 %, and how many trials it saves where there is none.

    python -m benchmarks.early_stopping [--searches 400] [--seed 0]

Simulated searches of 180 candidates (options of 5, 4, 3 and 3 values) in random order with 120 trials, the baseline
again after every eighth, as the product runs them; `tuner.core.stopping` decides. The spaces:
- nothing: no candidate differs from the baseline.
- one value: an option has one value that gains 5 %, wherever it is.
- two values: two options have one value each that gain 5 % together and nothing alone (1 in 9 to 1 in 20 candidates).
- effects: every value of every option does something (2 % each), every candidate a little besides (0.5 %).
- needle: one candidate gains 5 %, and nothing about any other tells of it.
"""

import argparse
import platform
import time
from itertools import product
from typing import Any

import numpy as np
import scipy

from benchmarks.start_noise import Array
from benchmarks.writing import Goal, write
from tuner.core.contest import BASELINES_NEEDED, LEAST_NOISE
from tuner.core.paired import start_spread
from tuner.core.plan import DRIFT_EVERY
from tuner.core.stopping import Known, why_stop

SHAPE = (5, 4, 3, 3)
POINTS = np.array(list(product(*map(range, SHAPE))), dtype=np.int32)
BUDGET = 120
GAIN = np.log(1.05)
NOISES = (0.005, 0.01, 0.02, 0.03)  # standard deviation of the log of one start
SPACES = ("nothing", "one value", "two values", "effects", "needle")
STRUCTURED = ("one value", "two values", "effects")


def truth(space: str, rng: np.random.Generator) -> Array:
    """By candidate, the log of its true ratio to the baseline, which is the first."""
    found: Array = np.zeros(len(POINTS))
    if space == "one value":
        option = int(rng.integers(len(SHAPE)))
        found[POINTS[:, option] == rng.integers(1, SHAPE[option])] = GAIN
    elif space == "two values":
        one, other = rng.choice(len(SHAPE), 2, replace=False)
        at = POINTS[:, one] == rng.integers(1, SHAPE[one])
        found[at & (POINTS[:, other] == rng.integers(1, SHAPE[other]))] = GAIN
    elif space == "effects":
        for option, values in enumerate(SHAPE):
            found = found + rng.normal(0, 0.02, values)[POINTS[:, option]]
        found = found + rng.normal(0, 0.005, len(POINTS))
        found = found - found[0]
    elif space == "needle":
        found[rng.integers(1, len(POINTS))] = GAIN
    return found


def search(levels: Array, noise: float, rng: np.random.Generator) -> tuple[int, float, bool]:
    """Trials until it stopped, by how much the best untried candidate is better than the best of the tried ones and
    the baseline, and whether it stopped early."""
    order = 1 + rng.permutation(len(levels) - 1)
    baselines = [float(np.exp(rng.normal(0, noise)))]
    tried: list[int] = []
    values: list[float] = []
    stopped = False
    for number, row in enumerate(map(int, order[:BUDGET]), start=1):
        tried.append(row)
        values.append(float(levels[row] + rng.normal(0, noise * np.sqrt(5 / 3))))
        if number % DRIFT_EVERY == 0 and number < BUDGET:
            baselines.append(float(np.exp(rng.normal(0, noise))))
            spread = start_spread(baselines) if len(baselines) >= BASELINES_NEEDED else None
            if spread is not None and _stops(tried, values, max(LEAST_NOISE, spread)):
                stopped = True
                break
    left = np.setdiff1d(np.arange(1, len(levels)), tried)
    return number, float(levels[left].max() - max(0.0, levels[tried].max())), stopped


def _stops(tried: list[int], values: list[float], noise: float) -> bool:
    known = Known(
        points=POINTS,
        believed=np.zeros(len(POINTS)),
        tried=np.array(tried, dtype=np.intp),
        values=np.array(values),
        feasible=np.ones(len(tried), dtype=bool),
        baseline_feasible=True,
        left=np.setdiff1d(np.arange(1, len(POINTS)), tried),
        trials=BUDGET - len(tried),
        noise=noise,
    )
    return bool(why_stop(known))


def cell(space: str, noise: float, searches: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, SPACES.index(space), round(1e4 * noise)])
    runs = [search(truth(space, rng), noise, rng) for _ in range(searches)]
    trials = np.array([number for number, _, _ in runs])
    missed = np.array([stopped and left >= GAIN - 1e-9 for _, left, stopped in runs])
    return {
        "space": space,
        "noise": noise,
        "trials": float(trials.mean()),
        "stopped early": float(np.mean([stopped for *_, stopped in runs])),
        "stopped while 5 % were left": float(missed.mean()),
        "left": float(np.mean([max(0.0, left) for _, left, _ in runs])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began = time.monotonic()
    cells = []
    for space, noise in product(SPACES, NOISES):
        cells.append(cell(space, noise, asked.searches, asked.seed))
        print(", ".join(f"{n} {v:.3g}" if isinstance(v, float) else f"{v}" for n, v in cells[-1].items()), flush=True)
    worst = max(c["stopped while 5 % were left"] for c in cells if c["space"] in STRUCTURED)
    most = max(c["trials"] for c in cells if c["space"] == "nothing")
    write(
        "early-stopping",
        seconds=time.monotonic() - began,
        versions={"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
        results={"searches_a_cell": asked.searches, "candidates": len(POINTS), "budget": BUDGET, "cells": cells},
        goals=[
            Goal("stopped while 5 % were untried, structured spaces, worst cell", "<= 0.05", worst, worst <= 0.05),
            Goal("trials of 120 where no candidate differs, worst cell", "<= 60", most, most <= BUDGET / 2),
        ],
    )


if __name__ == "__main__":
    main()
