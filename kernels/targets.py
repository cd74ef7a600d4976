"""The kernels whose tiles are tried: where a worker finds each one, and what its tiles are called. Knows no GPU."""

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.decode_gemm import DECODE, WEIGHT_ROWS, DecodeTile, halves
from search_spaces.gemm import SKINNY, SkinnyTile
from search_spaces.knob import Scalar

SKINNY_TARGET = "tuner_inside.skinny_target"
DECODE_TARGET = "tuner_inside.decode_target"
BOTH_TARGET = "tuner_inside.gemm_target"  # times tiles of either; `compile` asks for one kernel at a time

Tile = SkinnyTile | DecodeTile


@dataclass(frozen=True, slots=True)
class Target:
    """module: in the engine's interpreter.   tile: what it compiles."""

    module: str
    tile: type[SkinnyTile] | type[DecodeTile]


TARGETS = {SKINNY: Target(SKINNY_TARGET, SkinnyTile), DECODE: Target(DECODE_TARGET, DecodeTile)}


def name_of(module: str) -> str:
    """Of the kernel that a worker's target brings; the module itself where it is none of these."""
    return next((kind for kind, target in TARGETS.items() if target.module == module), module)


def tile_of(kind: str, values: Mapping[str, Scalar]) -> Tile:
    """Raises ValueError for a kind, a name or a value that no tile has."""
    if kind not in TARGETS:
        raise ValueError(f"{kind!r} has no tiles; {', '.join(TARGETS)} have")
    return TARGETS[kind].tile.from_values(values)


def compiled_rows(tile: Tile, m: int) -> int:
    """The most rows of x that the kernel which runs m of them is compiled for: a decode tile has one for up to 8 and
    one for up to 16, vLLM's kernel one for each number."""
    return WEIGHT_ROWS * halves(m) if isinstance(tile, DecodeTile) else m


def launched_bytes(tile: Tile, m: int) -> int:
    """Shared memory that a launch asks for beside what the compiler reports."""
    return tile.smem_bytes(m) if isinstance(tile, DecodeTile) else 0
