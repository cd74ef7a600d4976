"""Tiles of our own decode GEMM: what may be turned, which tiles are legal, and each clause's hardware reason. Pure.

The kernel is tuner_inside/decode_gemm.py. It is no faster than the memory that the weights come from, so a tile decides
how many bytes are on their way at once, how evenly the multiprocessors share them, and how often x is read again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

from search_spaces.gemm import (
    BYTES,
    MAX_ROWS,
    MAX_SMEM_BYTES,
    MAX_THREADS,
    REGISTERS,
    THREAD_REGISTERS,
    WARP,
    LibraryGemm,
    SkinnyTile,
)
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.rule import Rule
from search_spaces.space import Space

DECODE = "decode_gemm"
STEP = 32  # elements of k that a warp takes of a row: four threads, 16 bytes each
WEIGHT_ROWS = 8  # on the narrow side of a tensor core instruction, mma.m16n8k16
MAX_CLUSTER = 8  # blocks of a cluster that every GPU from compute capability 9.0 on must take


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTile:
    """A block computes `rows` outputs for all rows of x, its warps side by side along k.

    rows: of the weights.   warps: of a block.   depth: steps of 32 elements of k that a warp takes at once.
    stages: of the ring that each warp fills ahead of itself.   split_k: blocks of one cluster that share a k.
    early: weights are asked for before the kernel in front has ended, and the next kernel may start to do so.
    """

    rows: int
    warps: int
    depth: int = 2
    stages: int = 4
    split_k: int = 1
    early: bool = True

    @property
    def kind(self) -> str:
        return DECODE

    @property
    def gpus(self) -> int:
        return 1

    @property
    def k_step(self) -> int:
        """Elements along k that a warp takes at once."""
        return STEP * self.depth

    @property
    def shares(self) -> int:
        """Warps that share a k."""
        return self.warps * self.split_k

    def smem_bytes(self, m: int) -> int:
        """The rings, x and weights side by side, and a cluster's sums."""
        pieces = self.rows // WEIGHT_ROWS + halves(m)
        ring = self.warps * self.stages * self.depth * pieces * WARP * 16
        return ring + (4 * self.rows * halves(m) * WEIGHT_ROWS if self.split_k > 1 else 0)

    def registers(self, m: int) -> int:
        """The fewest that a thread can do with: four float32 sums and an address a tile, and one step's operands."""
        tiles = self.rows // WEIGHT_ROWS
        return 4 * tiles + 2 * (tiles + halves(m)) + 4 * (1 + halves(m))

    def bytes_in_flight(self) -> int:
        """Of the weights, that a block has asked for while it works."""
        return self.warps * (self.stages - 1) * self.k_step * self.rows * BYTES

    def values(self) -> dict[str, Scalar]:
        return dict(asdict(self))

    @classmethod
    def from_values(cls, values: Mapping[str, Scalar]) -> "DecodeTile":
        """The inverse of `values`. Raises ValueError for a name or a value that no tile has."""
        known = {field.name for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name!r} is not an option of {cls.__name__}; it has {', '.join(sorted(known))}")
            if not isinstance(value, int) or isinstance(value, bool) != (name == "early"):
                raise ValueError(f"{name}: {value!r} is not {'true or false' if name == 'early' else 'a whole number'}")
        numbers = {name: int(value) for name, value in values.items() if isinstance(value, int) and name != "early"}
        return cls(**numbers, early=bool(values.get("early", True)))


def halves(m: int) -> int:
    """Of the 16 rows on the wide side of a tensor core instruction: those of 8 that hold rows of x."""
    return 1 if m <= WEIGHT_ROWS else 2


def decode_rules(k: int, m: int) -> tuple[Rule, ...]:
    """A candidate that is no decode tile breaks none of them. No rule asks anything of n: the last block reads its last
    row again and does not write it."""
    capabilities = "CUDA programming guide, compute capabilities 9.0 and 10.x"

    def rule(name: str, sentence: str, source: str, holds: Callable[[DecodeTile], bool]) -> Rule:
        return Rule(
            name=name, sentence=sentence, source=source, holds=lambda c: not isinstance(c, DecodeTile) or holds(c)
        )

    return (
        rule(
            "decode-rows",
            "a tensor core instruction holds 1 to 16 rows of x",
            "PTX ISA, mma.m16n8k16",
            lambda _: 1 <= m <= MAX_ROWS,
        ),
        rule(
            "whole-tensor-tiles",
            "a tensor core instruction takes 8 rows of weights, so rows is a multiple of 8",
            "PTX ISA, mma.m16n8k16",
            lambda t: t.rows > 0 and t.rows % WEIGHT_ROWS == 0,
        ),
        rule(
            "decode-threads",
            "a block has at most 1024 threads, which is 32 warps",
            capabilities,
            lambda t: 0 < t.warps * WARP <= MAX_THREADS,
        ),
        rule(
            "ring-of-two",
            "nothing is on its way while a ring of one stage is read, so it has at least two",
            "PTX ISA, cp.async.wait_group",
            lambda t: t.stages >= 2 and t.depth >= 1,
        ),
        rule(
            "whole-k-steps",
            "no copy is guarded along k, so 32 x depth divides k",
            "tuner_inside/decode_gemm.py",
            lambda t: t.depth > 0 and k % t.k_step == 0,
        ),
        rule(
            "work-for-every-stage",
            "every stage of a ring gets a step of k, so warps x split_k x (stages - 1) x 32 x depth is at most k",
            "arithmetic: a smaller ring is the same kernel",
            lambda t: t.shares * (t.stages - 1) * t.k_step <= k,
        ),
        rule(
            "portable-cluster",
            "the blocks that share a k add up through shared memory of one cluster, of at most 8 blocks",
            "CUDA programming guide, thread block clusters",
            lambda t: 1 <= t.split_k <= MAX_CLUSTER,
        ),
        rule(
            "ring-smem",
            "the rings of all warps fit in the 227 KiB of shared memory that a block may have",
            capabilities,
            lambda t: t.smem_bytes(m) <= MAX_SMEM_BYTES,
        ),
        rule(
            "decode-no-spills",
            "a thread's sums, addresses and operands fit in its 255 registers, and a block's in one multiprocessor's "
            "65,536",
            capabilities,
            lambda t: t.registers(m) <= min(THREAD_REGISTERS, REGISTERS // max(1, t.warps * WARP)),
        ),
    )


def decode_space(k: int, m: int, *, baseline: "DecodeTile | SkinnyTile | LibraryGemm") -> Space:
    """Tiles for one problem. baseline: what runs it today."""
    return Space(
        name=DECODE,
        knobs=(
            Knob(name="rows", choices=(8, 16, 24, 32, 48, 64)),
            Knob(name="warps", choices=(1, 2, 4, 6, 7, 8, 12, 16)),
            Knob(name="depth", choices=(1, 2, 4)),
            Knob(name="stages", choices=(2, 3, 4, 6, 8)),
            Knob(name="split_k", choices=(1, 2, 3, 4, 6, 8)),
            Knob(name="early", choices=(False, True)),
        ),
        rules=decode_rules(k, m),
        make=_tile,
        baselines={1: baseline},
    )


def _tile(values: Values) -> DecodeTile:
    return DecodeTile.from_values(values)
