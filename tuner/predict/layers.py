"""What one rank of Kimi K3 holds and reads, in bytes, from the model's config.json. Knows no time."""

from dataclasses import dataclass

LAYERS, KDA_LAYERS, MLA_LAYERS, MOE_LAYERS = 93, 69, 24, 92
HIDDEN, VOCABULARY = 7168, 163_840
HEADS, HEAD = 96, 128
Q_LORA, KV_LORA, ROPE = 1536, 512, 64
LATENT, EXPERT_WIDTH, EXPERTS, TOP_K = 3584, 3072, 896, 16
SHARED_WIDTH, DENSE_WIDTH = 6144, 33_792
BF16, FP8 = 2, 1
MXFP4 = 0.5 + 1 / 32  # a byte for two weights, and one scale for 32 (compressed-tensors, group 32)
# The specialised kernels' tiles: TP16 pads an expert's 192 columns to 256 (vLLM 0.33.0, experts' weight layout).
EXPERT_COLUMNS = {8: 384, 16: 256}


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of one rank. always: read in every step.   expert: one routed expert of one layer."""

    always: float
    expert: float

    @property
    def held(self) -> float:
        """All that the rank keeps in memory of the target model."""
        return self.always + self.expert * EXPERTS * MOE_LAYERS


def weights(tensor_parallel: int, *, specialized: bool, padded: bool = True) -> Weights:
    """specialized: router and latent projections are sharded there, and replicated on the stock path."""
    tp = tensor_parallel
    kda = (5 * HEADS * HEAD // tp + 2 * HEAD + HEADS // tp) * HIDDEN + HEADS * HEAD // tp * HEAD
    kda += HIDDEN * HEADS * HEAD // tp
    mla = (Q_LORA + KV_LORA + ROPE + HEADS * HEAD // tp) * HIDDEN + HEADS // tp * (HEAD + ROPE) * Q_LORA
    mla += 2 * HEADS // tp * HEAD * KV_LORA + HIDDEN * HEADS * HEAD // tp
    shares = tp if specialized else 1
    moe = (EXPERTS + LATENT) * HIDDEN / shares + HIDDEN * LATENT / shares + 3 * SHARED_WIDTH // tp * HIDDEN
    dense = 3 * DENSE_WIDTH // tp * HIDDEN
    always = KDA_LAYERS * kda + MLA_LAYERS * mla + MOE_LAYERS * moe + dense + VOCABULARY // tp * HIDDEN
    columns = EXPERT_COLUMNS.get(tp, EXPERT_WIDTH // tp) if padded else EXPERT_WIDTH // tp
    return Weights(always=BF16 * always, expert=MXFP4 * 3 * columns * LATENT)


def experts_read(tokens: int) -> float:
    """Distinct experts of one layer that so many tokens choose, were each choice as likely (balanced routing)."""
    return EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)


def kv_bytes(context: int, *, fp8: bool, dcp: int) -> float:
    """Of one request on one rank: latent keys and values of the MLA layers, replicated unless DCP splits them."""
    return MLA_LAYERS * (KV_LORA + ROPE) * (FP8 if fp8 else BF16) * context / dcp


def state_bytes(tensor_parallel: int, *, float32: bool) -> float:
    """Of one request on one rank: the recurrent state of the KDA layers."""
    return KDA_LAYERS * HEADS // tensor_parallel * HEAD * HEAD * (4 if float32 else 2)
