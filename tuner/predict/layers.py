"""What Kimi K3 is made of, and what one rank of it holds and reads, in bytes. Knows no time.

Sizes are read from the model's config.json, which lies in `data/` as it was published with the checkpoint.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_CONFIG = json.loads(files("tuner.predict").joinpath("data/kimi_k3_config.json").read_text(encoding="utf-8"))
_TEXT = _CONFIG["text_config"]
_KDA = _TEXT["linear_attn_config"]

LAYERS: int = _TEXT["num_hidden_layers"]
KDA_LAYERS, MLA_LAYERS = len(_KDA["kda_layers"]), len(_KDA["full_attn_layers"])
DENSE_LAYERS: int = _TEXT["first_k_dense_replace"]
MOE_LAYERS = LAYERS - DENSE_LAYERS
HIDDEN: int = _TEXT["hidden_size"]
VOCABULARY: int = _TEXT["vocab_size"]
HEADS: int = _TEXT["num_attention_heads"]
HEAD: int = _KDA["head_dim"]
CONV: int = _KDA["short_conv_kernel_size"]
Q_LORA: int = _TEXT["q_lora_rank"]
KV_LORA: int = _TEXT["kv_lora_rank"]
NOPE: int = _TEXT["qk_nope_head_dim"]
ROPE: int = _TEXT["qk_rope_head_dim"]
VALUE: int = _TEXT["v_head_dim"]
LATENT: int = _TEXT["routed_expert_hidden_size"]
EXPERT_WIDTH: int = _TEXT["moe_intermediate_size"]
EXPERTS: int = _TEXT["num_experts"]
TOP_K: int = _TEXT["num_experts_per_token"]
SHARED_WIDTH = EXPERT_WIDTH * int(_TEXT["num_shared_experts"])
DENSE_WIDTH: int = _TEXT["intermediate_size"]

BF16, FP8, FP32 = 2, 1, 4
MXFP4 = 0.5 + 1 / 32  # half a byte a weight, and one byte of scale for each group of 32 (compressed-tensors)
# Columns of an expert that one rank reads: TP16 pads its 192 to 256 (vLLM 0.33.0, layout of the experts' weights).
EXPERT_COLUMNS = {8: 384, 16: 256}
# Inferact/Kimi-K3-DSpark, five dense MLA layers in BF16; the 2.7 G are its successor's card, embedding and head shared.
DRAFT_PARAMETERS, DRAFT_LAYERS = 2.7e9, 5


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of one rank. always: read in every step.   expert: one routed expert of one layer.   embedding: looked up.

    experts: how many of each layer's experts the rank holds, whole or its share of each.
    """

    always: float
    expert: float
    embedding: float
    experts: float

    @property
    def held(self) -> float:
        """All that the rank keeps in memory of the target model."""
        return self.always + self.embedding + self.expert * self.experts * MOE_LAYERS


@cache
def weights(tensor_parallel: int, *, specialized: bool = False, expert_parallel: bool = False) -> Weights:
    """specialized: router and latent projections are sharded there, and replicated on the stock path.
    expert_parallel: each rank holds whole experts, a share of them."""
    tp = tensor_parallel
    heads = HEADS / tp
    kda = (4 * heads * HEAD + HEAD + heads) * HIDDEN + heads * HEAD * HEAD + HIDDEN * heads * HEAD
    mla = (Q_LORA + KV_LORA + ROPE + heads * VALUE) * HIDDEN + heads * (NOPE + ROPE) * Q_LORA
    mla += heads * (NOPE + VALUE) * KV_LORA + HIDDEN * heads * VALUE
    replicas = tp if specialized else 1
    moe = ((EXPERTS + LATENT) * HIDDEN + HIDDEN * LATENT) / replicas + 3 * SHARED_WIDTH / tp * HIDDEN
    dense = 3 * DENSE_WIDTH / tp * HIDDEN
    head = VOCABULARY / tp * HIDDEN
    always = KDA_LAYERS * kda + MLA_LAYERS * mla + MOE_LAYERS * moe + DENSE_LAYERS * dense + head
    columns = EXPERT_WIDTH if expert_parallel else EXPERT_COLUMNS.get(tp, EXPERT_WIDTH / tp)
    return Weights(
        always=BF16 * always,
        expert=MXFP4 * 3 * columns * LATENT,
        embedding=BF16 * head,
        experts=EXPERTS / tp if expert_parallel else EXPERTS,
    )


def active_parameters() -> float:
    """That one token passes through, output head included."""
    always = weights(1, specialized=True).always / BF16
    return always + MOE_LAYERS * TOP_K * 3 * EXPERT_WIDTH * LATENT


@cache
def experts_read(tokens: int) -> float:
    """Distinct experts of one layer that so many tokens choose, were each choice as likely (balanced routing)."""
    return EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)


@cache
def busiest_rank(tokens: int, ranks: int) -> float:
    """Experts that the busiest of `ranks` reads in one layer where each holds whole experts: the mean of the largest
    of `ranks` Poisson counts, which is the limit of spreading many experts at random."""
    distinct = experts_read(tokens)
    mean = distinct / ranks
    below, term, expected = 0.0, math.exp(-mean), 0.0
    for count in range(1, int(distinct) + 2):
        below += term
        term *= mean / count
        expected += 1 - below**ranks
    return min(expected, distinct, EXPERTS / ranks)


def kv_bytes(context: float, *, fp8: bool, dcp: int = 1) -> float:
    """Of one request on one rank: latent keys and values of the MLA layers, replicated unless DCP splits them."""
    return MLA_LAYERS * (KV_LORA + ROPE) * (FP8 if fp8 else BF16) * context / dcp


def state_bytes(tensor_parallel: int, *, float32: bool) -> float:
    """Of one sequence position on one rank: the recurrent state of the KDA layers."""
    return KDA_LAYERS * HEADS / tensor_parallel * HEAD * HEAD * (FP32 if float32 else BF16)


def conv_bytes(tensor_parallel: int) -> float:
    """Of one sequence position on one rank: the short convolutions' inputs of queries, keys and values."""
    return KDA_LAYERS * 3 * HEADS / tensor_parallel * HEAD * (CONV - 1) * BF16


def prefill_flops(tokens: int) -> float:
    """Of one prompt: two a parameter and token, and the causal half of the MLA layers' attention."""
    attention = MLA_LAYERS * HEADS * (NOPE + ROPE + VALUE) * float(tokens) ** 2
    return 2 * active_parameters() * tokens + attention
