"""Simulated engine starts: drift, start effects, run noise with the tails that were measured, outliers.

Every value is the log of a throughput, relative to the baseline's at the beginning. The shape of the run noise is
fitted to recorded timings on one H200 (kernels/data); its size, and that of the start effects, are what a cell varies.
"""

import csv
import gzip
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SWEEP = Path(__file__).parents[1] / "kernels" / "data" / "h200_skinny_gemm_sweep.csv.gz"
# Output tokens/s of three runs in one start each: one H200, vLLM 0.25.1, Qwen3-8B-sized dummy weights, 16 tokens in,
# 256 out, DSpark with 0, 3, 4, 5 and 7 drafts, 2026-12-01; by concurrency.
ENGINE_RUNS: dict[int, tuple[tuple[float, float, float], ...]] = {
    1: ((188, 189, 189), (463, 470, 472), (529, 521, 534), (554, 548, 554), (603, 589, 599)),
    8: ((1435, 1449, 1464), (3131, 3408, 3165), (731, 878, 777), (675, 649, 695), (3299, 3089, 3346)),
    32: ((5003, 5220, 5186), (3662, 4136, 3461), (3299, 3137, 3345), (3850, 3856, 3980), (2750, 4163, 2784)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Run noise as two normal distributions: `tail_share` of the runs from one that is `tail_ratio` times as wide."""

    tail_share: float = 0.0
    tail_ratio: float = 1.0

    def draw(self, rng: np.random.Generator, sd: float, size: tuple[int, ...]) -> Array:
        """Noise whose standard deviation is `sd` in all."""
        core = sd / math.sqrt(1 + self.tail_share * (self.tail_ratio**2 - 1))
        wide = rng.random(size) < self.tail_share
        return rng.standard_normal(size) * core * np.where(wide, self.tail_ratio, 1.0)


NORMAL = Shape()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """run_sd, start_sd: of the log of one run, and of what a start draws for its life.   outlier_share: of runs, each
    slower by 5 to 30 %.   trend: largest drift from one start to the next, either way, the same for a whole study
    (0.001 is 4 % over 40 starts).   walk_sd: of the random step that is added to it."""

    run_sd: float
    start_sd: float
    shape: Shape
    outlier_share: float = 0.005
    trend: float = 0.001
    walk_sd: float = 0.001

    def starts(self, rng: np.random.Generator, truths: Array, runs: int) -> Array:
        """Logs of runs: (studies, starts, runs) for truths (studies, starts) in order of time."""
        studies, count = truths.shape
        drift = rng.uniform(-self.trend, self.trend, (studies, 1)) * np.arange(count)
        drift = drift + np.cumsum(rng.normal(0, self.walk_sd, (studies, count)), axis=1)
        # One of three sets of kernels and clocks, drawn at the start, with the standard deviation that was asked for.
        drawn = rng.integers(-1, 2, (studies, count)) * self.start_sd * math.sqrt(1.5)
        noise = self.shape.draw(rng, self.run_sd, (studies, count, runs))
        slow = np.log1p(-rng.uniform(0.05, 0.30, noise.shape)) * (rng.random(noise.shape) < self.outlier_share)
        logs: Array = (truths + drift + drawn)[:, :, None] + noise + slow
        return logs


def start_levels(runs: Array) -> Array:
    """Log of the average of each start's runs."""
    levels: Array = np.log(np.exp(runs).mean(axis=-1))
    return levels


def recorded_sweep(path: Path = SWEEP) -> dict[tuple[int, int, int], dict[tuple[int, ...], tuple[float, ...]]]:
    """Microseconds of each pass by problem (n, k, m) and tile (block, outputs per block, unroll, vector width)."""
    problems: dict[tuple[int, int, int], dict[tuple[int, ...], tuple[float, ...]]] = defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tile = tuple(int(row[c]) for c in ("block_size", "outputs_per_block", "k_unroll", "vector_width"))
            passes = tuple(float(row[c]) for c in ("us_1", "us_2", "us_3") if row[c])
            problems[int(row["n"]), int(row["k"]), int(row["m"])][tile] = passes
    return dict(problems)


def residuals(problems: dict[tuple[int, int, int], dict[tuple[int, ...], tuple[float, ...]]]) -> tuple[Array, Array]:
    """Log differences between the first two passes of each tile: by problem what all its tiles share (its median),
    and by tile what is left."""
    shared, left = [], []
    for tiles in problems.values():
        steps = np.array([math.log(passes[1] / passes[0]) for passes in tiles.values()])
        shared.append(float(np.median(steps)))
        left.append(steps - shared[-1])
    return np.array(shared), np.concatenate(left)


def fit_shape(differences: Array, rounds: int = 200) -> tuple[Shape, float]:
    """Two normals around 0 by expectation maximisation. Returns the shape of one timing and its standard deviation.

    A difference is wide where one of its two timings is (both are rarely), so one timing has half the share, and the
    variance of a wide difference is that of one narrow and one wide timing.
    """
    share, narrow, wide = 0.1, float(np.std(differences)) / 2, float(np.std(differences)) * 2
    for _ in range(rounds):
        near = (1 - share) / narrow * np.exp(-0.5 * (differences / narrow) ** 2)
        far = share / wide * np.exp(-0.5 * (differences / wide) ** 2)
        belief = far / (near + far)
        share = float(belief.mean())
        narrow = math.sqrt(float(((1 - belief) * differences**2).sum() / (1 - belief).sum()))
        wide = math.sqrt(float((belief * differences**2).sum() / belief.sum()))
    ratio = math.sqrt(max(1.0, 2 * (wide / narrow) ** 2 - 1))
    return Shape(tail_share=share / 2, tail_ratio=ratio), float(np.std(differences)) / math.sqrt(2)


def engine_run_sd() -> dict[int, float]:
    """Standard deviation of the log of one run within a start, by concurrency."""
    return {
        concurrency: math.sqrt(float(np.mean([np.var(np.log(runs), ddof=1) for runs in starts])))
        for concurrency, starts in ENGINE_RUNS.items()
    }
