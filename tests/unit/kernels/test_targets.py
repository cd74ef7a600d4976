"""Targets: a kernel's name, where a worker finds it, and its tiles."""

import pytest

from kernels.evaluator import fingerprint_of
from kernels.targets import DECODE_TARGET, SKINNY_TARGET, TARGETS, compiled_rows, name_of, tile_of
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import SkinnyTile
from tuner.engines.engine import INSIDE

ENVIRONMENT = {"versions": {"kernel": "k"}, "gpu": "NVIDIA H200", "driver": "580"}


def test_each_target_is_a_module_of_the_engines_side() -> None:
    for target in TARGETS.values():
        assert (INSIDE / f"{target.module.replace('.', '/')}.py").is_file()


def test_a_fingerprint_names_the_kernel_that_was_timed() -> None:
    names = [name_of(module) for module in (SKINNY_TARGET, DECODE_TARGET, "planted_kernels")]
    assert names == ["skinny_gemm", "decode_gemm", "planted_kernels"]
    assert fingerprint_of(ENVIRONMENT, 1, engine=names[1]).engine == "decode_gemm"


@pytest.mark.parametrize("tile", [SkinnyTile(block_size=128, outputs_per_block=2), DecodeTile(rows=8, warps=4)])
def test_a_tile_comes_back_from_its_kind_and_values(tile: SkinnyTile | DecodeTile) -> None:
    assert tile_of(tile.kind, tile.values()) == tile


def test_what_has_no_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match="library_gemm"):
        tile_of("library_gemm", {"backend": "cublas"})


def test_rows_that_share_a_kernel_are_compiled_once() -> None:
    assert [compiled_rows(DecodeTile(rows=8, warps=4), m) for m in (1, 8, 9, 16)] == [8, 8, 16, 16]
    assert compiled_rows(SkinnyTile(block_size=128, outputs_per_block=2), 5) == 5
