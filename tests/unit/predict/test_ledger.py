"""Predicted against measured: what is learnt of the model's error, and what raises an alarm."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.ports import Belief
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Failed, FailureKind, Measured, Trial
from tuner.predict.constants import calibration
from tuner.predict.ledger import Pair, ledger
from tuner.predict.study_ledger import study_ledger
from tuner.predict.traffic import metrics, traffic

ROOT = Path(__file__).parents[3]


def pairs(offs: list[float], sd: float = 0.05) -> list[Pair]:
    return [Pair(name=f"t{i}", predicted=100.0, log_sd=sd, measured=100 * math.exp(off)) for i, off in enumerate(offs)]


def test_without_a_measurement_nothing_is_learnt() -> None:
    found = ledger([])
    assert (found.bias, found.spread, found.entries) == (0, 1, ())
    assert "nothing" in found.sentence()


def test_a_bias_of_all_predictions_is_learnt_and_is_no_alarm() -> None:
    noise = random.Random(1)
    found = ledger(pairs([0.2 + noise.gauss(0, 0.05) for _ in range(20)]))
    assert found.bias == pytest.approx(0.2, abs=0.03)
    assert found.alarms == ()
    assert "20 predictions measured: +2" in found.sentence()


def test_one_measurement_far_outside_the_others_raises_an_alarm_and_only_that_one() -> None:
    noise = random.Random(2)
    found = ledger(pairs([*(noise.gauss(0, 0.05) for _ in range(10)), -1.0]))
    assert [entry.pair.name for entry in found.alarms] == ["t10"]
    assert "1 far outside" in found.sentence()


def test_predictions_that_were_too_sure_are_believed_less() -> None:
    noise = random.Random(3)
    found = ledger(pairs([noise.gauss(0, 0.2) for _ in range(30)]))
    assert found.spread == pytest.approx(4, rel=0.3)
    assert found.corrected(Belief(0.1, 0.05)).sd > 0.15


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=12))
def test_the_learnt_bias_lies_between_none_and_what_was_seen(offs: list[float]) -> None:
    found = ledger(pairs(offs))
    low, high = min(0, *offs), max(0, *offs)
    assert low - 1e-9 <= found.bias <= high + 1e-9


@pytest.mark.parametrize("change", [{"measured": 0.0}, {"predicted": -1.0}, {"log_sd": 0.0}])
def test_figures_that_have_no_logarithm_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="t0: predicted, measured and sd must be above zero"):
        ledger([replace(pairs([0.0])[0], **change)])


def study() -> StudyFile:
    document = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
    return parse({**document, "evaluator": "vllm"})


def trial(number: int, config: ServingConfig, factor: float, origin: Origin = Origin.MEASURED) -> Trial:
    """A trial that came out `factor` times as good as predicted."""
    found = []
    for workload in study().workloads:
        figures = metrics(config, workload, traffic(config, workload, calibration().constants))  # type: ignore[arg-type]
        name = study().objective.metric
        found.append(
            Measurement(
                start_id=f"s{number}",
                workload_key=workload.key,
                purpose=Purpose.SEARCH,
                repeat=0,
                origin=origin,
                metrics={name: figures[name] * factor},
            )
        )
    return _trial(number, config, Measured(measurements=tuple(found)))


def _trial(number: int, config: ServingConfig, outcome: Any) -> Trial:
    return Trial(number=number, candidate=config, key=candidate_key(config), gpus=16, baseline=False, outcome=outcome)


CONFIGS = [
    ServingConfig(tensor_parallel_size=16, decode_backend=backend, kv_cache_dtype="fp8", max_num_batched_tokens=tokens)
    for backend in ("auto", "latency_specialized")
    for tokens in (2048, 8192, 16384)
]


def test_a_study_s_ledger_holds_each_measured_trial_against_its_prediction() -> None:
    trials = [trial(number, config, 0.9) for number, config in enumerate(CONFIGS)]
    found = study_ledger(study(), trials)
    assert found is not None
    assert len(found.entries) == len(CONFIGS) * len(study().workloads)
    assert found.bias == pytest.approx(math.log(0.9), abs=0.02)


def test_failures_and_predictions_do_not_enter() -> None:
    failed = _trial(0, CONFIGS[0], Failed(kind=FailureKind.CRASHED, sentence="it crashed"))
    predicted = trial(1, CONFIGS[1], 1.0, Origin.PREDICTED)
    found = study_ledger(study(), [failed, predicted])
    assert found is not None
    assert found.entries == ()


def test_a_study_that_the_model_does_not_speak_of_has_no_ledger() -> None:
    other = study().model_copy(update={"model": "someone/else"})
    assert study_ledger(other, []) is None
