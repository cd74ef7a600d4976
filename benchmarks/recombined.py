"""A surface of Kimi K3 decode on 8 GB300 that is not the prediction model's: timed kernels, one after another.

Nothing is fitted: each layer is the sum of its kernels as they were timed (aiconfigurator-core 0.12.0, Apache-2.0; the
specialised ones by comments in vLLM 0.33.0's source), interpolated between sizes, noise of the timings included. As a
prediction it is poor, half as long again as what was published, since kernels overlap; as a surface it is not ours.
"""

import csv
import gzip
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from search_spaces.serving import ServingConfig
from tuner.core.workload import ServingWorkload

DATA = Path(__file__).parent / "data" / "gb300_recombined.csv.gz"
TENSOR_PARALLEL = 8
HEADS_A_RANK = 12
KDA_LAYERS, MLA_LAYERS, MOE_LAYERS, DRAFT_LAYERS = 69, 24, 92, 5
HIDDEN_BYTES = 7168 * 2
SPECIALIZED_TOKENS = 64
LAUNCH_US = 2.2  # the smallest projection timed; what a kernel of the draft's sampling takes at least
Curve = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: int
    n: int
    k: int
    heads: int
    context: int
    kv: str
    us: float


def tokens_per_s(config: ServingConfig, workload: ServingWorkload, *, per_user: bool) -> float:
    """Of decoding alone; per user or of all running requests."""
    running = min(workload.concurrency, config.max_num_seqs or workload.concurrency)
    accepted = workload.acceptance.length(config.num_speculative_tokens) or 1.0
    each = 1e6 * accepted / step_us(config, running, workload.prompt_tokens + workload.output_tokens // 2)
    return each if per_user else each * running


def step_us(config: ServingConfig, requests: int, context: int) -> float:
    q = config.tokens_per_request
    tokens = requests * q
    specialized = config.decode_backend == "latency_specialized" and tokens <= SPECIALIZED_TOKENS
    out = at("specialised o-projection", tokens) if specialized else gemm(7168, 1536, tokens) + all_reduce(tokens)
    recurrence = at("recurrence", tokens, k=_verify(q))
    if config.mamba_ssm_cache_dtype == "bfloat16":
        recurrence = LAUNCH_US + (recurrence - LAUNCH_US) / 2
    kda = gemm(6144, 7168, tokens) + gemm(1536, 128, tokens) + at("conv", tokens, k=_verify(q)) + recurrence + out
    mla = _mla(config, requests, context) + (out if specialized else all_reduce(tokens))
    shared = gemm(1536, 7168, tokens) + gemm(7168, 768, tokens) + gemm(768, 7168, tokens)
    if specialized:
        moe = shared + _below_16("specialised experts", tokens)
    else:
        part = "experts, expert parallel" if config.enable_expert_parallel else "experts, tensor parallel"
        moe = shared + gemm(3584, 7168, tokens) + gemm(7168, 3584, tokens) + at(part, tokens) + all_reduce(tokens)
    head = 2 * gemm(10240, 7168, tokens)
    return KDA_LAYERS * kda + MLA_LAYERS * mla + MOE_LAYERS * moe + head + _draft(config, requests, context)


def _mla(config: ServingConfig, requests: int, context: int) -> float:
    """Projections and short attention of the rank's own heads; under DCP the long attention of its group's heads over
    a share of the context, and the exchange."""
    kv = "fp8" if (config.kv_cache_dtype or "auto").startswith("fp8") else "bfloat16"
    dcp = config.decode_context_parallel_size
    own = attention(HEADS_A_RANK, requests, 2, kv)
    if dcp == 1:
        return attention(HEADS_A_RANK, requests, context, kv)
    heads = HEADS_A_RANK * dcp
    long = attention(heads, requests, context // dcp, kv) - attention(heads, requests, 2, kv)
    return own + max(0.0, long) + _exchange(dcp, config.dcp_comm_backend or "ag_rs")


def _exchange(ranks: int, backend: str) -> float:
    def one(op: str) -> float:
        curve = _curve(op, by="heads")
        return curve[2] + (curve[4] - curve[2]) * (math.log2(ranks) - 1)

    return one("all_gather") + (one("alltoall") if backend == "a2a" else one("all_gather") + one("reduce_scatter"))


def _draft(config: ServingConfig, requests: int, context: int) -> float:
    drafts = config.num_speculative_tokens
    if not drafts:
        return 0.0
    tokens = requests * drafts
    ffn = gemm(3584, 7168, tokens) + gemm(7168, 1536, tokens) + 2 * all_reduce(tokens)
    layer = attention(HEADS_A_RANK, requests, context, "bfloat16") + ffn
    return DRAFT_LAYERS * layer + 2 * gemm(10240, 7168, tokens) + drafts * 6 * LAUNCH_US


@cache
def gemm(n: int, k: int, tokens: int) -> float:
    return between(_curve("gemm", n=n, k=k), tokens)


@cache
def at(part: str, tokens: int, k: int = 0) -> float:
    return between(_curve(part, k=k), tokens)


@cache
def all_reduce(tokens: int) -> float:
    return between(_curve("all-reduce"), tokens * HIDDEN_BYTES // 2)


@cache
def attention(heads: int, requests: int, context: int, kv: str) -> float:
    nearest = min((12, 24, 48, 96), key=lambda known: abs(known - heads))
    batches = sorted({row.tokens for row in _rows()["mla"]})
    curve = {b: between(_attention(nearest, b, kv), context) for b in batches}
    return between(curve, requests)


@cache
def _attention(heads: int, batch: int, kv: str) -> Curve:
    rows = _rows()["mla"]
    return {row.context: row.us for row in rows if (row.heads, row.tokens, row.kv) == (heads, batch, kv)}


def between(curve: Curve, size: float) -> float:
    """Straight between the sizes timed; flat before the first, and in proportion beyond the last."""
    known = sorted(curve)
    if size <= known[0]:
        return curve[known[0]]
    if size >= known[-1]:
        return curve[known[-1]] * size / known[-1]
    right = bisect_left(known, size)
    low, high = known[right - 1], known[right]
    return curve[low] + (curve[high] - curve[low]) * (size - low) / (high - low)


def _below_16(part: str, tokens: int) -> float:
    """Nothing is published below 16 tokens: on along the line from 32 to 16."""
    curve = _curve(part)
    if tokens >= 16:
        return between(curve, tokens)
    return curve[16] - (curve[32] - curve[16]) / 16 * (16 - tokens)


def _verify(q: int) -> int:
    """The verified lengths that were timed: 1, 2, 4, 8."""
    return next(known for known in (1, 2, 4, 8) if known >= q)


@cache
def _curve(part: str, n: int = 0, k: int = 0, by: str = "tokens") -> Curve:
    return {getattr(row, by): row.us for row in _rows()[part] if (row.n, row.k) == (n, k)}


@cache
def _rows() -> Mapping[str, list[_Row]]:
    found: defaultdict[str, list[_Row]] = defaultdict(list)
    with gzip.open(DATA, "rt", newline="") as file:
        for row in csv.DictReader(file):
            tokens, n, k, heads, context = (int(row[c] or 0) for c in ("tokens", "n", "k", "heads", "context"))
            found[row["part"]].append(_Row(tokens, n, k, heads, context, row["kv"], float(row["us"])))
    return found
