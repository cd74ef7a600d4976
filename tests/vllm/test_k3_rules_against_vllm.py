"""Our verdict on the specialised Kimi K3 decode is vLLM 0.33.0's own, point for point."""

from collections.abc import Mapping

import pytest
from asking import ask, python_files
from k3_points import MODEL, VLLMS_WORDS, disagreements, grid, outside

from search_spaces import kimi_k3
from search_spaces.serving import ServingConfig
from tuner.core.vllm_args import engine_options

pytestmark = pytest.mark.vllm

Asked = Mapping[str, tuple[list[ServingConfig], list[str | None]]]


@pytest.fixture(scope="module")
def asked() -> Asked:
    """Points and what vLLM said to each; one process answers for all."""
    points = {"grid": grid(), "outside": outside(4000, seed=20261201), "another GPU": grid()[::20]}
    question = [
        {
            "capability_family": 90 if name == "another GPU" else 100,
            "options": [engine_options(config, MODEL) for config in configs],
        }
        for name, configs in points.items()
    ]
    answer = ask("k3_verdicts.py", question, files=python_files())
    return {name: (configs, said) for (name, configs), said in zip(points.items(), answer, strict=True)}


def test_over_the_whole_grid_our_verdict_is_vllms(asked: Asked) -> None:
    points, verdicts = asked["grid"]
    assert len(points) == len(verdicts) > 1000
    assert 0 < verdicts.count(None) < len(points)
    assert disagreements(points, verdicts) == []


def test_over_random_points_outside_the_grid_our_verdict_is_vllms(asked: Asked) -> None:
    points, verdicts = asked["outside"]
    assert disagreements(points, verdicts) == []
    assert min(verdicts.count(None), sum(v is not None for v in verdicts)) > 200
    said = {word for word in VLLMS_WORDS.values() if any(v is not None and v.startswith(word) for v in verdicts)}
    assert said == set(VLLMS_WORDS.values()) - {"this GPU"}, "some refusal of vLLM was never provoked"


def test_every_rule_of_the_specialised_path_was_compared() -> None:
    assert {rule.name for rule in kimi_k3.specialized_rules("GB300")} == set(VLLMS_WORDS)


def test_on_a_gpu_of_another_family_both_refuse_every_point(asked: Asked) -> None:
    points, verdicts = asked["another GPU"]
    assert set(verdicts) == {"this GPU (SM100/103)"}
    assert disagreements(points, verdicts, gpu="H200") == []


def test_only_the_fp8_rule_is_stricter_than_vllm(asked: Asked) -> None:
    """vLLM's `unsupported` does not look at kv_cache_dtype, while the kernels write and read FP8 whatever it says."""
    accepted = [point for point, verdict in zip(*asked["grid"], strict=True) if verdict is None]
    refused = [point for point in accepted if not kimi_k3.FP8_KV.holds(point)]
    assert {point.kv_cache_dtype for point in refused} == {"auto"}
    assert {point.kv_cache_dtype for point in accepted if kimi_k3.FP8_KV.holds(point)} == {"fp8"}
