"""What a kernel study on one H200 will time: which tiles of which Kimi K3 decode GEMM, and a library of them all.

Recorded problems bring their fastest recorded tiles; for the others the prior orders the space. With few rows, tiles
compiled for one k are tried beside them: they ask for their first weights before the previous kernel has ended.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernels.problems import problems
from kernels.stock import read_stock
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import LibraryGemm, SkinnyTile, skinny_rules, skinny_space
from search_spaces.rule import broken
from tuner.core.workload import GemmProblem

CAPABILITY = "9.0"
FEW_ROWS = 4  # with more, tiles rarely beat cuBLAS, and fewer of them are tried
MOST_STEPS = 14  # along k, all of them unrolled where k is known to the compiler
CUBLAS = LibraryGemm()

Candidate = SkinnyTile | LibraryGemm


def candidate_of(document: Mapping[str, Any]) -> Candidate:
    kind = SkinnyTile if document["kind"] == "skinny_gemm" else LibraryGemm
    return kind.from_values(document["values"])


def document_of(candidate: Candidate | DecodeTile) -> dict[str, Any]:
    return {"kind": candidate.kind, "values": candidate.values()}


def problem_of(row: Mapping[str, Any]) -> GemmProblem:
    return GemmProblem(**row["problem"])


def make_plan(arguments: argparse.Namespace) -> None:
    from kernels.sweeps import h200_examples, h200_experience

    stock = read_stock(arguments.stock.read_text())
    experience, examples = h200_experience(), h200_examples()
    distinct = {(p.n, p.k, p.m): p for tp in (8, 16) for p in problems(tp)}
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
        chosen = choose(problem, choice, ranked)
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


def kernels_in(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, SkinnyTile]]:
    """Number of rows and tile of every kernel that a plan needs."""

    def all_of_them() -> Iterator[tuple[int, SkinnyTile]]:
        for row in rows:
            for document in row["candidates"]:
                candidate = candidate_of(document)
                if isinstance(candidate, SkinnyTile):
                    yield row["problem"]["m"], candidate

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
