"""Tiles of decode GEMMs: what may be turned, and which tiles are legal, each clause with its hardware reason. Pure.

The GEMM is out[m, n] = sum over k of x[m, k] * w[n, k], in bfloat16, with few rows m. Sources: vLLM 0.33.0,
model_executor/kernels/linear/cute_dsl/{skinny_gemm,_skinny_gemm}.py, and flashinfer 0.7.2.post1, `validate_tactic`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

from search_spaces.knob import Knob, Scalar, Values
from search_spaces.rule import Rule
from search_spaces.space import Space

MAX_ROWS = 16
WARP = 32
MAX_THREADS = 1024  # of a block; CUDA programming guide, every compute capability from 2.0
MAX_SMEM_BYTES = 227 * 1024  # of a block, compute capability 9.0, 10.0 and 10.3
REGISTERS, THREAD_REGISTERS = 65_536, 255  # of a multiprocessor and of a thread at most, 32 bits each
BYTES = 2  # of a bfloat16
PREFETCHED_TILES = 2  # along k, where k is known to the compiler
CTA_K = 128  # of the split-K kernel

SKINNY, LIBRARY, SPLIT_K = "skinny_gemm", "library_gemm", "split_k_gemm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkinnyTile:
    """vLLM's CuTe skinny GEMM: a block computes `outputs_per_block` columns for all rows, its threads side by side
    along k.

    block_size: threads.   k_unroll: tiles along k that the compiler unrolls.   vector_width: elements a load.
    static_k: k, where the kernel is compiled for that k alone; None leaves it to run time.
    """

    block_size: int
    outputs_per_block: int
    k_unroll: int = 1
    vector_width: int = 8
    static_k: int | None = None

    @property
    def kind(self) -> str:
        return SKINNY

    @property
    def gpus(self) -> int:
        return 1

    @property
    def k_tile(self) -> int:
        """Elements along k that a block takes at once."""
        return self.block_size * self.vector_width

    def smem_bytes(self, m: int) -> int:
        """Partial sums: one float32 a row, column and warp."""
        return m * self.outputs_per_block * (self.block_size // WARP) * 4

    def registers(self, m: int) -> int:
        """The fewest that a thread can do with: a float32 sum for each row and column, and one step's operands."""
        return m * self.outputs_per_block + (m + self.outputs_per_block) * self.vector_width * BYTES // 4

    def values(self) -> dict[str, Scalar]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_values(cls, values: Mapping[str, Scalar]) -> "SkinnyTile":
        """The inverse of `values`. Raises ValueError for a name or a value that no tile has."""
        return cls(**_integers(cls, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryGemm:
    """A kernel without a tile of ours to turn: `cublas`, or vLLM's `dsv3_fused_a`."""

    backend: str = "cublas"

    @property
    def kind(self) -> str:
        return LIBRARY

    @property
    def gpus(self) -> int:
        return 1

    def values(self) -> dict[str, Scalar]:
        return {"backend": self.backend}

    @classmethod
    def from_values(cls, values: Mapping[str, Scalar]) -> "LibraryGemm":
        """The inverse of `values`. Raises ValueError for anything but a backend's name."""
        if set(values) != {"backend"} or values["backend"] not in ("cublas", "dsv3_fused_a"):
            raise ValueError(f"{dict(values)} names no library GEMM; `backend` is cublas or dsv3_fused_a")
        return cls(backend=str(values["backend"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKTactic:
    """The specialised path's tensor core GEMM: weights fill the large side `mma_m`, rows the small side `mma_n`.

    split_k: blocks of one cluster that share a tile's k.   ab_stages: stages of the copy pipeline.
    """

    mma_m: int
    mma_n: int
    split_k: int
    ab_stages: int

    @property
    def kind(self) -> str:
        return SPLIT_K

    @property
    def gpus(self) -> int:
        return 1

    @property
    def smem_bytes(self) -> int:
        """Both operands for every stage, and the float32 partial tiles of the other blocks of the cluster."""
        stages = (self.mma_m + self.mma_n) * CTA_K * BYTES * self.ab_stages
        return stages + (self.split_k - 1) * self.mma_m * self.mma_n * 4

    def values(self) -> dict[str, Scalar]:
        return dict(asdict(self))

    @classmethod
    def from_values(cls, values: Mapping[str, Scalar]) -> "SplitKTactic":
        """The inverse of `values`. Raises ValueError for a name or a value that no tactic has."""
        return cls(**_integers(cls, values))


def skinny_rules(n: int, k: int, m: int) -> tuple[Rule, ...]:
    """A candidate that is no skinny tile breaks none of them."""
    vllm = "vLLM 0.33.0, cute_dsl/skinny_gemm.py"

    def rule(name: str, sentence: str, source: str, holds: Callable[[SkinnyTile], bool]) -> Rule:
        return Rule(
            name=name, sentence=sentence, source=source, holds=lambda c: not isinstance(c, SkinnyTile) or holds(c)
        )

    return (
        rule(
            "skinny-rows", "the kernel unrolls its rows and takes 1 to 16 of them", vllm, lambda _: 1 <= m <= MAX_ROWS
        ),
        rule(
            "whole-warps",
            "sums are reduced within warps, so a block is a multiple of 32 threads",
            vllm,
            lambda t: t.block_size > 0 and t.block_size % WARP == 0,
        ),
        rule(
            "block-threads",
            "a block has at most 1024 threads",
            "CUDA programming guide, compute capabilities",
            lambda t: t.block_size <= MAX_THREADS,
        ),
        rule(
            "one-load",
            "a thread loads 4 to 16 bytes at once, in a power of two",
            "PTX ISA, ld.global.v2 and v4",
            lambda t: t.vector_width in (2, 4, 8),
        ),
        rule(
            "whole-columns",
            "every block writes all its columns, so outputs_per_block divides n",
            vllm,
            lambda t: t.outputs_per_block > 0 and n % t.outputs_per_block == 0,
        ),
        rule(
            "whole-k-tiles",
            "no load is guarded, so block_size x vector_width divides k",
            vllm,
            lambda t: t.k_tile > 0 and k % t.k_tile == 0,
        ),
        rule(
            "static-k",
            "a kernel compiled for one k needs that k, and two tiles of it to prefetch",
            "vLLM 0.33.0, cute_dsl/_skinny_gemm.py",
            lambda t: t.static_k is None or (t.static_k == k and k >= PREFETCHED_TILES * t.k_tile),
        ),
        rule(
            "skinny-smem",
            "partial sums of rows x columns x warps fit in the 227 KiB of shared memory that a block may have",
            "CUDA programming guide, compute capabilities 9.0 and 10.x",
            lambda t: t.smem_bytes(m) <= MAX_SMEM_BYTES,
        ),
        rule(
            "no-spills",
            "a thread's sums and operands fit in its 255 registers, and a block's in one multiprocessor's 65,536",
            "CUDA programming guide, compute capabilities 9.0 and 10.x; -maxrregcount is inert beside .reqntid",
            lambda t: t.registers(m) <= min(THREAD_REGISTERS, REGISTERS // max(1, t.block_size)),
        ),
    )


def split_k_rules(k: int, m: int) -> tuple[Rule, ...]:
    flashinfer = "flashinfer 0.7.2.post1, validate_tactic"
    return (
        Rule(
            name="mma-rows-of-weights",
            sentence="the tensor core takes 64 or 128 weight rows at once",
            source=flashinfer,
            holds=lambda t: t.mma_m in (64, 128),
        ),
        Rule(
            name="mma-tokens",
            sentence="the small side is 8, 16, 32 or 64, and the rows fit in it",
            source=f"{flashinfer}; 64 in vLLM 0.33.0, specialized_decode/cutedsl/gemm",
            holds=lambda t: t.mma_n in (8, 16, 32, 64) and m <= t.mma_n,
        ),
        Rule(
            name="split-in-a-cluster",
            sentence="1 to 4 blocks of a cluster share k",
            source=flashinfer,
            holds=lambda t: 1 <= t.split_k <= 4,
        ),
        Rule(
            name="copy-stages",
            sentence="the copy pipeline has 1 to 12 stages",
            source=flashinfer,
            holds=lambda t: 1 <= t.ab_stages <= 12,
        ),
        Rule(
            name="whole-cta-k",
            sentence="blocks take k in steps of 128, and each of a cluster takes as many steps",
            source=flashinfer,
            holds=lambda t: t.split_k > 0 and k % CTA_K == 0 and (k // CTA_K) % t.split_k == 0,
        ),
        Rule(
            name="split-k-smem",
            sentence="the stages and the partial tiles fit in the 227 KiB of shared memory that a block may have",
            source="CUDA programming guide, compute capability 10.x; flashinfer 0.7.2.post1, validate_tactic",
            holds=lambda t: t.smem_bytes <= MAX_SMEM_BYTES,
        ),
    )


BLOCK_SIZES = (32, 64, 96, 128, 192, 224, 256)
OUTPUTS_PER_BLOCK = (1, 2, 3, 4, 6, 8)


def skinny_space(n: int, k: int, m: int, *, baseline: "SkinnyTile | LibraryGemm") -> Space:
    """Tiles of vLLM's kernel for one problem. baseline: what runs it today."""
    return Space(
        name=SKINNY,
        knobs=(
            Knob(name="block_size", choices=BLOCK_SIZES),
            Knob(name="outputs_per_block", choices=OUTPUTS_PER_BLOCK),
            Knob(name="k_unroll", choices=(1, 2, 4)),
            Knob(name="vector_width", choices=(4, 8)),
        ),
        rules=skinny_rules(n, k, m),
        make=_tile,
        baselines={1: baseline},
    )


def split_k_space(k: int, m: int, *, baseline: SplitKTactic) -> Space:
    """Tactics of the specialised path's GEMM for one problem."""
    return Space(
        name=SPLIT_K,
        knobs=(
            Knob(name="mma_m", choices=(64, 128)),
            Knob(name="mma_n", choices=(8, 16, 32, 64)),
            Knob(name="split_k", choices=(1, 2, 3, 4)),
            Knob(name="ab_stages", choices=tuple(range(1, 13))),
        ),
        rules=split_k_rules(k, m),
        make=SplitKTactic.from_values,
        baselines={1: baseline},
    )


def _tile(values: Values) -> SkinnyTile:
    return SkinnyTile.from_values(values)


def _integers(kind: type, values: Mapping[str, Scalar]) -> dict[str, int]:
    known = {field.name for field in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name!r} is not an option of {kind.__name__}; it has {', '.join(sorted(known))}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name}: {value!r} is not a whole number")
    return {name: value for name, value in values.items() if isinstance(value, int)}
