"""The kernel study's bookkeeping: what is planned, which tiles are confirmed, and what the passes then show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.h200_decide import decided, goals, read_environment, summary, tuned_table
from benchmarks.h200_plan import candidate_of, choose, decode_tiles, document_of, static_tiles
from benchmarks.h200_timing import Log, afforded, finalists, read_lines
from search_spaces.decode_gemm import DecodeTile, decode_rules
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.rule import broken
from tuner.core.workload import GemmProblem

PROBLEM = GemmProblem(n=1536, k=7168, m=1, name="mla.g_proj")
STOCK = SkinnyTile(block_size=128, outputs_per_block=2)
FAST = SkinnyTile(block_size=64, outputs_per_block=4)
SLOW = SkinnyTile(block_size=32, outputs_per_block=1)
OURS = DecodeTile(rows=24, warps=2, depth=1, stages=8, split_k=8)
OURS_LATE = replace(OURS, early=False)
CUBLAS, DSV3 = LibraryGemm(), LibraryGemm(backend="dsv3_fused_a")
ENVIRONMENT = {
    "line": "environment", "gpu": "NVIDIA H200", "driver": "580", "versions": {"kernel": "k", "torch": "2.11"},
    "plan": {"vllm": "0.33.0", "kernel": "k", "capability": "9.0"},
}  # fmt: skip

Candidate = SkinnyTile | DecodeTile | LibraryGemm


def row(stock: Candidate, us: dict[Candidate, float | str], m: int = 1) -> dict[str, Any]:
    timings = [
        {"candidate": document_of(c), **({"us": t} if isinstance(t, float) else {"failed": t, "sentence": "no"})}
        for c, t in us.items()
    ]
    problem = {"n": PROBLEM.n, "k": PROBLEM.k, "m": m, "name": PROBLEM.name}
    return {"line": "search", "problem": problem, "stock": document_of(stock), "timings": timings, "seconds": 1.0}


def passes(searched: dict[str, Any], times: list[dict[Candidate, float]]) -> list[dict[str, Any]]:
    return [
        {"line": "pass", "pass": number, "problem": searched["problem"],
         "timings": [{"candidate": document_of(c), "us": us} for c, us in found.items()]}
        for number, found in enumerate(times)
    ]  # fmt: skip


def test_tiles_are_tried_for_a_fixed_k_where_few_steps_are_unrolled_and_each_once() -> None:
    ranked = [FAST, SkinnyTile(block_size=64, outputs_per_block=4, k_unroll=4), SLOW]
    (only,) = static_tiles(PROBLEM, ranked, 5)  # SLOW would unroll 28 steps
    assert only == SkinnyTile(block_size=64, outputs_per_block=4, static_k=7168)


def test_vllms_own_tile_is_always_among_those_that_are_timed() -> None:
    assert choose(PROBLEM, STOCK, [FAST, SLOW])[0] == STOCK
    assert choose(PROBLEM, CUBLAS, [])[:1] == []


def test_finalists_are_the_fastest_that_look_faster_and_the_baseline_is_vllms_tile() -> None:
    assert finalists(row(STOCK, {CUBLAS: 20.0, STOCK: 10.0, FAST: 9.0, SLOW: 9.99}), 3) == [STOCK, FAST]
    assert finalists(row(CUBLAS, {CUBLAS: 9.5, FAST: 9.0, SLOW: 9.2}), 3) == [CUBLAS, FAST, SLOW]
    assert finalists(row(CUBLAS, {CUBLAS: 9.5, FAST: 9.0, SLOW: 9.2}), 1) == [CUBLAS, FAST]


def test_nothing_is_confirmed_where_the_baseline_failed_or_nothing_looks_faster() -> None:
    assert finalists(row(STOCK, {CUBLAS: 20.0, STOCK: "crashed", FAST: 9.0}), 3) == []
    assert finalists(row(STOCK, {STOCK: 10.0, FAST: 10.0}), 3) == []


def test_finalists_and_passes_follow_the_time_and_are_never_fewer_than_can_show_anything() -> None:
    searched = [row(STOCK, {STOCK: 10.0, FAST: 9.0, SLOW: 9.5})]  # a third of a second a timing
    assert afforded(searched, 1.0) == (1, 6)
    assert afforded(searched, 7 * (8.0 + 2 / 3)) == (1, 7)
    assert afforded(searched, 7 * (8.0 + 3 / 3)) == (2, 7)
    assert afforded(searched, 9999.0) == (2, 8)


def test_each_group_has_its_own_finalists_and_its_own_answer() -> None:
    """Where ours is fastest, what vLLM's tiles bring and what ours bring without the early start is still said."""
    us = {CUBLAS: 20.0, STOCK: 10.0, FAST: 9.5, SLOW: 9.6, OURS: 8.0, OURS_LATE: 9.0}
    searched = row(STOCK, us)
    assert finalists(searched, 1) == [STOCK, OURS, OURS_LATE, FAST]
    times = [{STOCK: 10.0 + p / 1000, FAST: 9.5, OURS: 8.0, OURS_LATE: 9.0} for p in range(7)]
    rows = decided([searched, *passes(searched, times)])
    found = summary(rows)["vllm_has_a_tile"]
    assert {which: round(part["geometric_mean"], 2) for which, part in found.items()} == {
        "both_kernels": 1.25, "vllms_kernel_alone": 1.05, "both_without_early_start": 1.11,
    }  # fmt: skip
    (entry,) = tuned_table(ENVIRONMENT, rows, "2026-12-01").entries
    assert entry.tile == FAST


def test_a_plan_holds_our_tiles_with_and_without_the_early_start_and_reads_them_back() -> None:
    illegal = replace(OURS, stages=8, split_k=8, warps=16)
    found = decode_tiles(PROBLEM, [illegal, OURS], 4)
    assert found[:2] == [OURS, OURS_LATE]
    assert len(found) == len(set(found)) == 8
    assert not [tile for tile in found if broken(decode_rules(PROBLEM.k, 8), tile)]
    assert [candidate_of(document_of(tile)) for tile in found] == found


def test_what_was_cut_off_in_the_middle_of_a_line_is_left_out(tmp_path: Path) -> None:
    log = Log(tmp_path / "raw.jsonl")
    log.add({"line": "a"})
    with (tmp_path / "raw.jsonl").open("a") as file:
        file.write('{"line": "b"')
    assert read_lines((tmp_path / "raw.jsonl").read_text()) == [{"line": "a"}]


def test_a_log_that_was_cut_off_goes_on_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text('{"line": "a"}\n{"line": "b"')
    Log(tmp_path / "raw.jsonl").add({"line": "c"})
    assert Log(tmp_path / "raw.jsonl").lines == [{"line": "a"}, {"line": "c"}]


def test_a_tile_that_is_faster_in_every_pass_is_used_and_counts_with_its_estimate() -> None:
    searched = row(STOCK, {STOCK: 10.0, FAST: 9.0})
    (found,) = decided([searched, *passes(searched, [{STOCK: 10.0 + p / 100, FAST: 9.5} for p in range(6)])])
    assert found["tile"]["tile"] == FAST.values()
    assert found["ratio"] == pytest.approx(10.025 / 9.5, rel=1e-3)
    assert found["tile"]["p"] == pytest.approx(1 / 64)


def test_a_tile_that_was_lucky_in_the_search_changes_nothing() -> None:
    searched = row(STOCK, {STOCK: 10.0, FAST: 8.0})
    times = [{STOCK: 10.0, FAST: 10.1 if p % 2 else 9.9} for p in range(6)]
    (found,) = decided([searched, *passes(searched, times)])
    assert found["tile"] is None
    assert found["ratio"] == 1.0
    assert found["finalists"][0]["passes"] == 6


def test_fewer_passes_than_needed_show_nothing() -> None:
    searched = row(STOCK, {STOCK: 10.0, FAST: 8.0})
    (found,) = decided([searched, *passes(searched, [{STOCK: 10.0, FAST: 8.0}] * 4)])
    assert found["tile"] is None


def test_rows_of_dsv3_fused_a_are_reported_and_never_in_the_table() -> None:
    """They were compared with cuBLAS, which is not what vLLM runs there."""
    tiled, dsv3 = row(STOCK, {STOCK: 10.0, FAST: 9.0}), row(DSV3, {CUBLAS: 10.0, FAST: 9.0}, m=7)
    times = [{STOCK: 10.0 + p / 100, CUBLAS: 10.0 + p / 100, FAST: 9.0} for p in range(6)]
    rows = decided([tiled, dsv3, *passes(tiled, times), *passes(dsv3, times)])
    table = tuned_table(ENVIRONMENT, rows, "2026-12-01")
    assert [entry.problem.m for entry in table.entries] == [1]
    assert table.entries[0].baseline == STOCK
    assert table.status == "validated"


def test_goals_count_rows_without_a_faster_tile_as_unchanged() -> None:
    fast, same = row(STOCK, {STOCK: 10.0, FAST: 9.0}), row(STOCK, {STOCK: 10.0, FAST: 10.0}, m=2)
    times = [{STOCK: 10.0 + p / 1000, FAST: 9.0} for p in range(6)]
    found = {goal.name: goal for goal in goals(decided([fast, same, *passes(fast, times)]))}
    tiled = found["geometric mean over the rows where vLLM has a tile, both kernels"]
    assert tiled.value == pytest.approx((10.0025 / 9.0) ** 0.5, rel=1e-3)
    assert tiled.met
    assert not found["geometric mean over cuBLAS's rows, M 1-4, both kernels"].met  # there are none


def test_timings_of_two_machines_or_of_another_kernel_are_refused() -> None:
    with pytest.raises(SystemExit, match="one machine"):
        read_environment([ENVIRONMENT, {**ENVIRONMENT, "driver": "590"}])
    with pytest.raises(SystemExit, match="was planned"):
        read_environment([{**ENVIRONMENT, "versions": {"kernel": "another"}}])
