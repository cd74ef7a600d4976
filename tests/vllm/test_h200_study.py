"""The kernel study end to end on a CPU, with planted kernels: what is wrong or crashes is never timed as good."""

import argparse
import json
from pathlib import Path

import pytest
from asking import SCRIPTS

from benchmarks.h200_decide import decided, read_environment
from benchmarks.h200_plan import document_of
from benchmarks.h200_timing import read_lines, time_all
from search_spaces.gemm import LibraryGemm, SkinnyTile

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
