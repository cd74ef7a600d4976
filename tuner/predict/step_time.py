"""One decode step in milliseconds, term by term. Knows no traffic and no memory limit.

A step is a chain of small kernels, whose number and not whose work decides at one request, and bytes of weights and
state at the memory's pace. Overlap between the two is in the fitted constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log2
from types import MappingProxyType

from search_spaces.serving import ServingConfig
from tuner.predict import PredictError, layers
from tuner.predict.constants import (
    COLLECTIVES_A_LAYER,
    KERNELS_A_DRAFT,
    KERNELS_A_LAYER,
    SPECIALIZED_COLLECTIVE_US,
    Constants,
)
from tuner.predict.kernels import attention_us, collective_us

SPECIALIZED = "latency_specialized"
LARGEST_SPECIALIZED = 64  # tokens of a captured step; larger ones run stock kernels (vLLM 0.33.0, decode.py `plan`)
TENSOR_PARALLEL = (8, 16)
GRAPHS_OF_DECODE = (None, "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
# Of the generic collectives' time; nothing is published of DCP on the specialised path, whose exchanges are fused.
DCP_SPECIALIZED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that a step's time depends on; configurations that share it are predicted once.

    path: the kernels that really run.   tokens: of the captured graph, requests x (drafts + 1) or a little more.
    context: tokens in the cache of each request.   months: before the constants' date.
    """

    path: str
    tensor_parallel: int
    requests: int
    drafts: int
    tokens: int
    context: int
    dcp: int = 1
    dcp_comm: str = "ag_rs"
    fp8_kv: bool = True
    float32_state: bool = True
    expert_parallel: bool = False
    months: float = 0.0


def setup(config: ServingConfig, *, requests: int, context: int) -> Setup:
    """requests: decoding at once.   context: tokens in the cache of each.

    Raises:
        PredictError: parallelism without constants, another draft than DSpark, or a step that no CUDA graph covers.
    """
    if config.tensor_parallel_size not in TENSOR_PARALLEL or config.pipeline_parallel_size != 1:
        raise PredictError(
            f"Kimi K3 is predicted for tensor parallel {' and '.join(map(str, TENSOR_PARALLEL))} without pipeline "
            f"parallel, not for {config.tensor_parallel_size} x {config.pipeline_parallel_size}"
        )
    if config.num_speculative_tokens and config.speculative_method not in (None, "dspark"):
        raise PredictError(f"Kimi K3 is predicted with DSpark drafts, not with {config.speculative_method}")
    if config.enforce_eager or config.cudagraph_mode not in GRAPHS_OF_DECODE:
        raise PredictError("decode steps without a full CUDA graph are not predicted")
    tokens = _captured(config.cudagraph_capture_sizes, requests * config.tokens_per_request)
    asked = config.decode_backend or "auto"
    path = asked if tokens <= LARGEST_SPECIALIZED else "auto"
    return Setup(
        path=path,
        tensor_parallel=config.tensor_parallel_size,
        requests=requests,
        drafts=config.num_speculative_tokens,
        tokens=tokens,
        context=context,
        dcp=config.decode_context_parallel_size,
        dcp_comm=config.dcp_comm_backend or "ag_rs",
        # The specialised kernels store FP8 whatever is asked for.
        fp8_kv=asked == SPECIALIZED or (config.kv_cache_dtype or "auto").startswith("fp8"),
        float32_state=config.mamba_ssm_cache_dtype != "bfloat16",
        expert_parallel=bool(config.enable_expert_parallel),
    )


def terms(what: Setup, constants: Constants) -> Mapping[str, float]:
    """Milliseconds by name, in the order of a waterfall; those that do not arise are zero."""
    fitted, tp = constants.fitted, what.tensor_parallel
    specialized = what.path == SPECIALIZED
    pace = constants.bytes_per_ms
    held = layers.weights(tp, specialized=specialized, expert_parallel=what.expert_parallel)
    drift = exp(fitted.drift * what.months)
    kernel_ms = fitted.kernel_us * drift / 1000
    chain = layers.LAYERS * KERNELS_A_LAYER[what.path] * kernel_ms
    read = layers.busiest_rank(what.tokens, tp) if what.expert_parallel else layers.experts_read(what.tokens)
    # One state is read a request, and one is written a token of the step, so that a refused draft can be undone.
    states = what.requests * (what.drafts + 2)
    found = {
        "kernel chain": chain,
        "chain, for more tokens": chain * fitted.growth * log2(what.tokens),
        "collectives over 16 ranks": _sixteen_ranks_ms(what, fitted.collective_us * drift),
        "dense weights": held.always / (pace * constants.dense),
        "expert weights": layers.MOE_LAYERS
        * read
        * held.expert
        / (pace * (fitted.specialized_experts if specialized else constants.stock_experts)),
        "recurrent state": states * layers.state_bytes(tp, float32=what.float32_state) / (pace * constants.dense),
        "attention over the context": layers.MLA_LAYERS
        * attention_us(what.requests, what.context / what.dcp, fp8=what.fp8_kv)
        / 1000,
        "context parallel exchange": _exchange_ms(what),
        "draft model": _draft_ms(what, constants, kernel_ms),
    }
    return MappingProxyType(found)


def step_ms(what: Setup, constants: Constants) -> float:
    return sum(terms(what, constants).values())


def _captured(sizes: tuple[int, ...] | None, tokens: int) -> int:
    if sizes is None:
        return tokens  # vLLM adds the exact multiples itself
    covering = [size for size in sizes if size >= tokens]
    if not covering:
        raise PredictError(f"no captured CUDA graph covers a step of {tokens} tokens; such steps are not predicted")
    return min(covering)


def _sixteen_ranks_ms(what: Setup, stock_us: float) -> float:
    """Beyond what the same collectives take on 8 ranks, which is in the chain."""
    if what.tensor_parallel != 16:
        return 0.0
    each = SPECIALIZED_COLLECTIVE_US if what.path == SPECIALIZED else stock_us
    return layers.LAYERS * COLLECTIVES_A_LAYER * each / 1000


def _exchange_ms(what: Setup) -> float:
    """Queries gathered, partial outputs and their sums exchanged, in each MLA layer."""
    if what.dcp == 1:
        return 0.0
    gather = collective_us("all_gather", what.dcp)
    outputs = collective_us("alltoall", what.dcp) if what.dcp_comm == "a2a" else (
        collective_us("all_gather", what.dcp) + collective_us("reduce_scatter", what.dcp)
    )  # fmt: skip
    share = DCP_SPECIALIZED if what.path == SPECIALIZED else 1.0
    return layers.MLA_LAYERS * (gather + outputs) * share / 1000


def _draft_ms(what: Setup, constants: Constants, kernel_ms: float) -> float:
    """DSpark drafts its block in one pass of its layers and samples it token by token."""
    if what.drafts == 0:
        return 0.0
    weights = layers.BF16 * layers.DRAFT_PARAMETERS / what.tensor_parallel / (constants.bytes_per_ms * constants.dense)
    kernels = layers.DRAFT_LAYERS * KERNELS_A_LAYER["auto"] + what.drafts * KERNELS_A_DRAFT
    return weights + kernels * kernel_ms + constants.fitted.draft_ms
