"""The output check on the real engine: a planted defect of the decode path is caught, a harmless difference passes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import ENGINE_ENVIRONMENT

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tests.fakes import FakeClock, MemoryStudies
from tuner.core.decision import QualityResult
from tuner.core.measurement import Purpose
from tuner.core.quality_run import check_output
from tuner.core.starts import LEASE_S, Starts
from tuner.core.study import Study
from tuner.core.study_file import parse
from tuner.core.trial import Failed, Trial
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BASELINE: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True}
NGRAM = {"speculative_method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
CORRUPT = (("logits-processors", "corrupt_decode:CorruptDecode"),)


@pytest.fixture
def evaluator(engine_python: Path, small_model: Path, tmp_path: Path) -> Iterator[VllmEvaluator]:
    made = VllmEvaluator(
        engine=Engine(
            python=engine_python, environment=ENGINE_ENVIRONMENT, path=(Path(__file__).parent / "engine_side",)
        ),
        model=ModelRef(model=str(small_model), extra={"enable-prefix-caching": False, "dtype": "bfloat16"}),
        nodes=Nodes(),
        runs=tmp_path,
        deadlines=Deadlines(start_s=240.0),
    )
    yield made
    made.close()


def checked(evaluator: VllmEvaluator, candidate: ServingConfig) -> tuple[QualityResult, ...]:
    file = parse(
        {
            "name": "quality",
            "model": "m",
            "hardware": {"gpu": "cpu"},
            "space": {"knobs": {"max_num_seqs": [4]}},
            "evaluator": "vllm",
            "workload": {"input_tokens": 16, "output_tokens": 48, "concurrency": [2]},
            "objective": {"maximize": "output_tokens_per_s"},
            "quality": {"prompts": 3, "output_tokens": 40},
        }
    )
    clock = FakeClock()
    studies = MemoryStudies(clock)
    study = Study(id="q", name="q", file=file, file_key=file.key, created_at=datetime(2026, 12, 1, tzinfo=UTC))
    studies.create(study)
    lease = studies.claim("test", ttl_s=LEASE_S, study_id="q")
    assert lease is not None
    trials = [
        Trial(number=number, candidate=config, key=candidate_key(config), gpus=1, baseline=number == 0)
        for number, config in enumerate([ServingConfig(**BASELINE), candidate])
    ]
    for trial in trials:
        studies.add_trial(lease, trial)
    starts = Starts(study=study, lease=lease, studies=studies, evaluator=evaluator, clock=clock)
    found = check_output(starts, file, candidate=trials[1], baseline=trials[0])
    assert not isinstance(found, Failed), found
    assert [start.purpose for start in studies.starts("q")] == [Purpose.QUALITY] * 3
    assert all(run.samples["token_ids"] for run in studies.measurements("q"))
    return found


@pytest.mark.usefixtures("nothing_left")
def test_a_planted_defect_of_the_decode_path_is_caught(evaluator: VllmEvaluator) -> None:
    results = checked(evaluator, ServingConfig(**BASELINE, options=CORRUPT))
    failed = {result.name for result in results if not result.passed}
    # Greedy decoding took tokens that neither prefill path would have chosen; what it gave them is told truly.
    assert {"regret_worst", "regret_by_baseline_worst"} <= failed, results


@pytest.mark.usefixtures("nothing_left")
def test_speculation_which_changes_no_output_passes(evaluator: VllmEvaluator) -> None:
    results = checked(evaluator, ServingConfig(**BASELINE, **NGRAM))
    assert [result for result in results if not result.passed] == []
    assert {result.at for result in results} == {"1 requests x 5 tokens a step", "2 requests x 5 tokens a step"}
