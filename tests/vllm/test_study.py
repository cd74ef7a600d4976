"""Whole studies on the real engine, through the command: a validated winner, and a worker that is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ENGINE_ENVIRONMENT, engine_processes

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]


def study_file(folder: Path, model: Path, python: Path, **changes: Any) -> Path:
    document = {
        "name": "tiny",
        "model": str(model),
        "hardware": {"gpu": "cpu"},
        "space": {"knobs": {"max_num_seqs": [1, 16], "enforce_eager": [True], "max_model_len": [256]}},
        "evaluator": "vllm",
        "workload": {"input_tokens": 16, "output_tokens": 64, "concurrency": [8], "requests": 16},
        "objective": {"maximize": "output_tokens_per_s"},
        "budget": {"trials": 4},
        "quality": {"prompts": 2, "output_tokens": 32},
        "engine": {
            "python": str(python),
            "version": "0.32.0",
            "options": {"enable-prefix-caching": False, "dtype": "bfloat16"},
            "environment": ENGINE_ENVIRONMENT,
        },
        **changes,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tuner.app.cli", *map(str, arguments)]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TUNER_RUNS": str(folder / "runs"), "COLUMNS": "200"}


def tuner(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("nothing_left")
def test_a_configuration_that_is_far_better_is_validated_exported_and_starts(
    tmp_path: Path, slow_model: Path, engine_python: Path
) -> None:
    """max_num_seqs 1 against 16 at concurrency 8: several times faster, beyond any noise of a shared CPU."""
    url = f"sqlite:///{tmp_path}/tuner.db"
    done = tuner(
        tmp_path, "run", study_file(tmp_path, slow_model, engine_python), "--db", url, "--json", "-o", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["decision"] == "validated", found["contests"]
    assert found["winner"]["config"]["max_num_seqs"] == 16
    assert found["origin"] == "measured"
    exported = tmp_path / "out" / "tiny-1gpu.yaml"
    text = exported.read_text()
    assert text.startswith("# Status: Validated\n")
    assert "# Gain: +" in text
    assert yaml.safe_load(text)["max-num-seqs"] == 16
    answer = subprocess.run(
        [ROOT / "scripts/try_export.sh", exported],
        env={**os.environ, "TUNER_ENGINE_PYTHON": str(engine_python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert '"model":"exported"' in answer.stdout.replace(" ", "")
    shown = json.loads(tuner(tmp_path, "show", found["study"], "--db", url, "--json").stdout)
    assert 0 < shown["wall_time_s"]["traffic"] < shown["wall_time_s"]["held"]


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    try:
        with sqlite3.connect(f"file:{folder}/tuner.db?mode=ro", uri=True) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_study_goes_on_measures_nothing_twice_and_leaves_no_engine(
    tmp_path: Path, slow_model: Path, engine_python: Path
) -> None:
    """kill -9 in the middle of the second trial, with the engine working; then the same command again.

    The baseline is the fastest of three by far, so the study ends without a confirmation.
    """
    url = f"sqlite:///{tmp_path}/tuner.db"
    space = {"knobs": {"max_num_seqs": [16, 1, 2], "enforce_eager": [True], "max_model_len": [256]}}
    asked = study_file(tmp_path, slow_model, engine_python, space=space)
    first = subprocess.Popen(
        command("run", asked, "--db", url), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while len(rows(tmp_path, "SELECT 1 FROM starts WHERE ready_s IS NOT NULL")) < 2 and time.monotonic() < deadline:
        assert first.poll() is None
        time.sleep(0.1)
    assert engine_processes()
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = tuner(tmp_path, "run", asked, "--db", url, "--json")
    assert done.returncode == 0, done.stderr
    assert "resumed study" in done.stderr
    found = json.loads(done.stdout)
    assert found["decision"] == "no_validated_improvement"
    measured = Counter(
        rows(
            tmp_path,
            "SELECT s.trial, m.workload_key, m.repeat FROM measurements m JOIN starts s ON s.id = m.start_id"
            " WHERE m.purpose = 'search'",
        )
    )
    assert len(measured) == 3
    assert set(measured.values()) == {1}
    assert len(rows(tmp_path, "SELECT id FROM starts WHERE ended = 'lost'")) == 1
    assert engine_processes() == []
