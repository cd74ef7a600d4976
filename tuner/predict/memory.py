"""Bytes that a configuration needs on each GPU, and the refusal of what cannot fit. Knows no time."""

from collections.abc import Sequence

from search_spaces.candidate import Candidate
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core.ports import Check
from tuner.core.study_file import StudyFile
from tuner.core.workload import ServingWorkload
from tuner.predict import layers

GIB = 2**30
DEVICE_BYTES = 284_208 * 2**20  # GB300, aiconfigurator 0.12.0, gb300.yaml
USABLE = 0.9  # vLLM's default gpu-memory-utilization
WORKSPACE_BYTES = (
    12 * GIB
)  # activations, CUDA graphs, communication buffers, draft model; an allowance, not a measurement


def bytes_needed(config: ServingConfig, *, requests: int, context: int) -> dict[str, float]:
    """By part, of one rank."""
    tp = config.tensor_parallel_size
    specialized = config.decode_backend == "latency_specialized"
    fp8 = (config.kv_cache_dtype or "auto").startswith("fp8")
    running = min(requests, config.max_num_seqs or requests)
    return {
        "weights": layers.weights(tp, specialized=specialized).held,
        "keys and values": running * layers.kv_bytes(context, fp8=fp8, dcp=config.decode_context_parallel_size),
        "recurrent state": running * layers.state_bytes(tp, float32=config.mamba_ssm_cache_dtype != "bfloat16"),
        "workspace": float(WORKSPACE_BYTES),
    }


def memory_check(file: StudyFile) -> Check:
    """Refuses candidates whose workloads cannot fit, with the arithmetic in the reason."""
    serving = [workload for workload in file.workloads if isinstance(workload, ServingWorkload)]

    def check(candidate: Candidate) -> Sequence[Reason]:
        if not isinstance(candidate, ServingConfig):
            return ()
        for workload in serving:
            parts = bytes_needed(candidate, requests=workload.concurrency, context=workload.max_model_len)
            total = sum(parts.values())
            if total > DEVICE_BYTES * USABLE:
                sums = " + ".join(f"{size / GIB:.1f} {name}" for name, size in parts.items())
                return (
                    Reason(
                        rule="memory",
                        sentence=f"{workload.key} needs {total / GIB:.1f} GiB a GPU ({sums}); "
                        f"{DEVICE_BYTES * USABLE / GIB:.1f} are usable",
                        source="arithmetic from the model's config.json and the GPU's memory",
                    ),
                )
        return ()

    return check
