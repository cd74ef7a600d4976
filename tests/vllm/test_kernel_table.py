"""A tuned table reaches vLLM 0.33.0's own plan, all of it or nothing, and a refusal is one clear line."""

import json
from typing import Any

import asking
import pytest

from tuner.engines.engine import INSIDE

pytestmark = pytest.mark.vllm

SHAPE = (6288, 7168)  # the KDA input projection at TP8
TILE = {"block_size": 64, "outputs_per_block": 2, "k_unroll": 1, "vector_width": 8, "static_k": 7168}


def table(kernel_version: str, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "status": "validated",
        "gpu": {"name": "GB300", "capability": "10.3"},
        "vllm_version": "0.33.0",
        "kernel_version": kernel_version,
        "tiles": [{"n": SHAPE[0], "k": SHAPE[1], "m": 3, "tile": TILE}],
        **changes,
    }


def plans(*tables: object) -> list[dict[str, Any]]:
    question = {"capability": [10, 3], "tables": tables, "shape": SHAPE, "inside": str(INSIDE)}
    found = asking.ask("tuned_table.py", question, files=asking.python_files())
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def kernel_version() -> str:
    """Of the kernel in these files, read off the refusal of a table that names another."""
    line = plans(table("nothing"))[0]["log"][0]
    return str(line.rpartition("this vLLM has ")[2])


def test_vllms_own_plan_picks_the_tuned_tile_and_leaves_the_others_alone(kernel_version: str) -> None:
    stock, tuned = plans(None, table(kernel_version))
    assert tuned["plan"]["3"] == ["cute", TILE]
    assert stock["plan"].get("3") != ["cute", TILE]
    assert {m: p for m, p in tuned["plan"].items() if m != "3"} == {m: p for m, p in stock["plan"].items() if m != "3"}
    assert len(tuned["log"]) == 1
    assert tuned["log"][0].endswith("is in use: 1 tiles")
    assert stock["log"] == []


@pytest.mark.slow  # a process and its imports for each table
def test_a_table_that_is_not_for_this_engine_changes_nothing_and_says_why(kernel_version: str) -> None:
    cases = [
        (table(kernel_version, vllm_version="0.32.0"), "measured with vLLM 0.32.0"),
        (table("another kernel"), "measured with kernel another kernel"),
        (table(kernel_version, status="not_measured"), "only validated ones are used"),
        (table(kernel_version, gpu={"name": "B200", "capability": "10.0"}), "reads another table"),
        (table(kernel_version, format=2), "its format is 2"),
        (table(kernel_version, tiles=[{"n": SHAPE[0], "k": SHAPE[1], "m": 99, "tile": TILE}]), "no kernel runs"),
        ("{not json", "is not used"),
    ]
    stock, *found = plans(None, *(json.loads(json.dumps(case)) for case, _ in cases))
    for answer, (_, word) in zip(found, cases, strict=True):
        assert answer["plan"] == stock["plan"], word
        assert len(answer["log"]) == 1
        assert word in answer["log"][0]
