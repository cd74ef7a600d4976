"""Tiles of our own decode GEMM: identity and legality."""

import pytest

from search_spaces.candidate import candidate_key
from search_spaces.decode_gemm import DecodeTile, decode_rules, decode_space
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.rule import broken


def names(tile: object, k: int = 7168, m: int = 4) -> list[str]:
    return [reason.rule for reason in broken(decode_rules(k, m), tile)]


@pytest.mark.parametrize(
    ("tile", "rule"),
    [
        (DecodeTile(rows=12, warps=4), "whole-tensor-tiles"),
        (DecodeTile(rows=0, warps=4), "whole-tensor-tiles"),
        (DecodeTile(rows=8, warps=33, depth=1, stages=2), "decode-threads"),
        (DecodeTile(rows=8, warps=4, stages=1), "ring-of-two"),
        (DecodeTile(rows=8, warps=2, depth=3), "whole-k-steps"),
        (DecodeTile(rows=8, warps=8, depth=4, stages=3, split_k=8), "work-for-every-stage"),
        (DecodeTile(rows=8, warps=4, split_k=9), "portable-cluster"),
        (DecodeTile(rows=64, warps=8, depth=2, stages=4), "ring-smem"),
        (DecodeTile(rows=384, warps=1, depth=1, stages=2), "decode-no-spills"),
    ],
)
def test_every_rule_names_a_tile_that_breaks_it_alone(tile: DecodeTile, rule: str) -> None:
    assert names(tile) == [rule]


def test_seventeen_rows_are_more_than_a_tensor_core_instruction_holds() -> None:
    assert names(DecodeTile(rows=16, warps=4), m=16) == []
    assert names(DecodeTile(rows=16, warps=4), m=17) == ["decode-rows"]


def test_what_is_no_decode_tile_breaks_no_rule_of_decode_tiles() -> None:
    assert names(SkinnyTile(block_size=48, outputs_per_block=5)) == []
    assert names(LibraryGemm()) == []


def test_more_than_eight_rows_take_a_second_place_in_the_ring() -> None:
    """One warp, two stages of one step: three pieces of 512 bytes for one half of x, four for two."""
    tile = DecodeTile(rows=16, warps=1, depth=1, stages=2)
    assert [tile.smem_bytes(m) for m in (1, 8, 9, 16)] == [3072, 3072, 4096, 4096]


def test_a_tile_comes_back_from_its_values() -> None:
    tile = DecodeTile(rows=16, warps=7, depth=4, stages=3, split_k=2, early=False)
    assert DecodeTile.from_values(tile.values()) == tile
    assert candidate_key(tile) != candidate_key(DecodeTile(rows=16, warps=7, depth=4, stages=3, split_k=2))


@pytest.mark.parametrize("values", [{"rows": True, "warps": 4}, {"rows": 8, "warps": 4, "early": 1}, {"row": 8}])
def test_values_that_no_tile_has_are_refused(values: dict[str, bool | int]) -> None:
    with pytest.raises(ValueError, match=r"rows|early|row"):
        DecodeTile.from_values(values)


@pytest.mark.parametrize(("n", "k"), [(6288, 7168), (1536, 128), (7168, 2112), (7168, 384), (2304, 1536)])
@pytest.mark.parametrize("m", [1, 8, 16])
def test_every_decode_shape_has_tiles_and_a_baseline(n: int, k: int, m: int) -> None:
    """A k of 2112 is 66 steps of 32 elements and no power of two; n is never asked for."""
    del n
    feasible = decode_space(k, m, baseline=LibraryGemm()).feasible().candidates
    assert sum(isinstance(tile, DecodeTile) for tile in feasible) >= 20
