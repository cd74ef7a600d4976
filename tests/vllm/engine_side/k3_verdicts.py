"""Run by the engine's interpreter: what vLLM 0.33.0's specialised Kimi K3 decode says to each set of options.

question: [{"capability_family": 100, "options": [rendered vLLM options, ...]}, ...].   answer: for each group, a reason
or null for each set of options.
The configuration objects carry what vLLM's own would after its defaults; the verdict is vLLM's own function.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.config import CompilationMode, CUDAGraphMode
from vllm.models.kimi_k3.nvidia.specialized_decode.runtime import unsupported
from vllm.platforms import current_platform

# moonshotai/Kimi-K3, config.json, text_config.
KIMI_K3 = {
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_router_activation_func": "sigmoid",
}


def configuration(options):
    compilation = options.get("compilation-config", {})
    # vllm/config/vllm.py: optimisation level 2 is the default, and enforce_eager overrides both.
    graphs = CUDAGraphMode[compilation.get("cudagraph_mode", "FULL_AND_PIECEWISE")]
    mode = CompilationMode(compilation.get("mode", CompilationMode.VLLM_COMPILE))
    if options.get("enforce-eager"):
        graphs, mode = CUDAGraphMode.NONE, CompilationMode.NONE
    drafting = options.get("speculative-config")
    replay = options.get("use-replayssm", False)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=options["tensor-parallel-size"],
            pipeline_parallel_size=options.get("pipeline-parallel-size", 1),
            decode_context_parallel_size=options.get("decode-context-parallel-size", 1),
            enable_expert_parallel=options.get("enable-expert-parallel", False),
            use_ubatching=options.get("enable-dbo", False) or options.get("ubatch-size", 0) > 1,
        ),
        speculative_config=drafting
        and SimpleNamespace(
            method=drafting["method"],
            num_speculative_tokens=drafting["num_speculative_tokens"],
            enable_adaptive_verification=drafting.get("enable_adaptive_verification", False),
        ),
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(**KIMI_K3),
            enable_sleep_mode=options.get("enable-sleep-mode", False),
            dtype=torch.bfloat16,
        ),
        lora_config=object() if options.get("enable-lora") else None,
        use_v2_model_runner=True,
        compilation_config=SimpleNamespace(mode=mode, cudagraph_mode=graphs),
        cache_config=SimpleNamespace(
            mamba_cache_dtype=options.get("mamba-cache-dtype", "auto"),
            mamba_ssm_cache_dtype=options.get("mamba-ssm-cache-dtype", "auto"),
            use_replayssm=replay,
            use_kda_recoverssm=replay and drafting is not None,
        ),
    )


def verdict(options):
    try:
        return unsupported(configuration(options))
    except ValueError as error:  # a dtype that KDA has no kernel for
        return str(error)


def verdicts(group):
    """The reasons on a GPU of the group's capability family; the platform is told that it is one."""
    type(current_platform).is_device_capability_family = lambda _, asked: asked == group["capability_family"]
    return [verdict(options) for options in group["options"]]


if __name__ == "__main__":
    question = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([verdicts(group) for group in question]))
