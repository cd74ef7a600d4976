"""Our decode GEMM's timings: which tiles are timed, what is taken as fastest, and which goals count what."""

import argparse
from typing import Any

import pytest

from benchmarks.h200_decode_gemm import bandwidth, early_start, environment_of, goals, ratio_of, rows_of
from benchmarks.h200_decode_timing import FASTEST, candidates, proposed
from search_spaces.decode_gemm import decode_rules
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.rule import broken
from tuner.core.workload import GemmProblem

N, K = 20480, 7168  # 294 MB
TILE = {"rows": 24, "warps": 8, "depth": 2, "stages": 4, "split_k": 1}
ENVIRONMENT = {"line": "environment", "gpu": "NVIDIA H200", "driver": "580", "versions": {"kernel": "k"}}


def timing(who: str, us: float, *, m: int = 1, early: bool = True, n: int = N, **values: int) -> dict[str, Any]:
    told = {**TILE, **values, "early": early} if who == "ours" else {"backend": "cublas"}
    return {"n": n, "k": K, "m": m, "who": who, "values": told, "us": [us + 1, us, us - 1]}


def asked(**told: object) -> argparse.Namespace:
    return argparse.Namespace(**{"gpu": None, "driver": None, "version": [], **told})


@pytest.mark.parametrize("shape", FASTEST)
def test_every_tile_that_is_timed_is_legal_for_one_and_for_sixteen_rows_and_the_known_one_is_first(
    shape: tuple[int, int],
) -> None:
    found = proposed(*shape, 8)
    assert found[0] == FASTEST[shape]
    assert len(set(found)) == 8
    assert not [tile for tile in found for m in (1, 16) if broken(decode_rules(shape[1], m), tile)]


def test_a_problem_is_timed_beside_cublas_vllms_tile_and_the_fastest_recorded_one_and_every_tile_of_ours_twice() -> (
    None
):
    found = list(candidates(GemmProblem(n=1536, k=7168, m=4), 2))
    assert [who for who, _ in found] == ["cublas", "vllm_table", "vllm_best", "ours", "ours", "ours", "ours"]
    assert found[0][1] == LibraryGemm()
    assert found[1][1] == SkinnyTile(block_size=128, outputs_per_block=2)
    assert [tile.values()["early"] for _, tile in found[3:]] == [True, False, True, False]


def test_beyond_the_recorded_rows_only_cublas_stands_beside_ours() -> None:
    found = candidates(GemmProblem(n=1536, k=7168, m=16), 1)
    assert [who for who, _ in found] == ["cublas", "ours", "ours"]


def test_the_fastest_of_each_side_is_by_the_median_and_a_failure_is_no_time() -> None:
    lines = [
        timing("cublas", 80.0), timing("ours", 70.0), timing("ours", 68.0, rows=32), timing("ours", 75.0, early=False),
        {"n": N, "k": K, "m": 1, "who": "ours", "values": {**TILE, "early": True}, "failed": "crashed", "sentence": ""},
    ]  # fmt: skip
    (row,) = rows_of(lines)
    assert (row["early"]["us"], row["early"]["tile"]["rows"], row["early"]["tiles_timed"]) == (68.0, 32, 2)
    assert row["late"]["us"] == 75.0
    assert row["vllm_table"] is None
    assert bandwidth(lines) == pytest.approx(2e-6 * N * K / 68)
    assert row["early"]["share_of_read_bandwidth"] == 1.0


def test_the_early_start_is_judged_on_tiles_that_were_timed_both_ways() -> None:
    lines = [timing("ours", 70.0), timing("ours", 77.0, early=False), timing("ours", 50.0, rows=8)]
    assert early_start(lines) == {
        "tiles": 1, "faster": 1, "geometric_mean": pytest.approx(1.1), "least": 1.1, "most": 1.1,
    }  # fmt: skip


def test_a_row_that_one_side_lacks_is_in_no_ratio() -> None:
    rows = rows_of([timing("cublas", 80.0), timing("ours", 70.0), timing("ours", 70.0, m=2)])
    assert ratio_of(rows, "early", "cublas")["rows"] == 1
    assert ratio_of(rows, "early", "vllm_table")["geometric_mean"] is None


def test_the_bandwidth_goal_counts_the_worst_large_problem_and_no_small_one() -> None:
    small = [timing("cublas", 4.0, n=1536), timing("ours", 40.0, n=1536)]
    large = [timing("ours", 70.0), timing("ours", 100.0, m=2)]
    found = {goal.name.split(",")[0]: goal for goal in goals(rows_of([*small, *large]))}
    fastest = 2e-6 * 1536 * K / 4.0
    assert found["least share of the read bandwidth"].value == pytest.approx(2e-6 * N * K / 100 / fastest, abs=1e-4)
    assert not found["least share of the read bandwidth"].met


def test_a_recording_says_where_it_was_made_or_somebody_must() -> None:
    assert environment_of([ENVIRONMENT, dict(ENVIRONMENT)], asked()) == ENVIRONMENT
    told = environment_of([], asked(gpu="NVIDIA H200", driver="580", version=["torch=2.11.0"]))
    assert told["versions"] == {"torch": "2.11.0"}
    with pytest.raises(SystemExit, match="does not say"):
        environment_of([], asked())
    with pytest.raises(SystemExit, match="one machine"):
        environment_of([ENVIRONMENT, {**ENVIRONMENT, "driver": "590"}], asked())
