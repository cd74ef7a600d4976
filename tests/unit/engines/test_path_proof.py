"""What the processes of an engine said of their decode steps: read whole, compared between two moments, worst first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.trial import Measured, Trial, fell_back
from tuner.engines.path_proof import Steps, read, worst


def write(folder: Path, name: str, specialised: int, stock: int, mixed: int = 0) -> None:
    steps = {"specialised": specialised, "stock": stock, "mixed": mixed}
    (folder / f"path-{name}.json").write_text(json.dumps({"steps": steps, "chosen": {}, "replays": {}}))


def test_only_steps_between_the_two_readings_count(tmp_path: Path) -> None:
    write(tmp_path, "1", 0, 50)  # warm-up
    before = read(tmp_path)
    write(tmp_path, "1", 97, 53, 9)
    assert worst(before, read(tmp_path)) == Steps(97, 3, 9)


def test_the_process_with_the_least_share_speaks_for_all_and_idle_ones_do_not(tmp_path: Path) -> None:
    write(tmp_path, "1", 100, 0)
    write(tmp_path, "2", 90, 10)
    write(tmp_path, "3", 0, 0, 7)
    found = worst({}, read(tmp_path))
    assert found is not None
    assert found.share == 0.9


def test_nothing_is_known_where_no_process_decoded_or_a_file_is_damaged(tmp_path: Path) -> None:
    assert worst({}, read(tmp_path)) is None
    (tmp_path / "path-1.json").write_text('{"steps": ')
    (tmp_path / "path-2.json").write_text("{}")
    assert read(tmp_path) == {}


@pytest.mark.parametrize(("share", "marked"), [(0.95, False), (0.949, True), (None, False)])
def test_a_trial_below_the_least_share_is_marked(share: Any, marked: bool) -> None:
    metrics = {} if share is None else {"specialized_share": share}
    run = Measurement(
        start_id="s", workload_key="w", purpose=Purpose.SEARCH, repeat=0, origin=Origin.MEASURED, metrics=metrics
    )
    config = ServingConfig()
    trial = Trial(number=0, candidate=config, key=candidate_key(config), gpus=1, baseline=False)
    assert fell_back(replace(trial, outcome=Measured(measurements=(run,)))) is marked
    assert not fell_back(trial)
