"""Which tiles of our decode GEMM are timed on an H200, beside what; and their timing, every result a line at once.

A tile of ours must be legal for 1 row and for the most rows that it is compiled for. After the one that was fastest
before, those come that keep enough bytes on their way and share the blocks out evenly; the numbers of weight rows take
turns.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from benchmarks.h200_timing import Line, Log, Worker, timed, worker_kind
from kernels.decode_gemm import blocks, bytes_in_flight, resident_blocks, space_of
from search_spaces.decode_gemm import DecodeTile, decode_rules
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.rule import broken
from tuner.core.roofline import H200
from tuner.core.workload import GemmProblem

# Each shape's fastest tile over M 1, 2, 4, 8 and 16 in one pass (NVIDIA H200, driver 580.159.04, 2026-12-01).
FASTEST = {
    (1536, 7168): DecodeTile(rows=24, warps=2, depth=1, stages=8, split_k=8),
    (3072, 7168): DecodeTile(rows=24, warps=16, depth=2, stages=2, split_k=1),
    (6288, 7168): DecodeTile(rows=24, warps=4, depth=2, stages=8, split_k=1),
    (7168, 1536): DecodeTile(rows=32, warps=4, depth=4, stages=2, split_k=1),
    (7168, 4224): DecodeTile(rows=32, warps=4, depth=2, stages=6, split_k=1),
    (20480, 7168): DecodeTile(rows=24, warps=8, depth=2, stages=4, split_k=1),
    (2304, 1536): DecodeTile(rows=16, warps=2, depth=2, stages=4, split_k=4),
}
ROWS = (4, 1, 8, 2, 16)
WANTED_BYTES = 36_000  # on their way to one multiprocessor: 4.4 TB/s over 132 of them, for about a microsecond
CUBLAS, VLLM_TABLE, VLLM_BEST, OURS = "cublas", "vllm_table", "vllm_best", "ours"

Tile = DecodeTile | SkinnyTile | LibraryGemm


@cache
def proposed(n: int, k: int, count: int, most_rows: int = 16) -> tuple[DecodeTile, ...]:
    """Of one shape, the most promising first, and each once. most_rows: of x, that each tile must be legal for."""
    problem, most = GemmProblem(n=n, k=k, m=1), GemmProblem(n=n, k=k, m=most_rows)
    feasible = space_of(problem, baseline=LibraryGemm()).feasible().candidates
    rules = decode_rules(k, most.m)
    tiles = [tile for tile in feasible if isinstance(tile, DecodeTile) and tile.early and not broken(rules, tile)]
    scored = sorted(tiles, key=lambda tile: (-_promise(tile, most), *tile.values().values()))
    by_rows: dict[int, dict[tuple[int, int], DecodeTile]] = {}
    for tile in scored:
        by_rows.setdefault(tile.rows, {}).setdefault((tile.warps, tile.split_k), tile)
    turns = itertools.zip_longest(*(group.values() for group in by_rows.values()))
    chosen = (tile for turn in turns for tile in turn if tile is not None)
    known = [FASTEST[n, k]] if (n, k) in FASTEST else []
    return tuple(itertools.islice(dict.fromkeys([*known, *chosen]), count))


def _promise(tile: DecodeTile, problem: GemmProblem) -> float:
    """Between 0 and 1: of the bytes on their way that are wanted, times the multiprocessors' even share."""
    there = resident_blocks(tile, problem.m)
    if there == 0:
        return 0.0
    number = blocks(tile, problem)
    turns = number / (H200.multiprocessors * there if number > H200.multiprocessors * there else H200.multiprocessors)
    return min(1.0, bytes_in_flight(tile, problem, H200) / WANTED_BYTES) * turns / math.ceil(turns)


def candidates(problem: GemmProblem, count: int) -> Iterator[tuple[str, Tile]]:
    """Who it is, and the candidate; ours with and without the early start."""
    from kernels.sweeps import h200_examples, h200_stock

    plain = GemmProblem(n=problem.n, k=problem.k, m=problem.m)
    yield CUBLAS, LibraryGemm()
    stock, recorded = h200_stock().get(plain), h200_examples().get(plain)
    if isinstance(stock, SkinnyTile):
        yield VLLM_TABLE, stock
    if recorded:
        yield VLLM_BEST, min(recorded, key=recorded.__getitem__)
    for tile in proposed(problem.n, problem.k, count):
        yield OURS, tile
        yield OURS, replace(tile, early=False)


def plan(count: int) -> Iterator[tuple[GemmProblem, str, Tile]]:
    for m, (n, k) in itertools.product(ROWS, FASTEST):
        problem = GemmProblem(n=n, k=k, m=m)
        for who, candidate in candidates(problem, count):
            yield problem, who, candidate


def compile_tiles_of(arguments: argparse.Namespace) -> None:
    """One library of all that is timed; vLLM's kernel and ours."""
    from kernels.compile import Toolchain, compile_tiles, link
    from tuner.engines.engine import INSIDE

    jobs = [(p.m, tile) for p, _, tile in plan(arguments.tiles) if not isinstance(tile, LibraryGemm)]
    tools = Toolchain(python=arguments.dsl, inside=INSIDE, vllm=arguments.vllm, path=tuple(arguments.path))
    folder = arguments.output.parent / f"objects-{arguments.architecture}"
    made = compile_tiles(tools, jobs, folder, architecture=arguments.architecture, processes=arguments.processes)
    link(folder, arguments.output, search=arguments.runtimes)
    print(f"{len(made)} kernels: {sum(bool(c.refused) for c in made)} refused, {sum(c.spills for c in made)} spill")


def time_all(arguments: argparse.Namespace) -> None:
    time_these(plan(arguments.tiles), arguments)


def time_these(planned: Iterable[tuple[GemmProblem, str, Tile]], arguments: argparse.Namespace) -> None:
    """vLLM's tiles in a worker of their own, since a worker has one target."""
    log, begun = Log(arguments.output), time.monotonic()
    done = {_place(line) for line in log.lines if "who" in line}
    kinds = [worker_kind(argparse.Namespace(**{**vars(arguments), "target": target})) for target in arguments.targets]
    with Worker(kinds[0]) as ours, Worker(kinds[1]) as vllms:
        made, theirs = ours.fingerprint(1), vllms.fingerprint(1).versions
        versions = {**made.versions, "vllm_kernel": theirs["kernel"], "vllm": theirs.get("vllm", "unknown")}
        log.add({"line": "environment", "gpu": made.gpu, "driver": made.driver, "versions": versions})
        for problem, who, candidate in planned:
            line: Line = {"n": problem.n, "k": problem.k, "m": problem.m, "who": who, "values": candidate.values()}
            if _place(line) in done:
                continue
            done.add(_place(line))
            if time.monotonic() - begun > arguments.seconds:
                print("out of time; the same command goes on from here", flush=True)
                return
            evaluator = vllms if isinstance(candidate, SkinnyTile) else ours
            row = {"problem": {"n": problem.n, "k": problem.k, "m": problem.m}}
            timing = timed(evaluator, row, candidate, "search")
            outcome = {"us": timing["samples"]} if "us" in timing else _failure(timing)
            log.add(line | outcome)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


def _place(line: Line) -> tuple[object, ...]:
    return line["n"], line["k"], line["m"], line["who"], *sorted(line["values"].items())


def _failure(timing: Line) -> Line:
    return {name: timing[name] for name in ("failed", "sentence")}
