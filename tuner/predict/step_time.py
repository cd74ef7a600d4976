"""One decode step in milliseconds, term by term. Knows no traffic and no memory limit.

The constants were set on six published steps of vLLM on GB300: TP16 at 1 and 64 requests without drafts and at 1 with
7, on both paths (announcement of 2026-10-16). TP8 without drafts was left out (PR #53526: 8.44 ms; here 8.9).
"""

from dataclasses import dataclass

from search_spaces.serving import ServingConfig
from tuner.predict import layers

GB300_BYTES_PER_MS = 8e12 / 1000  # HBM3e, vendor's figure
ACHIEVED = 0.8  # share of it that weight reads reach (aiconfigurator's empirical factor for this GPU)
LARGEST_SPECIALIZED = 64  # tokens in a step; larger ones run the stock kernels (vLLM 0.33.0, runtime/decode.py `plan`)
# Launches and dependencies that no bandwidth hides, for each of 93 layers; 23 kernels against 13 a layer.
LATENCY_MS = {"auto": 0.0455, "latency_specialized": 0.0253}
TOKEN_MS = {"auto": 0.14, "latency_specialized": 0.021}  # routing, attention and activations of one more token
DRAFT_MS = {"auto": 0.24, "latency_specialized": 0.13}  # one pass of the draft model
# Gather of queries and reduction of outputs across the DCP group, for each MLA layer: the generic all-reduce of small
# messages takes 14 us at 8 ranks and 50 us at 16 (aiconfigurator 0.12.0, GB300, vLLM 0.27.0); overlapped in part.
DCP_MS = {"ag_rs": {8: 0.028, 16: 0.1}, "a2a": {8: 0.02, 16: 0.07}}
DCP_SPECIALIZED_SHARE = 0.4  # of the generic path's cost; no public measurement of DCP on the specialised path exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """path: the kernels that really run.   terms: name to milliseconds."""

    path: str
    terms: dict[str, float]

    @property
    def ms(self) -> float:
        return sum(self.terms.values())


def path_of(config: ServingConfig, requests: int) -> str:
    """The specialised path falls back silently for steps that it does not support."""
    asked = config.decode_backend or "auto"
    fits = requests * config.tokens_per_request <= LARGEST_SPECIALIZED
    return asked if asked == "auto" or fits else "auto"


def step(config: ServingConfig, *, requests: int, context: int) -> Step:
    """requests: decoding at once.   context: tokens in the cache of each."""
    path = path_of(config, requests)
    tokens = requests * config.tokens_per_request
    tp, dcp = config.tensor_parallel_size, config.decode_context_parallel_size
    held = layers.weights(tp, specialized=path != "auto")
    bandwidth = GB300_BYTES_PER_MS * ACHIEVED
    experts = layers.MOE_LAYERS * layers.experts_read(tokens) * held.expert
    if config.enable_expert_parallel:
        experts *= 1.15  # the busiest rank waits for the others' tokens; balanced routing is the best case
    terms = {
        "dense weights": held.always / bandwidth,
        "expert weights": experts / bandwidth,
        "keys and values": requests * layers.kv_bytes(context, fp8=_fp8(config), dcp=dcp) / bandwidth,
        "recurrent state": 2 * requests * layers.state_bytes(tp, float32=_float32(config)) / bandwidth,
        "launch and dependency": layers.LAYERS * LATENCY_MS[path],
        "tokens": tokens * TOKEN_MS[path],
        "draft model": config.num_speculative_tokens * DRAFT_MS[path],
        "context parallel": _context_parallel(config, path),
    }
    return Step(path=path, terms=terms)


def _context_parallel(config: ServingConfig, path: str) -> float:
    dcp = config.decode_context_parallel_size
    if dcp == 1:
        return 0.0
    table = DCP_MS[config.dcp_comm_backend or "ag_rs"]
    cost = table[16] if dcp == 16 else table[8]
    return layers.MLA_LAYERS * cost * (1.0 if path == "auto" else DCP_SPECIALIZED_SHARE)


def _fp8(config: ServingConfig) -> bool:
    return (config.kv_cache_dtype or "auto").startswith("fp8")


def _float32(config: ServingConfig) -> bool:
    return config.mamba_ssm_cache_dtype != "bfloat16"
