"""vLLM 0.33.0 builds its own configuration from what we write for Kimi K3, and judges it as we do."""

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking import ask, python_files
from k3_points import disagreements, outside, space

from search_spaces import kimi_k3
from search_spaces.serving import ServingConfig
from tuner.core.vllm_args import ModelRef, engine_options, to_yaml

pytestmark = pytest.mark.vllm

KIMI_K3 = Path(__file__).parent / "models/kimi_k3"


@dataclass(frozen=True)
class Judged:
    config: ServingConfig
    reasons: list[str]
    vllm: dict[str, Any]


def draft(folder: Path) -> Path:
    """A configuration in the shape of the published DSpark draft: dense MLA layers beside the target's own sizes."""
    target = json.loads((KIMI_K3 / "config.json").read_text())["text_config"]
    shared = ("hidden_size", "num_attention_heads", "vocab_size", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
              "qk_rope_head_dim", "v_head_dim", "rms_norm_eps")  # fmt: skip
    config = {
        **{name: target[name] for name in shared},
        "architectures": ["K3DSparkModel"],
        "model_type": "kimi_linear",
        "num_key_value_heads": target["num_attention_heads"],
        "num_hidden_layers": 5,
        "intermediate_size": 14336,
        "block_size": 7,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 1048576,
        "target_layer_ids": [1, 30, 60, 90],
        "markov_rank": 64,
        "draft_vocab_size": target["vocab_size"],
        "dflash_config": {"target_layer_ids": [1, 30, 60, 90], "mask_token_id": 3},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Baselines, seeds, 240 points of the space and 160 beside it, each with our reasons and what vLLM said."""
    folder = str(draft(tmp_path_factory.mktemp("draft")))  # vLLM would read the method off a name with "dspark" in it
    built = space(folder)
    points: list[Any] = random.Random(33).sample(list(built.points()), 240)
    configs: list[Any] = [*built.baselines.values(), *built.seeds, *points, *outside(160, seed=33, draft=folder)]
    model = ModelRef(
        model=str(KIMI_K3),
        extra={"skip-tokenizer-init": True, "language-model-only": True, "enable-prefix-caching": False},
    )
    answer = ask(
        "k3_configs.py",
        [to_yaml(engine_options(config, model)) for config in configs],
        files=python_files(),
        # Without Triton vLLM falls back to its V1 runner, which has no DSpark; on a GPU the V2 runner is the default.
        variables={"VLLM_USE_V2_MODEL_RUNNER": "1"},
    )
    return [
        Judged(config, [reason.rule for reason in built.reasons(config)], said)
        for config, said in zip(configs, answer, strict=True)
    ]


def test_vllm_builds_every_feasible_candidate_and_supports_the_specialised_ones(judged: list[Judged]) -> None:
    feasible = [each for each in judged if not each.reasons]
    assert [(each.config.values(), each.vllm["error"]) for each in feasible if each.vllm["error"]] == []
    paths = Counter(each.config.decode_backend for each in feasible)
    assert min(paths["auto"], paths[kimi_k3.SPECIALIZED]) > 20
    for each in feasible:
        if each.config.decode_backend == kimi_k3.SPECIALIZED:
            assert each.vllm["unsupported"] is None


def test_vllm_keeps_the_derived_capture_sizes_and_captures_full_decode_graphs(judged: list[Judged]) -> None:
    for each in judged:
        if not each.reasons and each.config.cudagraph_capture_sizes is not None:
            assert tuple(each.vllm["capture_sizes"]) == each.config.cudagraph_capture_sizes
            assert each.vllm["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_on_vllms_own_configuration_objects_its_verdict_is_ours(judged: list[Judged]) -> None:
    """The wide comparison uses stand-ins for these objects; here they are the real ones.

    Stock torch.compile is left out: vLLM itself turns it off for this model before it asks (breakable CUDA graphs), and
    refuses it where it is still on, so our rule is the stricter one.
    """
    built = [
        each for each in judged
        if each.vllm["error"] is None
        and each.config.decode_backend == kimi_k3.SPECIALIZED
        and "specialized-compile" not in each.reasons
    ]  # fmt: skip
    verdicts = [each.vllm["unsupported"] for each in built]
    assert disagreements([each.config for each in built], verdicts) == []
    assert min(verdicts.count(None), len(verdicts) - verdicts.count(None)) > 20


def test_vllm_refuses_what_our_arithmetic_refuses(judged: list[Judged]) -> None:
    errors = [each.vllm["error"] for each in judged if "dcp-divides-tp" in each.reasons]
    assert None not in errors
    assert sum("must be divisible by dcp_size" in error for error in errors) > 10
