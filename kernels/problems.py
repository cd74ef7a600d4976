"""The decode GEMMs of Kimi K3 by tensor-parallel size, computed from the model's config.json. Knows no kernel.

Layouts are vLLM 0.33.0's on its stock path (models/kimi_k3/nvidia/{kda,mla,model}.py); what the specialised path packs
differently stands beside it.
"""

from dataclasses import dataclass

from tuner.core.workload import GemmProblem

HIDDEN, VOCABULARY = 7168, 163_840
HEADS, HEAD = 96, 128
Q_LORA, KV_LORA, ROPE = 1536, 512, 64
LATENT, EXPERTS = 3584, 896
SHARED_WIDTH, DENSE_WIDTH = 2 * 3072, 33_792  # two shared experts; layer 0's dense feed-forward
KDA_LAYERS, MLA_LAYERS, MOE_LAYERS = 69, 24, 92
KDA_ALIGNMENT = 16  # kda.py pads the packed input projection to a multiple of it
OVERLAP_TP, OVERLAP_ROWS = 8, 14  # kda.py: split in two streams there, and the packed entry is not read
GATE_ROWS = 512  # mla.py: with fewer rows the latent and the gate part of the packed weight run as two GEMMs

AUTO, SPECIALIZED = "auto", "latency_specialized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One linear layer of one rank. name: as in vLLM.   n, k: of its weight.   layers: how many there are.
    in_table: whether its weight is a plain linear layer or the output head, to which vLLM's tile table applies."""

    name: str
    n: int
    k: int
    layers: int
    in_table: bool = True

    def problem(self, m: int) -> GemmProblem:
        return GemmProblem(n=self.n, k=self.k, m=m, name=self.name)


def projections(tensor_parallel: int) -> tuple[Projection, ...]:
    """Every decode GEMM of one rank that runs in BF16, on the stock path.

    Raises:
        ValueError: the heads cannot be split so.
    """
    tp = tensor_parallel
    if tp < 1 or HEADS % tp:
        raise ValueError(f"tensor parallel {tp} does not divide the {HEADS} heads")
    heads, width = HEADS // tp, HEADS * HEAD // tp
    kda_in = 4 * width + HEAD + heads
    return (
        Projection(name="kda.in_proj_qkvgfab", n=kda_in + -kda_in % KDA_ALIGNMENT, k=HIDDEN, layers=KDA_LAYERS),
        Projection(name="kda.f_b_proj", n=width, k=HEAD, layers=KDA_LAYERS),
        Projection(name="kda.o_proj", n=HIDDEN, k=width, layers=KDA_LAYERS),
        Projection(name="mla.fused_qkv_a_g_proj", n=Q_LORA + KV_LORA + ROPE + width, k=HIDDEN, layers=MLA_LAYERS),
        Projection(name="mla.fused_qkv_a_proj", n=Q_LORA + KV_LORA + ROPE, k=HIDDEN, layers=MLA_LAYERS),
        Projection(name="mla.g_proj", n=width, k=HIDDEN, layers=MLA_LAYERS),
        Projection(name="mla.q_b_proj", n=heads * (HEAD + ROPE), k=Q_LORA, layers=MLA_LAYERS),
        Projection(name="mla.o_proj", n=HIDDEN, k=width, layers=MLA_LAYERS),
        Projection(name="moe.router", n=EXPERTS, k=HIDDEN, layers=MOE_LAYERS, in_table=False),
        Projection(name="moe.routed_expert_down_proj", n=LATENT, k=HIDDEN, layers=MOE_LAYERS),
        Projection(name="moe.routed_expert_up_proj", n=HIDDEN, k=LATENT, layers=MOE_LAYERS),
        Projection(name="moe.shared.gate_up", n=2 * SHARED_WIDTH // tp, k=HIDDEN, layers=MOE_LAYERS),
        Projection(name="moe.shared.down", n=HIDDEN, k=SHARED_WIDTH // tp, layers=MOE_LAYERS),
        Projection(name="dense0.gate_up", n=2 * DENSE_WIDTH // tp, k=HIDDEN, layers=1),
        Projection(name="dense0.down", n=HIDDEN, k=DENSE_WIDTH // tp, layers=1),
        Projection(name="lm_head", n=VOCABULARY // tp, k=HIDDEN, layers=1),
    )


def problems(tensor_parallel: int, rows: range = range(1, 9)) -> tuple[GemmProblem, ...]:
    """The distinct problems that vLLM's table may decide, named after every projection of that shape."""
    names: dict[tuple[int, int], list[str]] = {}
    for projection in projections(tensor_parallel):
        if projection.in_table:
            names.setdefault((projection.n, projection.k), []).append(projection.name)
    return tuple(
        GemmProblem(n=n, k=k, m=m, name="/".join(found)) for (n, k), found in sorted(names.items()) for m in rows
    )


def reads_table(projection: Projection, *, tensor_parallel: int, m: int, decode_backend: str = AUTO) -> bool:
    """Whether a decode step of m rows looks this projection up in vLLM's tile table at all.

    The specialised path takes its tiles from constants; of the target model only the output head still asks. On the
    stock path at TP8 the packed KDA projection and its `f_b_proj` run split over two streams up to 14 rows, from
    constants too; the packed MLA projection runs as its two parts. The router is no plain linear layer.
    """
    if not projection.in_table:
        return False
    if decode_backend == SPECIALIZED:
        return projection.name == "lm_head"
    if projection.name == "mla.fused_qkv_a_g_proj":
        return m >= GATE_ROWS
    split = tensor_parallel == OVERLAP_TP and m <= OVERLAP_ROWS
    return not (split and projection.name in ("kda.in_proj_qkvgfab", "kda.f_b_proj"))
