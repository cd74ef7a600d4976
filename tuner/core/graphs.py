"""Decode steps of a workload that no CUDA graph covers. Arithmetic of vLLM's own; it starts nothing."""

from collections.abc import Mapping, Sequence

from packaging.version import Version

from search_spaces.candidate import Candidate
from search_spaces.capture_sizes import captured
from search_spaces.serving import ServingConfig
from tuner.core.spaces import VLLM_VERSION
from tuner.core.study_file import EngineSection
from tuner.core.workload import ServingWorkload, Workload

VLLM_COMPILE = 3, "3", "VLLM_COMPILE", None  # as the compilation mode that piecewise graphs need may be written
# Without it FULL_AND_PIECEWISE leaves no graph in vLLM 0.25.1, and those of decode steps in 0.32.0 and 0.33.0.
LAST_WITHOUT_ANY = Version("0.25.1")


def without_graph(candidate: Candidate, workloads: Sequence[Workload], engine: EngineSection) -> list[str]:
    """A sentence for each full decode step that runs without a graph; nothing where vLLM's defaults decide.

    engine: what the study sets for every candidate.
    Source: vLLM 0.25.1, 0.32.0 and 0.33.0, config/compilation.py (sizes) and config/vllm.py (mode).
    """
    if not isinstance(candidate, ServingConfig):
        return []
    why = _no_graph_at_all(candidate, engine)
    sizes = captured(candidate.cudagraph_capture_sizes, candidate.tokens_per_request)
    found = []
    for requests in sorted({_running(candidate, w) for w in workloads if isinstance(w, ServingWorkload)}):
        tokens = requests * candidate.tokens_per_request
        if why:
            found.append(f"steps of {requests} requests ({tokens} tokens) ran without a CUDA graph: {why}")
        elif sizes is not None and tokens > max(sizes, default=0):
            largest = f"the largest graph is of {max(sizes)} tokens" if sizes else "no size is left"
            found.append(f"steps of {requests} requests ({tokens} tokens) ran without a CUDA graph: {largest}")
    return found


def _running(candidate: ServingConfig, workload: ServingWorkload) -> int:
    return min(workload.concurrency, candidate.max_num_seqs or workload.concurrency)


def _no_graph_at_all(candidate: ServingConfig, engine: EngineSection) -> str:
    if candidate.enforce_eager or engine.options.get("enforce-eager"):
        return "enforce-eager"
    mode = candidate.cudagraph_mode
    if mode == "NONE":
        return "cudagraph_mode is NONE"
    compilation = engine.options.get("compilation-config")
    compiled = compilation.get("mode") if isinstance(compilation, Mapping) else None
    if compiled in VLLM_COMPILE or engine.environment.get("VLLM_USE_BREAKABLE_CUDAGRAPH") == "1":
        return ""
    of_decode_kept = mode == "FULL_AND_PIECEWISE" and Version(engine.version or VLLM_VERSION) > LAST_WITHOUT_ANY
    if mode is not None and "PIECEWISE" in mode and not of_decode_kept:
        return f"cudagraph_mode {mode} needs compilation mode {VLLM_COMPILE[0]}, and this is {compiled}"
    return ""
