"""Proof of path on vLLM 0.33.0's own `plan` and graph manager, kernels stubbed: what is chosen and what is replayed."""

from pathlib import Path
from typing import Any

import asking
import pytest

from tuner.engines.engine import INSIDE
from tuner.engines.path_proof import Steps, read, worst

pytestmark = pytest.mark.vllm


def proof(folder: Path, **question: Any) -> dict[str, Any]:
    asked = {"inside": str(INSIDE), "folder": str(folder), "q": 8, "capture": [], "replay": [], "run": [], **question}
    found = asking.ask("planned_path.py", asked, files=asking.python_files())
    assert isinstance(found, dict)
    return found


def test_each_captured_size_is_noted_as_vllm_planned_it_and_its_replays_are_counted(tmp_path: Path) -> None:
    found = proof(
        tmp_path,
        capture=[
            {"tokens": 8, "requests": 1},
            {"tokens": 64, "requests": 8},
            {"tokens": 40, "requests": 5},  # no size that is prepared
            {"tokens": 16, "requests": 2, "prefills": 1},  # a prompt among them
        ],
        replay=[
            {"tokens": 8, "times": 90},
            {"tokens": 64, "times": 5},
            {"tokens": 40, "times": 5},
            {"tokens": 128, "times": 3},  # more than the specialised path ever takes
            {"tokens": 16, "times": 2, "uniform": None},
        ],
    )
    assert found["captured"] == [True, True, False, False]
    assert found["proof"]["chosen"] == {"8": "specialised", "16": "stock", "40": "stock", "64": "specialised"}
    assert found["proof"]["replays"]["8"] == 90
    assert found["proof"]["steps"] == {"specialised": 95, "stock": 5, "mixed": 5}
    steps = worst({}, read(tmp_path))
    assert steps == Steps(95, 5, 5)
    assert steps.share == 0.95


def test_steps_without_a_graph_count_as_stock_where_they_decode_alone(tmp_path: Path) -> None:
    found = proof(
        tmp_path,
        run=[
            {"tokens": 8, "requests": 1},
            {"tokens": 1, "requests": 1},
            {"tokens": 24, "requests": 3},
            {"tokens": 100, "requests": 3, "prefills": 1},
            {"tokens": 128, "requests": 16},
        ],
    )
    assert found["proof"]["steps"] == {"specialised": 0, "stock": 3, "mixed": 2}
