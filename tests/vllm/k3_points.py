"""Specialised Kimi K3 configurations inside and outside the grid, and where our verdict is not vLLM's."""

import random
from dataclasses import replace

from search_spaces import kimi_k3
from search_spaces.catalog import build
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space
from tuner.core.vllm_args import ModelRef

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


def space(draft: str = kimi_k3.DRAFT_MODEL) -> Space:
    setting = Setting(
        model=MODEL.model, gpu="GB300", gpus=16, gpus_per_node=4, max_model_len=9192, max_concurrency=8,
        draft_models={"dspark": draft},
    )  # fmt: skip
    return build("kimi_k3_gb300", setting)


def grid() -> list[ServingConfig]:
    """Every specialised point of the space, the ones that some other rule refuses included."""
    points = space().points()
    return [p for p in points if isinstance(p, ServingConfig) and p.decode_backend == kimi_k3.SPECIALIZED]


def outside(count: int, seed: int, draft: str = kimi_k3.DRAFT_MODEL) -> list[ServingConfig]:
    """Distinct specialised points: one to four settings drawn from beyond the grid, the rest supported."""
    draw = random.Random(seed)
    supported = ServingConfig(
        tensor_parallel_size=8, decode_backend=kimi_k3.SPECIALIZED, speculative_method="dspark",
        speculative_model=draft, num_speculative_tokens=7, kv_cache_dtype="fp8",
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
