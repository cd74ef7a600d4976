"""A prediction in full: terms that add up, an interval, neighbours, and what it does not rest on."""

from dataclasses import replace

import pytest

from search_spaces.serving import ServingConfig
from tuner.core.acceptance import Acceptance
from tuner.core.workload import ServingWorkload
from tuner.predict.calibrate import calibrated, fit
from tuner.predict.explain import explain
from tuner.predict.published import fitted_rows

PUBLISHED = ServingConfig(
    tensor_parallel_size=16,
    decode_backend="latency_specialized",
    kv_cache_dtype="fp8",
    num_speculative_tokens=7,
    speculative_method="dspark",
)
WORKLOAD = ServingWorkload(
    input_tokens=1,
    output_tokens=1000,
    context_tokens=1,
    concurrency=1,
    requests=8,
    acceptance=Acceptance(fixed_length=6),
)


def test_the_terms_add_up_and_the_interval_holds_the_prediction() -> None:
    found = explain(PUBLISHED, replace(WORKLOAD, concurrency=4, context_tokens=8192))
    assert sum(found.terms.values()) == pytest.approx(found.step_ms)
    assert found.tpot_ms == pytest.approx(found.step_ms / found.acceptance_length + found.stall_ms)
    assert found.low_ms < found.tpot_ms < found.high_ms
    assert found.metrics["tpot_mean_ms"] == found.tpot_ms


def test_a_published_setting_is_its_own_nearest_and_extrapolates_nothing() -> None:
    found = explain(PUBLISHED, WORKLOAD)
    assert found.nearest[0].setting == "tp16 specialized, 7 drafts"
    assert found.nearest[0].differs == ()
    assert found.nearest[0].predicted_ms == found.step_ms
    assert found.extrapolates == ()
    assert set(found.rests_on) == {row.setting for row in fitted_rows()}


@pytest.mark.parametrize(
    ("config", "workload", "words"),
    [
        ({"tensor_parallel_size": 8}, {}, "the specialised path on 8 GPUs"),
        ({"decode_context_parallel_size": 16}, {}, "decode context parallel"),
        ({"num_speculative_tokens": 5}, {"acceptance": Acceptance(fixed_length=4)}, "5 drafts"),
        ({}, {"context_tokens": 65_536}, "contexts beyond"),
        ({}, {"concurrency": 4}, "several requests with drafts"),
        ({"decode_backend": "auto", "enable_expert_parallel": True}, {}, "expert parallel"),
        ({"decode_backend": "auto", "kv_cache_dtype": "auto"}, {}, "BF16 keys"),
        ({"decode_backend": "auto", "kernel_table": "tuned"}, {}, "tile table"),
        ({"mla_core": "trtllm"}, {}, "mla_core trtllm"),
    ],
)
def test_every_regime_without_a_published_measurement_is_named(
    config: dict[str, object], workload: dict[str, object], words: str
) -> None:
    found = explain(replace(PUBLISHED, **config), replace(WORKLOAD, **workload))  # type: ignore[arg-type]
    assert any(words in sentence for sentence in found.extrapolates)


def test_the_interval_widens_where_nothing_is_published() -> None:
    known, unknown = (explain(replace(PUBLISHED, tensor_parallel_size=tp), WORKLOAD) for tp in (16, 8))
    assert unknown.high_ms / unknown.low_ms > known.high_ms / known.low_ms


def test_a_silent_fallback_is_told() -> None:
    found = explain(PUBLISHED, replace(WORKLOAD, concurrency=9))
    assert (found.asked, found.path) == ("latency_specialized", "auto")
    assert found.metrics["specialized_share"] == 0


def test_another_calibration_answers_with_its_own_constants() -> None:
    rows = [row for row in fitted_rows() if row.setting != "tp16 specialized, 7 drafts"]
    other = explain(PUBLISHED, WORKLOAD, using=calibrated(fit(rows)))
    assert other.step_ms != explain(PUBLISHED, WORKLOAD).step_ms
    assert "tp16 specialized, 7 drafts" not in other.rests_on


def test_another_version_of_vllm_is_told_to_be_predicted_as_the_calibrated_one() -> None:
    assert explain(PUBLISHED, WORKLOAD, vllm="0.33.0").extrapolates == ()
    assert explain(PUBLISHED, WORKLOAD, vllm="0.34.1").extrapolates == ("vLLM 0.34.1: predicted as 0.33.0",)
