"""A measured study of Kimi K3 on GB300 shows how predictions fared, and an alarm where one was far off."""

from pathlib import Path
from typing import Any

import yaml

from tests.fake_engine import FakeEvaluator, FakeRunning
from tests.unit.core.test_loop import Bench
from tuner.app.predicting import study_ledger
from tuner.core.measurement import Measurement, Purpose
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload
from tuner.predict.explain import explain

EXAMPLE = Path(__file__).parents[3] / "examples" / "kimi_k3_gb300.yaml"


def file(**changes: Any) -> StudyFile:
    document = yaml.safe_load(EXAMPLE.read_text())
    only = {"tensor_parallel_size": 16, "decode_context_parallel_size": 1, "max_num_batched_tokens": 2048}
    only |= {"kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "float32", "kernel_table": "stock"}
    only |= {"enable_expert_parallel": False, "decode_backend": "auto"}
    workload = {**document["workload"], "context_tokens": [1]}
    return parse(
        {**document, "evaluator": "vllm", "fix": only, "workload": workload, "budget": {"trials": 6}, **changes}
    )


def bench(off: dict[int, float]) -> Bench:
    """Measured TPOT is the prediction times 1.1, and times `off` for some draft lengths."""

    def measure(self: FakeRunning, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        config = self.request.candidate
        assert isinstance(workload, ServingWorkload)
        seen = explain(config, workload)  # type: ignore[arg-type]
        drafts = config.num_speculative_tokens  # type: ignore[attr-defined]
        tpot = seen.tpot_ms * 1.1 * off.get(drafts, 1.0)
        return Measurement(
            start_id=self.request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=self.evaluator.origin,
            metrics={
                "tpot_mean_ms": tpot,
                "decode_tokens_per_s_per_user": 1000 / tpot,
                "ttft_p99_ms": 10.0,
                "acceptance_length": seen.acceptance_length,
            },
        )

    plain = FakeRunning.measure
    FakeRunning.measure = measure  # type: ignore[method-assign]
    try:
        made = Bench(file(quality={"enabled": False}), FakeEvaluator(lambda candidate, workload: 1.0))
        made.run()
    finally:
        FakeRunning.measure = plain  # type: ignore[method-assign]
    return made


def test_a_steady_bias_is_learnt_and_raises_no_alarm() -> None:
    made = bench({})
    known = study_ledger(made.studies, made.studies.get("s1"))
    assert known is not None
    assert len(known.entries) == 7
    assert 0.0 < known.bias < 0.12
    assert known.alarms == ()


def test_a_measurement_far_outside_raises_an_alarm_that_names_it() -> None:
    made = bench({4: 3.0})
    known = study_ledger(made.studies, made.studies.get("s1"))
    assert known is not None
    assert len(known.alarms) == 1
    assert known.alarms[0].pair.measured > 2 * known.alarms[0].pair.predicted


def test_a_study_that_the_model_does_not_speak_of_has_no_ledger() -> None:
    made = bench({})
    study = made.studies.get("s1")
    predicted = file(evaluator="predicted")
    import dataclasses

    assert study_ledger(made.studies, dataclasses.replace(study, file=predicted)) is None
