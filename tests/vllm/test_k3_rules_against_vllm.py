"""Our verdict on the specialised Kimi K3 decode is vLLM 0.33.0's own, point for point."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from asking import ask, python_files

from search_spaces import kimi_k3
from search_spaces.catalog import build
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from tuner.core.vllm_args import ModelRef, engine_options

pytestmark = pytest.mark.vllm

MODEL = ModelRef(model="moonshotai/Kimi-K3", trust_remote_code=True)
# vLLM's reason (its beginning) for each of our rules.
VLLMS_WORDS = {
    "specialized-gpu": "this GPU",
    "specialized-tp": "TP other than 8/16",
    "specialized-pp": "pipeline parallelism",
    "specialized-ep": "expert parallelism",
    "specialized-dbo": "DBO",
    "specialized-dcp": "decode context parallel",
    "specialized-sleep": "sleep mode",
    "specialized-lora": "LoRA",
    "specialized-graphs": "deployments without FULL decode CUDA graphs",
    "specialized-compile": "torch.compile",
    "specialized-method": "speculative methods but DSpark",
    "specialized-adaptive": "adaptive verification",
    "specialized-kda-dtypes": "KDA ",
    "specialized-replay": "ReplaySSM",
    "specialized-drafts": "more than 7 speculative tokens",
}


def ours(config: ServingConfig, gpu: str = "GB300") -> list[str]:
    return [rule.name for rule in kimi_k3.specialized_rules(gpu) if not rule.holds(config)]


def disagreements(configs: list[ServingConfig], verdicts: list[str | None], gpu: str = "GB300") -> list[object]:
    """Points where one refuses and the other does not, or where vLLM's reason is not among ours."""
    found: list[object] = []
    for config, theirs in zip(configs, verdicts, strict=True):
        mine = ours(config, gpu)
        words = [VLLMS_WORDS[name] for name in mine]
        if (theirs is None) != (not mine) or (theirs is not None and not any(theirs.startswith(w) for w in words)):
            found.append((config.values(), theirs, mine))
    return found


def grid() -> list[ServingConfig]:
    """Every specialised point of the space, the ones that some other rule refuses included."""
    setting = Setting(
        model=MODEL.model, gpu="GB300", gpus=16, gpus_per_node=4, max_model_len=9192, max_concurrency=8
    )  # fmt: skip
    points = build("kimi_k3_gb300", setting).points()
    return [p for p in points if isinstance(p, ServingConfig) and p.decode_backend == kimi_k3.SPECIALIZED]


def outside(count: int, seed: int) -> list[ServingConfig]:
    """Distinct specialised points: one to four settings drawn from beyond the grid, the rest supported."""
    draw = random.Random(seed)
    supported = ServingConfig(
        tensor_parallel_size=8, decode_backend=kimi_k3.SPECIALIZED, speculative_method="dspark",
        speculative_model=kimi_k3.DRAFT_MODEL, num_speculative_tokens=7, kv_cache_dtype="fp8",
    )  # fmt: skip
    fields: dict[str, list[object]] = {
        "tensor_parallel_size": [1, 2, 4, 8, 16, 32],
        "pipeline_parallel_size": [1, 2, 4],
        "decode_context_parallel_size": [1, 2, 4, 8, 16, 32],
        "enable_expert_parallel": [None, False, True],
        "speculative_method": ["dspark", "eagle", "eagle3", "ngram", "mtp", "dflash"],
        "num_speculative_tokens": [0, 1, 2, 3, 7, 8, 9, 16],
        "mamba_cache_dtype": [None, "auto", "bfloat16", "float16", "float32"],
        "mamba_ssm_cache_dtype": [None, "auto", "float32", "bfloat16", "float16"],
        "enforce_eager": [None, False, True],
        "cudagraph_mode": [None, "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"],
    }
    options: dict[str, list[bool | int]] = {
        "enable-dbo": [True, False],
        "ubatch-size": [0, 1, 2],
        "enable_sleep_mode": [True, False],
        "enable-lora": [True, False],
        "no-enable-lora": [True],
        "use-replayssm": [True, False],
        "speculative-config.enable_adaptive_verification": [True, False],
        "compilation-config.mode": [0, 1, 2, 3],
    }
    found: dict[ServingConfig, None] = {}
    while len(found) < count:
        names = draw.sample([*fields, *options], draw.randint(1, 4))
        if {"enable-lora", "no-enable-lora"} <= set(names):
            continue
        changes = {name: draw.choice(fields[name]) for name in names if name in fields}
        further = tuple(sorted((name, draw.choice(options[name])) for name in names if name in options))
        found[replace(supported, **changes, options=further)] = None  # type: ignore[arg-type]
    return list(found)


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
