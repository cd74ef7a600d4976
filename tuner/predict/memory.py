"""Bytes that a configuration needs on each GPU, what fits, and the refusal of what cannot. Knows no time."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from search_spaces.candidate import Candidate
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core.ports import Check
from tuner.core.study_file import StudyFile
from tuner.core.workload import ServingWorkload
from tuner.predict import layers

GIB = 2**30
DEVICE_BYTES = {"GB300": 284_208 * 2**20}  # aiconfigurator 0.12.0, gb300.yaml
USABLE = 0.92  # vLLM's default gpu-memory-utilization (0.33.0, config/cache.py)
# Activations of a prefill step, CUDA graphs, communication buffers. An allowance, not a measurement: nobody published
# what vLLM profiles for this model.
WORKSPACE_BYTES = 12 * GIB


def bytes_needed(config: ServingConfig, *, requests: int, context: int) -> Mapping[str, float]:
    """By part, of one rank, with `requests` running at `context` tokens each.

    A running request holds one recurrent state for each token of a step, so that refused drafts can be undone (vLLM
    0.33.0, `num_speculative_blocks`).
    """
    return _needed(
        config.tensor_parallel_size,
        config.decode_context_parallel_size,
        config.decode_backend == "latency_specialized",
        bool(config.enable_expert_parallel),
        (config.kv_cache_dtype or "auto").startswith("fp8"),
        config.mamba_ssm_cache_dtype != "bfloat16",
        config.num_speculative_tokens,
        min(requests, config.max_num_seqs or requests),
        context,
    )


def usable_bytes(config: ServingConfig, gpu: str, *, share: float = USABLE) -> float:
    """share: of the memory that vLLM may take, where the configuration does not say.

    Raises KeyError for a GPU whose memory is not known here.
    """
    said = {name.replace("-", "_"): value for name, value in config.options}.get("gpu_memory_utilization")
    return DEVICE_BYTES[gpu] * (float(said) if said is not None else share)


def largest_context(config: ServingConfig, gpu: str, *, requests: int) -> int:
    """Tokens that each of so many running requests can have; 0 where not even an empty one fits."""
    empty = math.fsum(bytes_needed(config, requests=requests, context=0).values())
    token = bytes_needed(config, requests=requests, context=1)["keys and values"]
    return max(0, int((usable_bytes(config, gpu) - empty) // token))


def most_requests(config: ServingConfig, gpu: str, *, context: int) -> int:
    """That can run at once at that context, whatever max_num_seqs says; 0 where none can."""
    one = bytes_needed(config, requests=1, context=context)
    fixed = one["weights"] + one["draft model"] + one["workspace"]
    each = one["keys and values"] + one["recurrent state"]
    return max(0, int((usable_bytes(config, gpu) - fixed) // each))


def memory_check(file: StudyFile) -> Check:
    """Refuses candidates whose workloads cannot fit, with the arithmetic in the reason; knows nothing of other GPUs.

    Keys and values may be paged out and requests preempted, so one request is what must fit.
    """
    serving = [workload for workload in file.workloads if isinstance(workload, ServingWorkload)]
    options = {name.replace("-", "_"): value for name, value in file.engine.options.items()}
    share = float(options.get("gpu_memory_utilization", USABLE))

    def check(candidate: Candidate) -> Sequence[Reason]:
        if not isinstance(candidate, ServingConfig) or file.hardware.gpu not in DEVICE_BYTES:
            return ()
        for workload in serving:
            parts = bytes_needed(candidate, requests=1, context=workload.max_model_len)
            total, usable = math.fsum(parts.values()), usable_bytes(candidate, file.hardware.gpu, share=share)
            if total > usable:
                return (_reason(workload, parts, total, usable),)
        return ()

    return check


def _reason(workload: ServingWorkload, parts: Mapping[str, float], total: float, usable: float) -> Reason:
    sums = " + ".join(f"{size / GIB:.1f} {name}" for name, size in parts.items() if size)
    return Reason(
        rule="memory",
        sentence=f"one request of {workload.key} needs {total / GIB:.1f} GiB a GPU ({sums}); "
        f"{usable / GIB:.1f} are usable",
        source="arithmetic from the model's config.json and the GPU's memory; the workspace is an allowance",
    )


@lru_cache(maxsize=65_536)
def _needed(
    tp: int,
    dcp: int,
    specialized: bool,
    experts: bool,
    fp8: bool,
    float32: bool,
    drafts: int,
    running: int,
    context: int,
) -> Mapping[str, float]:
    states = running * (drafts + 1) * (layers.state_bytes(tp, float32=float32) + layers.conv_bytes(tp))
    return {
        "weights": layers.weights(tp, specialized=specialized, expert_parallel=experts).held,
        "draft model": layers.BF16 * layers.DRAFT_PARAMETERS / tp if drafts else 0.0,
        "keys and values": running * layers.kv_bytes(context, fp8=fp8, dcp=dcp),
        "recurrent state": states,
        "workspace": float(WORKSPACE_BYTES),
    }
