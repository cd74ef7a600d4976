"""A kernel study's heat map: a cell is the fastest of the tiles that share both values; and times against the floor."""

import pytest

from api.ui.tiles import heat
from search_spaces.candidate import Candidate
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.roofline import H200, floor_us
from tuner.core.trial import Measured, Trial
from tuner.core.workload import GemmProblem

PROBLEM = GemmProblem(n=1536, k=7168, m=1)


def trial(number: int, candidate: Candidate, us: float, *, baseline: bool = False) -> Trial:
    run = Measurement(
        start_id=str(number), workload_key=PROBLEM.key, purpose=Purpose.SEARCH, repeat=0, origin=Origin.RECORDED,
        metrics={"kernel_us": us}, missing={}, samples={}, seconds=1.0,
    )  # fmt: skip
    return Trial(
        number=number, candidate=candidate, key=str(number), gpus=1, baseline=baseline, chosen_by="x",
        outcome=Measured(measurements=(run,)),
    )  # fmt: skip


def tile(block_size: int, outputs: int, k_unroll: int = 1) -> SkinnyTile:
    return SkinnyTile(block_size=block_size, outputs_per_block=outputs, k_unroll=k_unroll)


def test_a_cell_is_the_fastest_of_its_tiles_and_a_place_without_one_is_empty() -> None:
    found = heat(
        PROBLEM,
        "H200",
        [
            trial(0, LibraryGemm(), 12.0, baseline=True), trial(1, tile(64, 2), 8.0), trial(2, tile(64, 2, 4), 7.0),
            trial(3, tile(128, 4), 14.0),
        ],
    )  # fmt: skip
    assert found is not None
    assert (found.row_axis, found.column_axis, found.columns) == ("block_size", "outputs_per_block", [2, 4])
    (first, (fast, none)), (second, (empty, slow)) = found.rows
    assert (first, second) == (64, 128)
    assert fast is not None
    assert slow is not None
    assert (none, empty) == (None, None)
    assert (fast.us, fast.trial, fast.tiles, fast.shade, fast.best) == (7.0, 2, 2, 8, True)
    assert (slow.shade, slow.best) == (0, False)


def test_today_and_the_fastest_stand_against_the_floor_of_the_gpu() -> None:
    found = heat(PROBLEM, "H200", [trial(0, LibraryGemm(), 12.0, baseline=True), trial(1, tile(64, 2), 8.0)])
    assert found is not None
    floor = floor_us(PROBLEM, H200)
    assert [(bar.us, bar.trial) for bar in found.bars] == [(floor, None), (12.0, 0), (8.0, 1)]
    assert [bar.times for bar in found.bars] == pytest.approx([1.0, 12 / floor, 8 / floor])


def test_on_a_gpu_whose_bandwidth_is_not_known_the_fastest_is_the_measure() -> None:
    found = heat(PROBLEM, "B300", [trial(0, LibraryGemm(), 12.0, baseline=True), trial(1, tile(64, 2), 8.0)])
    assert found is not None
    assert [bar.times for bar in found.bars] == [1.5, 1.0]


def test_without_a_measured_tile_there_is_no_map() -> None:
    assert heat(PROBLEM, "H200", [trial(0, LibraryGemm(), 12.0, baseline=True)]) is None
