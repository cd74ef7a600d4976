"""Our decode GEMM on a GPU: blocks, those that are resident at once, and bytes on their way."""

import pytest

from kernels.decode_gemm import blocks, bytes_in_flight, resident_blocks, space_of
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.roofline import H200
from tuner.core.workload import GemmProblem

HEAD = GemmProblem(n=20480, k=7168, m=1)
TILE = DecodeTile(rows=24, warps=8, depth=2, stages=4)  # 8 x 4 x 2 x 4 pieces of 512 bytes: 128 KiB


def test_a_last_block_of_fewer_rows_is_a_block_and_a_split_multiplies_them() -> None:
    assert blocks(TILE, HEAD) == 854  # 853 of 24 rows and one of 8
    assert blocks(DecodeTile(rows=64, warps=4, split_k=4), HEAD) == 320 * 4


@pytest.mark.parametrize(
    ("tile", "registers", "resident"),
    [
        (TILE, None, 1),  # 129 of 228 KiB of shared memory
        (DecodeTile(rows=8, warps=1, depth=1, stages=2), None, 32),  # the most blocks
        (DecodeTile(rows=8, warps=32, depth=1, stages=2), None, 2),  # 1,024 of 2,048 threads
        (DecodeTile(rows=8, warps=8, depth=1, stages=2), 128, 2),  # 32,768 of 65,536 registers
        (DecodeTile(rows=8, warps=16, depth=1, stages=2), 255, 0),  # they do not fit once
    ],
)
def test_resident_blocks_are_bound_by_what_runs_out_first(
    tile: DecodeTile, registers: int | None, resident: int
) -> None:
    assert resident_blocks(tile, 1, registers=registers) == resident


def test_sixteen_rows_of_x_take_shared_memory_from_other_blocks() -> None:
    tile = DecodeTile(rows=8, warps=4, depth=2, stages=4)
    assert (resident_blocks(tile, 8), resident_blocks(tile, 9)) == (6, 4)


def test_bytes_on_their_way_are_those_of_the_blocks_that_are_there() -> None:
    """The ring's last stage is being read, so three of four stages are on their way: 8 x 3 x 64 x 24 elements."""
    assert bytes_in_flight(TILE, HEAD, H200) == 8 * 3 * 64 * 24 * 2
    small = DecodeTile(rows=16, warps=4, depth=1, stages=2)
    assert resident_blocks(small, 1) > 1
    few = GemmProblem(n=16 * H200.multiprocessors, k=7168, m=1)  # one block each
    assert bytes_in_flight(small, few, H200) == small.bytes_in_flight()


def test_a_problems_space_has_only_legal_tiles_and_what_runs_it_today_as_its_baseline() -> None:
    for baseline in (LibraryGemm(), SkinnyTile(block_size=128, outputs_per_block=2)):
        space = space_of(GemmProblem(n=1536, k=96, m=4), baseline=baseline)
        tiles = space.feasible().candidates
        assert space.baselines[1] == baseline
        assert {tile.depth for tile in tiles if isinstance(tile, DecodeTile)} == {1}  # 96 is 3 steps of 32
