"""The kernel study end to end on a CPU, with planted kernels: what is wrong or crashes is never timed as good."""

import argparse
import json
from pathlib import Path

import pytest
from asking import SCRIPTS

from benchmarks.h200_decide import decided, read_environment
from benchmarks.h200_decode_gemm import environment_of, rows_of
from benchmarks.h200_decode_timing import time_these
from benchmarks.h200_plan import document_of
from benchmarks.h200_timing import read_lines, time_all
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.workload import GemmProblem

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

RIGHT, WRONG, CRASHES = (SkinnyTile(block_size=32, outputs_per_block=planted) for planted in (1, 2, 8))


def test_planted_defects_are_failures_and_passes_are_kept_as_they_come(engine_python: Path, tmp_path: Path) -> None:
    problem = {"n": 48, "k": 256, "m": 2, "name": "planted"}
    row = {
        "problem": problem,
        "stock": document_of(LibraryGemm()),
        "candidates": [document_of(tile) for tile in (WRONG, CRASHES, RIGHT)],
    }
    plan = {"vllm": "0.33.0", "kernel": "planted", "capability": "9.0", "problems": [row]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    asked = argparse.Namespace(
        plan=tmp_path / "plan.json", output=tmp_path / "raw.jsonl", engine=engine_python, path=[SCRIPTS],
        target="planted_kernels", device="cpu", vllm=None, library=None, runtime=None, problems=None, passes=2,
        seconds=120.0,
        search_seconds=120.0,
    )  # fmt: skip
    time_all(asked)
    lines = read_lines((tmp_path / "raw.jsonl").read_text())
    (searched,) = [line for line in lines if line["line"] == "search"]
    outcomes = [timing.get("failed", "timed") for timing in searched["timings"]]
    assert outcomes == ["timed", "wrong_output", "crashed", "timed"]
    assert read_environment(lines)["gpu"] == "cpu"
    (found,) = decided(lines)
    assert found["tile"] is None  # two passes show nothing
    time_all(asked)  # again: nothing is searched twice
    again = read_lines((tmp_path / "raw.jsonl").read_text())
    assert [line for line in again if line["line"] == "search"] == [searched]


def test_our_kernels_timings_go_on_after_a_failure_and_nothing_is_timed_twice(
    engine_python: Path, tmp_path: Path
) -> None:
    problem = GemmProblem(n=48, k=256, m=2)
    planned = [
        (problem, "cublas", LibraryGemm()), (problem, "vllm_table", WRONG), (problem, "vllm_best", RIGHT),
        (problem, "ours", DecodeTile(rows=8, warps=1)), (problem, "cublas", LibraryGemm()),
    ]  # fmt: skip
    asked = argparse.Namespace(
        output=tmp_path / "raw.jsonl", engine=engine_python, path=[SCRIPTS], targets=["planted_kernels"] * 2,
        device="cpu", vllm=None, library=None, runtime=None, seconds=120.0,
    )  # fmt: skip
    time_these(planned[:2], asked)
    time_these(planned, asked)
    lines = read_lines((tmp_path / "raw.jsonl").read_text())
    assert environment_of(lines, asked)["versions"]["vllm_kernel"] == "planted"
    timings = [line for line in lines if "who" in line]
    # the planted target has no decode tile, which ends its worker
    assert [(line["who"], line.get("failed", "timed")) for line in timings] == [
        ("cublas", "timed"), ("vllm_table", "wrong_output"), ("vllm_best", "timed"), ("ours", "crashed"),
    ]  # fmt: skip
    (row,) = rows_of(timings)
    assert row["vllm_best"]["tile"] == RIGHT.values()
    assert row["early"] is None
