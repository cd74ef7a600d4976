"""What a kernel study on one H200 will time: which tiles of which Kimi K3 decode GEMM, and a library of them all.

vLLM's kernel: the finalists of an earlier study where one is named. Without it recorded problems bring their fastest
recorded tiles, and for the others the prior orders the space; with few rows, tiles compiled for one k are tried beside
them, which ask for their first weights before the previous kernel has ended. Our decode GEMM: the tiles that were
fastest for the shape before, then the most promising ones, each with and without the early start.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from kernels.problems import problems
from kernels.stock import read_stock
from kernels.targets import compiled_rows, tile_of
from search_spaces.decode_gemm import DecodeTile, decode_rules
from search_spaces.gemm import LibraryGemm, SkinnyTile, skinny_rules, skinny_space
from search_spaces.rule import broken
from tuner.core.workload import GemmProblem

CAPABILITY = "9.0"
FEW_ROWS = 4  # with more, tiles rarely beat cuBLAS, and fewer of them are tried
MOST_STEPS = 14  # along k, all of them unrolled where k is known to the compiler
CUBLAS = LibraryGemm()

MOST_ROWS = 8  # of x: a decode tile is compiled once for up to so many
EARLIER_TILES = 3  # of vLLM's kernel, for each problem

Tile = SkinnyTile | DecodeTile
Candidate = Tile | LibraryGemm


def candidate_of(document: Mapping[str, Any]) -> Candidate:
    kind, values = document["kind"], document["values"]
    return LibraryGemm.from_values(values) if kind == CUBLAS.kind else tile_of(kind, values)


def document_of(candidate: Candidate) -> dict[str, Any]:
    return {"kind": candidate.kind, "values": candidate.values()}


def problem_of(row: Mapping[str, Any]) -> GemmProblem:
    return GemmProblem(**row["problem"])


def make_plan(arguments: argparse.Namespace) -> None:
    from kernels.sweeps import h200_examples, h200_experience

    stock = read_stock(arguments.stock.read_text())
    experience, examples = h200_experience(), h200_examples()
    distinct = {(p.n, p.k, p.m): p for tp in (8, 16) for p in problems(tp)}
    earlier = finalists_of(arguments.earlier) if arguments.earlier else {}
    fastest = fastest_of(arguments.decode_earlier) if arguments.decode_earlier else {}
    rows = []
    for (n, k, m), problem in sorted(distinct.items()):
        choice = stock.choice(CAPABILITY, problem)
        timed = examples.get(GemmProblem(n=n, k=k, m=m))
        if timed is None:
            space = skinny_space(n, k, m, baseline=CUBLAS).feasible().candidates
            tiles = [candidate for candidate in space if isinstance(candidate, SkinnyTile)]
            ranked = experience.ranked(problem, tiles) if tiles else []
        else:
            ranked = sorted(timed, key=timed.__getitem__)
        if arguments.earlier:
            own = [choice] if isinstance(choice, SkinnyTile) else []
            found = earlier.get((n, k, m)) or ranked
            chosen: list[Tile] = list(dict.fromkeys([*own, *found[:EARLIER_TILES]]))
        else:
            chosen = list(choose(problem, choice, ranked))
        if arguments.decode_tiles:
            chosen += decode_tiles(problem, fastest.get((n, k), []), arguments.decode_tiles)
        if chosen:
            rows.append(
                {
                    "problem": {"n": n, "k": k, "m": m, "name": problem.name},
                    "stock": document_of(choice),
                    "candidates": [document_of(tile) for tile in chosen],
                }
            )
    document = {"vllm": stock.vllm, "kernel": stock.kernel, "capability": CAPABILITY, "problems": rows}
    arguments.output.write_text(json.dumps(document))
    print(f"{len(rows)} problems, {sum(len(row['candidates']) for row in rows)} tiles, {len(kernels_in(rows))} kernels")


def choose(problem: GemmProblem, stock: Candidate, ranked: Sequence[SkinnyTile]) -> list[SkinnyTile]:
    """The tiles to time, vLLM's own first where it has one. ranked: the most promising first."""
    tiled = isinstance(stock, SkinnyTile)
    few = problem.m <= FEW_ROWS
    dynamic, fixed = (8, 8) if tiled and few else (8, 4) if few else (5, 2)
    own = [stock] if isinstance(stock, SkinnyTile) else []
    return list(dict.fromkeys([*own, *ranked[:dynamic], *static_tiles(problem, [*own, *ranked], fixed)]))


def static_tiles(problem: GemmProblem, ranked: Sequence[SkinnyTile], most: int) -> list[SkinnyTile]:
    """The same tiles compiled for the problem's k, where that is legal; `k_unroll` means nothing to them."""
    rules = skinny_rules(problem.n, problem.k, problem.m)
    found = dict.fromkeys(replace(tile, k_unroll=1, static_k=problem.k) for tile in ranked)
    legal = (tile for tile in found if problem.k // tile.k_tile <= MOST_STEPS and not broken(rules, tile))
    return [tile for _, tile in zip(range(most), legal, strict=False)]


def finalists_of(result: Path) -> dict[tuple[int, int, int], list[SkinnyTile]]:
    """Of an earlier study's result, the fastest first."""
    rows = json.loads(result.read_text())["results"]["problems"]
    return {
        (row["n"], row["k"], row["m"]): [SkinnyTile.from_values(f["tile"]) for f in row["finalists"]] for row in rows
    }


def fastest_of(result: Path) -> dict[tuple[int, int], list[DecodeTile]]:
    """Of our kernel's one-pass result: for each shape the tiles that were fastest for some rows, early or late."""
    found: dict[tuple[int, int], dict[DecodeTile, None]] = defaultdict(dict)
    for row in json.loads(result.read_text())["results"]["problems"]:
        for side in ("early", "late"):
            if row[side]:
                found[row["n"], row["k"]][replace(DecodeTile.from_values(row[side]["tile"]), early=True)] = None
    return {shape: list(tiles) for shape, tiles in found.items()}


def decode_tiles(problem: GemmProblem, fastest: Sequence[DecodeTile], count: int) -> list[DecodeTile]:
    """So many tiles of our kernel, each with and without the early start. fastest: to be tried before all others."""
    from benchmarks.h200_decode_timing import proposed

    legal = decode_rules(problem.k, MOST_ROWS)
    known = [tile for tile in fastest if not broken(legal, tile)]
    chosen = islice(dict.fromkeys([*known, *proposed(problem.n, problem.k, count, MOST_ROWS)]), count)
    return [replace(tile, early=early) for tile in chosen for early in (True, False)]


def kernels_in(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Tile]]:
    """Number of rows and tile of every kernel that a plan needs."""

    def all_of_them() -> Iterator[tuple[int, Tile]]:
        for row in rows:
            for document in row["candidates"]:
                candidate = candidate_of(document)
                if not isinstance(candidate, LibraryGemm):
                    yield compiled_rows(candidate, row["problem"]["m"]), candidate

    return list(dict.fromkeys(all_of_them()))


def compile_plan(arguments: argparse.Namespace) -> None:
    from kernels.compile import Toolchain, compile_tiles, link, resources
    from tuner.engines.engine import INSIDE

    plan = json.loads(arguments.plan.read_text())["problems"]
    tools = Toolchain(python=arguments.dsl, inside=INSIDE, vllm=arguments.vllm, path=tuple(arguments.path))
    folder = arguments.output.parent / f"objects-{arguments.architecture}"
    compiled = compile_tiles(
        tools, kernels_in(plan), folder, architecture=arguments.architecture, processes=arguments.processes
    )
    document = {"architecture": arguments.architecture, "kernels": resources(compiled)}
    arguments.output.with_suffix(".json").write_text(json.dumps(document))
    if arguments.runtimes:
        link(folder, arguments.output, search=arguments.runtimes)
    refused, spills = sum(bool(c.refused) for c in compiled), sum(c.spills for c in compiled)
    print(f"{len(compiled)} kernels: {refused} refused, {spills} spill")
