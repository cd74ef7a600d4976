"""The sweeps that are shipped: every legal tile of vLLM's skinny GEMM on one H200, as examples to learn from.

h200_skinny_gemm_sweep.csv.gz: 11,568 tiles of 12 shapes, M 1-8, two or three independent timings each (vLLM 0.33.0's
kernel, CUDA graph replay over weights larger than L2, driver 580, nvidia-cutlass-dsl 4.8.1, 2026-12-01).
h200_skinny_gemm_baselines.csv: cuBLAS, and what vLLM's own table chooses, for the same problems.
"""

import csv
from functools import cache
from pathlib import Path

from kernels.transfer import Examples, Experience, learn
from search_spaces.gemm import LIBRARY, LibraryGemm, SkinnyTile
from tuner.core.recorded import Recorded, Recording, key_of, load
from tuner.core.roofline import H200
from tuner.core.workload import GemmProblem

DATA = Path(__file__).parent / "data"
H200_SWEEP = DATA / "h200_skinny_gemm_sweep.csv.gz"
H200_BASELINES = DATA / "h200_skinny_gemm_baselines.csv"


@cache
def h200_sweep() -> Recording:
    return load(H200_SWEEP)


@cache
def h200_recording() -> Recording:
    """The sweep, and cuBLAS beside its tiles."""
    found = {key: dict(entries) for key, entries in h200_sweep().entries.items()}
    with H200_BASELINES.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            problem = GemmProblem(n=int(row["n"]), k=int(row["k"]), m=int(row["m"]))
            values = LibraryGemm().values()
            passes = tuple(float(row[name]) for name in ("cublas_us_1", "cublas_us_2") if row[name])
            found.setdefault(problem.key, {})[key_of(LIBRARY, values)] = Recorded(LIBRARY, values, passes)
    return Recording(source=H200_SWEEP.name, entries=found)


@cache
def h200_examples() -> Examples:
    """Mean microseconds of each tile, by problem."""
    examples: dict[GemmProblem, dict[SkinnyTile, float]] = {}
    for key, entries in h200_sweep().entries.items():
        timed = {SkinnyTile.from_values(entry.values): entry.mean_us for entry in entries.values() if entry.us}
        examples[problem_of(key)] = timed
    return examples


@cache
def h200_experience() -> Experience:
    """All that was recorded on the H200."""
    return learn(h200_examples(), H200)


@cache
def h200_experience_without(n: int, k: int) -> Experience:
    """What was recorded of the other shapes: for replaying this one without having seen it."""
    return learn({p: timed for p, timed in h200_examples().items() if (p.n, p.k) != (n, k)}, H200)


def h200_stock() -> dict[GemmProblem, SkinnyTile | LibraryGemm]:
    """What vLLM 0.33.0's table runs on an H200 for each recorded problem."""
    with H200_BASELINES.open(encoding="utf-8") as file:
        return {
            GemmProblem(n=int(row["n"]), k=int(row["k"]), m=int(row["m"])): _choice(row) for row in csv.DictReader(file)
        }


def problem_of(key: str) -> GemmProblem:
    """The inverse of `GemmProblem.key`."""
    shape, rows, dtype = key.split("-")
    n, k = shape.split("x")
    return GemmProblem(n=int(n), k=int(k), m=int(rows.removeprefix("m")), dtype=dtype)


def _choice(row: dict[str, str]) -> SkinnyTile | LibraryGemm:
    if row["vllm_choice"] != "cute":
        return LibraryGemm(backend=row["vllm_choice"])
    names = ("block_size", "outputs_per_block", "k_unroll", "vector_width")
    return SkinnyTile(**{name: int(row[name]) for name in names})
