"""Our own decode GEMM on a problem and a GPU: its tiles, and how many bytes each keeps on their way.

The kernel's text is tuner_inside/decode_gemm.py, since it is compiled in the engine's interpreter; what its tiles mean
and which are legal is search_spaces/decode_gemm.py.
"""

import math

from search_spaces.decode_gemm import DecodeTile, decode_space
from search_spaces.gemm import MAX_SMEM_BYTES, REGISTERS, WARP, LibraryGemm, SkinnyTile
from search_spaces.space import Space
from tuner.core.roofline import Gpu
from tuner.core.workload import GemmProblem

RESERVED_SMEM_BYTES = 1024  # of each block, by the system; compute capability 9.0 and 10.x
MOST_BLOCKS, MOST_THREADS = 32, 2048  # on one multiprocessor


def space_of(problem: GemmProblem, *, baseline: DecodeTile | SkinnyTile | LibraryGemm) -> Space:
    """Tiles for one problem. baseline: what runs it today."""
    return decode_space(problem.k, problem.m, baseline=baseline)


def resident_blocks(tile: DecodeTile, m: int, *, registers: int | None = None) -> int:
    """Of one multiprocessor, at once. registers: of a thread, where the compiler has told."""
    threads = tile.warps * WARP
    smem = MAX_SMEM_BYTES + RESERVED_SMEM_BYTES
    return min(
        MOST_BLOCKS,
        MOST_THREADS // threads,
        smem // (tile.smem_bytes(m) + RESERVED_SMEM_BYTES),
        REGISTERS // (threads * max(32, registers or tile.registers(m))),
    )


def blocks(tile: DecodeTile, problem: GemmProblem) -> int:
    return math.ceil(problem.n / tile.rows) * tile.split_k


def bytes_in_flight(tile: DecodeTile, problem: GemmProblem, gpu: Gpu) -> int:
    """Of the weights, asked for by one multiprocessor at once; by Little's law it takes bandwidth x latency of them."""
    there = min(resident_blocks(tile, problem.m), math.ceil(blocks(tile, problem) / gpu.multiprocessors))
    return there * tile.bytes_in_flight()
