"""The predicted evaluator in the place of an engine, and its beliefs as a prior."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces.serving import ServingConfig
from tuner.core.measurement import FailureKind, Measurement, Origin, Process, Purpose
from tuner.core.plan import plan
from tuner.core.ports import StartRequest
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Failed
from tuner.core.workload import GemmProblem
from tuner.predict import PredictError
from tuner.predict.constants import calibration
from tuner.predict.evaluator import PredictedEvaluator
from tuner.predict.prior import LEAST_SD, prior

ROOT = Path(__file__).parents[3]
CONFIG = ServingConfig(tensor_parallel_size=16, decode_backend="latency_specialized", kv_cache_dtype="fp8")


def study(**changes: Any) -> StudyFile:
    document = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
    return parse({**document, **changes})


def no_process(process: Process, command: Sequence[str], log: str) -> None:
    raise AssertionError("a prediction starts nothing")


def measured(config: ServingConfig, file: StudyFile) -> list[Measurement | Failed]:
    request = StartRequest(start_id="s", candidate=config, purpose=Purpose.SEARCH, workloads=file.workloads)
    with PredictedEvaluator(file).start(request, started=no_process) as running:
        assert not isinstance(running, Failed)
        return [running.measure(workload, purpose=Purpose.SEARCH, repeat=0) for workload in file.workloads]


def test_a_prediction_says_that_it_is_one_and_by_which_constants() -> None:
    evaluator = PredictedEvaluator(study())
    fingerprint = evaluator.fingerprint(16)
    assert evaluator.origin is Origin.PREDICTED
    assert fingerprint.engine == "predicted"
    assert fingerprint.versions == {"calibration": calibration().key, "vllm": "0.33.0"}
    for found in measured(CONFIG, study()):
        assert isinstance(found, Measurement)
        assert found.origin is Origin.PREDICTED


def test_the_same_question_has_the_same_answer() -> None:
    assert measured(CONFIG, study()) == measured(CONFIG, study())


def test_a_prediction_generates_and_scores_nothing() -> None:
    request = StartRequest(start_id="s", candidate=CONFIG, purpose=Purpose.QUALITY, workloads=study().workloads)
    with PredictedEvaluator(study()).start(request, started=no_process) as running:
        assert not isinstance(running, Failed)
        for answer in (running.generate([[1]], max_tokens=1, concurrency=1), running.score([])):
            assert isinstance(answer, Failed)
            assert not answer.kind.retried


def test_what_is_not_predicted_fails_with_its_reason_and_never_becomes_a_number() -> None:
    eager = ServingConfig(tensor_parallel_size=16, enforce_eager=True)
    nine = ServingConfig(tensor_parallel_size=16, num_speculative_tokens=9, speculative_method="dspark")
    for config, words in ((eager, "CUDA graph"), (nine, "no value for 9 drafts")):
        for found in measured(config, study()):
            assert isinstance(found, Failed)
            assert found.kind is FailureKind.REJECTED_BY_ENGINE
            assert words in found.sentence


def test_kernel_problems_are_not_predicted() -> None:
    request = StartRequest(start_id="s", candidate=CONFIG, purpose=Purpose.SEARCH, workloads=())
    with PredictedEvaluator(study()).start(request, started=no_process) as running:
        assert not isinstance(running, Failed)
        found = running.measure(GemmProblem(n=1, k=1, m=1), purpose=Purpose.SEARCH, repeat=0)
    assert isinstance(found, Failed)


@pytest.mark.parametrize("changes", [{"model": "Qwen/Qwen3-32B"}, {"hardware": {"gpu": "H200", "gpus": 16}}])
def test_a_model_or_gpu_without_calibration_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(PredictError, match=r"predictions exist for moonshotai/Kimi-K3 on GB300, not for"):
        PredictedEvaluator(study(**changes))


def test_a_belief_is_the_log_ratio_of_the_predictions_to_the_baseline_s() -> None:
    file = study()
    what = plan(file)
    believe = prior(file)
    contest = what.contest(16)
    seed = contest.seeds[0]
    belief = believe(seed, what.workloads)
    assert belief is not None
    ratios = [
        mine.metrics[file.objective.metric] / theirs.metrics[file.objective.metric]
        for mine, theirs in zip(measured(seed, file), measured(contest.baseline, file), strict=True)  # type: ignore[arg-type, union-attr]
    ]
    assert belief.mean == pytest.approx(sum(map(math.log, ratios)) / len(ratios))
    assert 0.02 < belief.sd < 0.3
    same = believe(contest.baseline, what.workloads)
    assert same is not None
    assert (same.mean, same.sd) == (0, LEAST_SD)


def test_where_less_is_better_a_faster_candidate_is_still_believed_better() -> None:
    file = study(objective={"minimize": "tpot_mean_ms"})
    what = plan(file)
    belief = prior(file)(what.contest(16).seeds[0], what.workloads)
    assert belief is not None
    assert belief.mean > 0.2


def test_nothing_is_believed_of_real_acceptance_or_of_another_model() -> None:
    real = study(workload={"input_tokens": 1, "output_tokens": 100})
    assert prior(real)(plan(real).contest(16).seeds[0], real.workloads) is None
    other = study(model="someone/else")
    assert prior(other)(plan(other).contest(16).seeds[0], other.workloads) is None


def test_the_least_known_candidates_have_the_widest_beliefs() -> None:
    file = study()
    what = plan(file)
    believe = prior(file)

    def sd(**values: Any) -> float:
        found = next(
            c
            for contest in what.contests
            for c in contest.candidates
            if all(getattr(c, name) == value for name, value in values.items())
        )
        belief = believe(found, what.workloads)
        assert belief is not None
        return belief.sd

    known = {"decode_backend": "latency_specialized", "num_speculative_tokens": 7, "decode_context_parallel_size": 1}
    published = sd(tensor_parallel_size=16, **known)
    assert sd(tensor_parallel_size=8, **known) > published
    assert sd(tensor_parallel_size=16, **{**known, "decode_context_parallel_size": 16}) > published
