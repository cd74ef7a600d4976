"""Tiles of decode GEMMs: identity, legality, and the recorded sweep as a witness."""

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from search_spaces.candidate import candidate_key
from search_spaces.gemm import (
    LibraryGemm,
    SkinnyTile,
    SplitKTactic,
    skinny_rules,
    skinny_space,
    split_k_rules,
    split_k_space,
)
from search_spaces.rule import broken

ROOT = Path(__file__).parents[3]
TABLES = ROOT / "tests/golden/k3_specialized_tables.json"
SWEEP = ROOT / "kernels/data/h200_skinny_gemm_sweep.csv.gz"


def names(tile: object, n: int = 7168, k: int = 7168, m: int = 1) -> list[str]:
    return [reason.rule for reason in broken(skinny_rules(n, k, m), tile)]


def test_the_feasible_points_are_the_tiles_that_ran_on_a_gpu() -> None:
    """11,568 tiles were timed on an H200 as every legal one of 96 problems: the rules leave neither more nor fewer."""
    timed: dict[tuple[int, int, int], set[tuple[int, ...]]] = defaultdict(set)
    with gzip.open(SWEEP, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tile = tuple(int(row[name]) for name in ("block_size", "outputs_per_block", "k_unroll", "vector_width"))
            timed[int(row["n"]), int(row["k"]), int(row["m"])].add(tile)
    assert len(timed) == 96
    assert sum(map(len, timed.values())) == 11_568
    for (n, k, m), tiles in timed.items():
        feasible = skinny_space(n, k, m, baseline=LibraryGemm()).feasible().candidates
        assert {tuple(tile.values().values()) for tile in feasible} == tiles


@pytest.mark.parametrize(
    ("tile", "rule"),
    [
        (SkinnyTile(block_size=48, outputs_per_block=1), "whole-warps"),
        (SkinnyTile(block_size=0, outputs_per_block=1), "whole-warps"),
        (SkinnyTile(block_size=2048, outputs_per_block=1, vector_width=2), "block-threads"),
        (SkinnyTile(block_size=32, outputs_per_block=1, vector_width=16), "one-load"),
        (SkinnyTile(block_size=32, outputs_per_block=3), "whole-columns"),
        (SkinnyTile(block_size=96, outputs_per_block=1), "whole-k-tiles"),
        (SkinnyTile(block_size=32, outputs_per_block=1, static_k=4096), "static-k"),
        (SkinnyTile(block_size=1024, outputs_per_block=7168), "skinny-smem"),
        (SkinnyTile(block_size=32, outputs_per_block=256), "no-spills"),
        (SkinnyTile(block_size=1024, outputs_per_block=56, vector_width=4), "no-spills"),
    ],
)
def test_an_illegal_tile_is_refused_by_the_clause_that_says_why(tile: SkinnyTile, rule: str) -> None:
    assert rule in names(tile)


def test_rows_beyond_sixteen_are_refused() -> None:
    tile = SkinnyTile(block_size=32, outputs_per_block=1)
    assert names(tile, m=16) == []
    assert names(tile, m=17) == ["skinny-rows"]


def test_a_static_k_needs_two_tiles_to_prefetch() -> None:
    tile = SkinnyTile(block_size=1024, outputs_per_block=1, vector_width=4, static_k=4096)
    assert names(tile, k=4096) == ["static-k"]
    assert names(SkinnyTile(block_size=512, outputs_per_block=1, vector_width=4, static_k=4096), k=4096) == []


def test_a_library_kernel_is_a_legal_baseline() -> None:
    space = skinny_space(7168, 1536, 8, baseline=LibraryGemm())
    assert space.reasons(space.baselines[1]) == []


@pytest.mark.parametrize(
    "candidate",
    [
        SkinnyTile(block_size=224, outputs_per_block=2, k_unroll=4),
        SkinnyTile(block_size=256, outputs_per_block=2, vector_width=4, static_k=14336),
        LibraryGemm(backend="dsv3_fused_a"),
        SplitKTactic(mma_m=64, mma_n=8, split_k=4, ab_stages=8),
    ],
)
def test_a_candidate_is_rebuilt_from_its_values(candidate: SkinnyTile | LibraryGemm | SplitKTactic) -> None:
    again = type(candidate).from_values(candidate.values())
    assert again == candidate
    assert candidate_key(again) == candidate_key(candidate)


@pytest.mark.parametrize("values", [{"block": 32}, {"block_size": 32.5, "outputs_per_block": 1}, {"block_size": True}])
def test_values_of_no_tile_are_refused(values: dict[str, int | float | bool]) -> None:
    with pytest.raises(ValueError, match="block"):
        SkinnyTile.from_values(values)


def test_candidates_of_two_kinds_never_share_a_key() -> None:
    skinny = SkinnyTile(block_size=64, outputs_per_block=8)
    assert candidate_key(skinny) != candidate_key(SplitKTactic(mma_m=64, mma_n=8, split_k=1, ab_stages=1))


def test_the_tactics_that_vllm_ships_are_legal() -> None:
    """Every (mma_m, mma_n, split_k, ab_stages) of providers.py, at its number of rows."""
    policies = json.loads(TABLES.read_text())["runtime/providers.py:projection_policies(mma_m,mma_n,split_k,stages)"]
    checked = 0
    for policy in policies.values():
        for m, tactic in policy.items():
            names_of = dict(zip(("mma_m", "mma_n", "split_k", "ab_stages"), tactic, strict=True))
            assert broken(split_k_rules(7168, int(m)), SplitKTactic(**names_of)) == []
            checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ("tactic", "k", "m", "rule"),
    [
        ((96, 8, 1, 4), 7168, 1, "mma-rows-of-weights"),
        ((64, 8, 1, 4), 7168, 9, "mma-tokens"),
        ((64, 8, 5, 4), 7168, 1, "split-in-a-cluster"),
        ((64, 8, 1, 13), 7168, 1, "copy-stages"),
        ((64, 8, 3, 4), 7168, 1, "whole-cta-k"),
        ((64, 8, 1, 4), 2112, 1, "whole-cta-k"),
        ((128, 64, 1, 5), 7168, 64, "split-k-smem"),
    ],
)
def test_an_illegal_tactic_is_refused_by_the_clause_that_says_why(
    tactic: tuple[int, int, int, int], k: int, m: int, rule: str
) -> None:
    mma_m, mma_n, split_k, ab_stages = tactic
    found = broken(split_k_rules(k, m), SplitKTactic(mma_m=mma_m, mma_n=mma_n, split_k=split_k, ab_stages=ab_stages))
    assert rule in [reason.rule for reason in found]


def test_the_split_k_space_has_the_shipped_tactic_among_its_points() -> None:
    shipped = SplitKTactic(mma_m=128, mma_n=8, split_k=2, ab_stages=6)
    space = split_k_space(7168, 8, baseline=shipped)
    assert shipped in space.feasible().candidates
