"""Choose tiles from the first recorded passes of an H200 sweep, judge them on the last one, beside vLLM's table.

The table's tile is the baseline and a pass is a start. Two passes at most are left to choose from, and five are needed
to show anything, so the product keeps the table there. The second part therefore draws six fresh passes for each
problem from what was recorded: the tiles' means, and the problem's own spread with the tails of the whole sweep.
"""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.product_decision import NOISE_STARTS, confirm_all, rounds_order
from benchmarks.start_noise import SWEEP, Shape
from tuner.core.confirm import ALPHA
from tuner.core.paired import estimate

BASELINES = SWEEP.parent / "h200_skinny_gemm_baselines.csv"
MIN_GAIN = 0.01
DRAWS, STARTS = 200, 6
TILE = ("block_size", "outputs_per_block", "k_unroll", "vector_width")

Problem = tuple[int, int, int]
Tiles = dict[tuple[int, ...], tuple[float, ...]]


def table_tiles(path: Path = BASELINES) -> dict[Problem, tuple[int, ...]]:
    """vLLM 0.33.0's own tile by problem, where it uses this kernel."""
    with path.open(encoding="utf-8") as file:
        return {
            (int(row["n"]), int(row["k"]), int(row["m"])): tuple(int(row[name]) for name in TILE)
            for row in csv.DictReader(file)
            if row["vllm_choice"] == "cute"
        }


def recorded_choice(problems: dict[Problem, Tiles], shape: Shape) -> dict[str, Any]:
    """Gains are of time against the table's tile, above 0 faster; `slowest` and `fastest` are over the problems."""
    naive, ours, kept = [], [], 0
    drawn: list[float] = []
    found = 0
    rng = np.random.default_rng(0)
    for problem, table in table_tiles().items():
        tiles = problems[problem]
        *_, last = range(len(tiles[table]))
        fastest = min(tiles, key=lambda tile: tiles[tile][0])
        naive.append(tiles[table][last] / tiles[fastest][last] - 1)
        choice = _proved(tiles, table, last)
        kept += choice == table
        ours.append(tiles[table][last] / tiles[choice][last] - 1)
        gains = _resampled(tiles, table, shape, rng)
        found += len(gains)
        drawn += gains
    return {
        "problems": len(ours),
        "naive": {"slowest": min(naive), "fastest": max(naive), "mean": float(np.mean(naive))},
        "ours": {"slowest": min(ours), "fastest": max(ours), "mean": float(np.mean(ours)), "kept_the_table": kept},
        "ours, six passes drawn": {
            "draws": DRAWS * len(ours),
            "replaced_the_table": found / (DRAWS * len(ours)),
            "slowest": min(drawn),
            "mean_of_the_replaced": float(np.mean(drawn)),
        },
    }


def _proved(tiles: Tiles, table: tuple[int, ...], last: int) -> tuple[int, ...]:
    """The fastest tile of the passes before the last one, where those passes prove it; else the table's."""
    best = min(tiles, key=lambda tile: sum(tiles[tile][:last]))
    ratios = [theirs / mine for theirs, mine in zip(tiles[table][:last], tiles[best][:last], strict=True)]
    seen = estimate(ratios, alpha=ALPHA)
    return best if seen.p < ALPHA and seen.lower > MIN_GAIN else table


def _resampled(tiles: Tiles, table: tuple[int, ...], shape: Shape, rng: np.random.Generator) -> list[float]:
    """True gains of the tiles that replaced the table, over the draws: one pass to search, six a side to confirm."""
    logs = np.array([[math.log(us) for us in passes[:2]] for passes in tiles.values()])
    truth = -logs.mean(axis=1)
    truth -= truth[list(tiles).index(table)]
    steps = logs[:, 1] - logs[:, 0]
    spread = float(np.std(steps - np.median(steps))) / math.sqrt(2)
    finalist = (truth + shape.draw(rng, spread, (DRAWS, len(truth)))).argmax(axis=1)
    order = rounds_order(DRAWS, STARTS)
    levels = np.where(order == 1, truth[finalist][:, None], 0.0)
    levels = levels + shape.draw(rng, spread, (DRAWS, NOISE_STARTS + 2 * STARTS))
    validated = confirm_all(levels, order, min_gain=MIN_GAIN).validated
    return [float(np.expm1(gain)) for gain in truth[finalist][validated]]
