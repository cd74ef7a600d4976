"""Decode steps of a workload that no CUDA graph covers. Arithmetic of vLLM's own; it starts nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.candidate import Candidate
from search_spaces.capture_sizes import captured
from search_spaces.serving import ServingConfig
from tuner.core.workload import ServingWorkload, Workload

VLLM_COMPILE = 3  # the compilation mode that piecewise graphs need; vLLM's default


def without_graph(candidate: Candidate, workloads: Sequence[Workload], options: Mapping[str, Any]) -> list[str]:
    """A sentence for each full decode step that runs without a graph; nothing where vLLM's defaults decide.

    options: vLLM options that the study sets for every candidate.
    Source: vLLM 0.25.1 and 0.33.0, config/compilation.py (sizes) and config/vllm.py (mode).
    """
    if not isinstance(candidate, ServingConfig):
        return []
    why = _no_graph_at_all(candidate, options)
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


def _no_graph_at_all(candidate: ServingConfig, options: Mapping[str, Any]) -> str:
    if candidate.enforce_eager or options.get("enforce-eager"):
        return "enforce-eager"
    mode = candidate.cudagraph_mode
    if mode == "NONE":
        return "cudagraph_mode is NONE"
    compilation = options.get("compilation-config")
    compiled = compilation.get("mode", VLLM_COMPILE) if isinstance(compilation, Mapping) else VLLM_COMPILE
    if mode is not None and "PIECEWISE" in mode and compiled != VLLM_COMPILE:
        return f"cudagraph_mode {mode} needs compilation mode {VLLM_COMPILE}, and this is {compiled}"
    return ""
