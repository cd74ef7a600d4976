"""What timings of some GEMM problems say about the tiles of another: a Gaussian process over how a tile uses the GPU.

A tile is described by what the hardware sees of it (loads in flight, steps along k, blocks on a multiprocessor, the
last wave's emptiness), not by its numbers alone, so shapes with other divisors still speak of one another. Times are
logs over the roofline. Knows no search; what was measured of the problem itself is one more argument.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from search_spaces.candidate import Candidate
from search_spaces.gemm import REGISTERS, THREAD_REGISTERS, SkinnyTile
from tuner.core.ports import Belief
from tuner.core.roofline import Gpu, floor_us
from tuner.core.workload import GemmProblem, Workload

Array = NDArray[np.float64]
Examples = Mapping[GemmProblem, Mapping[SkinnyTile, float]]  # microseconds

WORTH_LEARNING = 1.4  # times the fastest of its problem; what the slow ones do would only blur the fast ones
ROWS_APART = 2.0  # problems with up to twice, or down to half, the rows are asked
FIT_POINTS, ASKED_POINTS = 1000, 3000  # the process is cubic in them
MOST_BLOCKS, MOST_THREADS = 32, 2048  # on one multiprocessor
FIXED_REGISTERS = 20  # of a thread, for addresses and counters
LIBRARY_SD = 0.3


def describe(tiles: Sequence[SkinnyTile], problem: GemmProblem, gpu: Gpu) -> Array:
    """(tiles, features), all of them logs to the base 2."""
    raw = np.array([(t.block_size, t.outputs_per_block, t.k_unroll, t.vector_width) for t in tiles], dtype=float)
    block, columns, unroll, width = raw.T
    steps = problem.k / (block * width)
    blocks = problem.n / columns
    sums = problem.m * columns
    operands = (problem.m + columns) * width / 2 * unroll
    registers = np.clip(FIXED_REGISTERS + sums + operands, 32, THREAD_REGISTERS)
    threads = np.minimum(MOST_THREADS, REGISTERS / registers)
    resident = np.clip(np.floor(threads / block), 1, MOST_BLOCKS) * gpu.multiprocessors
    waves = blocks / resident
    one = np.ones_like(block)
    features = (
        block, columns, unroll, width,
        one * problem.m, one * problem.n, one * problem.k,
        steps, blocks, sums, registers, waves,
        np.ceil(waves) / waves,  # the last wave's emptiness
        np.ceil(steps / unroll) * unroll / steps,  # the remainder of the unrolled loop
        np.minimum(resident, blocks) * block * columns * unroll * width,  # weights in flight
    )  # fmt: skip
    described: Array = np.log2(np.stack(features, axis=1))
    return described


@dataclass(frozen=True, slots=True)
class Scales:
    """Of the process. length: a feature's.   signal, noise, shared: variances; `shared` is what one problem's tiles
    have in common."""

    length: Array
    signal: float
    noise: float
    shared: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Timings of many problems on one GPU, ready to be asked about another.

    mean, spread: of the features, for scaling.
    """

    gpu: Gpu
    examples: Examples
    mean: Array
    spread: Array
    scales: Scales
    _asked: dict[int, "_Asked"] = field(default_factory=dict, repr=False, compare=False)

    def about(
        self, problem: GemmProblem, tiles: Sequence[SkinnyTile], measured: Mapping[SkinnyTile, float] | None = None
    ) -> tuple[Array, Array]:
        """Mean and standard deviation of log microseconds, for each tile.

        measured: microseconds of tiles of this very problem, which count for more than any neighbour.
        """
        asked = self._asked.get(problem.m) or self._asked.setdefault(problem.m, self._gather(problem.m))
        z = self._scaled(describe(tiles, problem, self.gpu))
        scales = self.scales
        toward = scales.signal * _matern(z, asked.x, scales.length)[0]
        mean = asked.level + toward @ asked.weights
        half = solve_triangular(asked.lower, toward.T, lower=True, check_finite=False)
        cov = scales.signal * _matern(z, z, scales.length)[0] - half.T @ half + scales.shared
        floor = math.log(floor_us(problem, self.gpu))
        seen = [(row, measured[tile]) for row, tile in enumerate(tiles) if measured and tile in measured]
        if seen:
            rows = [row for row, _ in seen]
            gap = np.log([us for _, us in seen]) - floor - mean[rows]
            inner = cho_factor(cov[np.ix_(rows, rows)] + scales.noise * np.eye(len(rows)))
            gain = cho_solve(inner, cov[rows]).T
            mean, cov = mean + gain @ gap, cov - gain @ cov[rows]
        return mean + floor, np.sqrt(np.maximum(np.diag(cov), 1e-12))

    def ranked(
        self, problem: GemmProblem, tiles: Sequence[SkinnyTile], measured: Mapping[SkinnyTile, float] | None = None
    ) -> list[SkinnyTile]:
        """Tiles that were not measured yet, the most promising first."""
        mean, _ = self.about(problem, tiles, measured)
        return [tiles[row] for row in np.argsort(mean, kind="stable") if not measured or tiles[row] not in measured]

    def _scaled(self, features: Array) -> Array:
        scaled: Array = (features - self.mean) / self.spread
        return scaled

    def _gather(self, m: int) -> "_Asked":
        near = {p: tiles for p, tiles in self.examples.items() if abs(math.log2(p.m / m)) <= math.log2(ROWS_APART)}
        features, y, owner = _points(near or self.examples, self.gpu, np.random.default_rng(m), ASKED_POINTS)
        x, level = self._scaled(features), float(y.mean())
        scales = self.scales
        cov = scales.signal * _matern(x, x, scales.length)[0] + scales.shared * (owner[:, None] == owner)
        lower = np.linalg.cholesky(cov + scales.noise * np.eye(len(y)))
        return _Asked(x, level, lower, cho_solve((lower, True), y - level, check_finite=False))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The examples that one number of rows asks. lower: Cholesky factor.   weights: what each example adds."""

    x: Array
    level: float
    lower: Array
    weights: Array


def learn(examples: Examples, gpu: Gpu, *, seed: int = 0) -> Experience:
    """Set the scales by maximum likelihood on a sample of the examples; about 10 s on one core.

    Raises:
        ValueError: fewer than two problems; nothing can be transferred.
    """
    if len(examples) < 2:
        raise ValueError(f"to learn across problems takes at least two of them, not {len(examples)}")
    features, y, owner = _points(examples, gpu, np.random.default_rng(seed), FIT_POINTS)
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    scales = _fit((features - mean) / spread, y - y.mean(), owner)
    return Experience(gpu=gpu, examples=examples, mean=mean, spread=spread, scales=scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePrior:
    """The `Prior` port for one contest: what is believed of a tile, against the baseline.

    baseline: a tile, or a library kernel, of which the roofline is believed.
    """

    experience: Experience
    baseline: Candidate

    def __call__(self, candidate: Candidate, workloads: Sequence[Workload]) -> Belief | None:
        problems = [w for w in workloads if isinstance(w, GemmProblem)]
        if not isinstance(candidate, SkinnyTile) or len(problems) != len(workloads) or not problems:
            return None
        means, variances = [], []
        for problem in problems:
            if isinstance(self.baseline, SkinnyTile):
                mean, sd = self.experience.about(problem, [candidate, self.baseline])
                means.append(mean[1] - mean[0])
                variances.append(sd[0] ** 2)
            else:
                mean, sd = self.experience.about(problem, [candidate])
                means.append(math.log(floor_us(problem, self.experience.gpu)) - mean[0])
                variances.append(sd[0] ** 2 + LIBRARY_SD**2)
        return Belief(math.fsum(means) / len(means), math.sqrt(math.fsum(variances)) / len(variances))


def _points(examples: Examples, gpu: Gpu, rng: np.random.Generator, most: int) -> tuple[Array, Array, Array]:
    """Features, log times over the roofline, and the number of the problem each belongs to; at most `most` of them,
    as many of each problem."""
    features, y, owner = [], [], []
    share = max(2, most // len(examples))
    for number, (problem, timed) in enumerate(sorted(examples.items(), key=lambda item: item[0].key)):
        limit = WORTH_LEARNING * min(timed.values())
        tiles = [tile for tile, us in timed.items() if us <= limit]
        if len(tiles) > share:
            tiles = [tiles[row] for row in sorted(rng.choice(len(tiles), share, replace=False))]
        features.append(describe(tiles, problem, gpu))
        y.append(np.log([timed[tile] for tile in tiles]) - math.log(floor_us(problem, gpu)))
        owner.append(np.full(len(tiles), float(number)))
    return np.vstack(features), np.concatenate(y), np.concatenate(owner)


def _matern(a: Array, b: Array, length: Array) -> tuple[Array, Array]:
    """Matern 5/2 between the rows of a and b, and the factor of its derivative by the log of a length."""
    a, b = a / length, b / length
    squared = np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0.0)
    r = np.sqrt(5 * squared)
    decay = np.exp(-r)
    return (1 + r + r * r / 3) * decay, 5 / 3 * (1 + r) * decay


def _fit(x: Array, y: Array, owner: Array) -> Scales:
    """Maximum a posteriori, with a weak normal prior on the logs of the lengths."""
    count, width = x.shape
    same = (owner[:, None] == owner).astype(float)
    apart = [(x[:, i][:, None] - x[:, i]) ** 2 for i in range(width)]

    def loss(theta: Array) -> tuple[float, Array]:
        length, (signal, noise, shared) = np.exp(theta[:width]), np.exp(theta[width:])
        k, slope = _matern(x, x, length)
        factor = cho_factor(signal * k + shared * same + noise * np.eye(count), lower=True, check_finite=False)
        alpha = cho_solve(factor, y, check_finite=False)
        pull = np.outer(alpha, alpha) - cho_solve(factor, np.eye(count), check_finite=False)
        value = 0.5 * y @ alpha + np.log(np.diag(factor[0])).sum() + ((theta[:width] - 1) ** 2).sum() / 8
        steep = pull * slope * signal
        grad = [-0.5 * (steep * apart[i]).sum() / length[i] ** 2 + (theta[i] - 1) / 4 for i in range(width)]
        grad += [-0.5 * signal * (pull * k).sum(), -0.5 * noise * np.trace(pull), -0.5 * shared * (pull * same).sum()]
        return float(value), np.array(grad)

    start = np.concatenate([np.ones(width), np.log([0.1, 1e-3, 0.05])])
    bounds = [(-2.0, 4.0)] * width + [(-6.0, 3.0), (-9.5, -3.0), (-6.0, 3.0)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}).x
    signal, noise, shared = np.exp(found[width:])
    return Scales(np.exp(found[:width]), float(signal), float(noise), float(shared))
