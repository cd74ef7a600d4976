"""The real CuTe DSL compiles vLLM 0.33.0's real kernel without a GPU, for each architecture.

TUNER_DSL_PYTHON names an interpreter that has nvidia-cutlass-dsl 4.8.1; without it the tests are skipped.
"""

import os
from pathlib import Path

import asking
import pytest

from kernels.compile import ARCHITECTURES, CompileError, Toolchain, compile_tiles
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import SkinnyTile
from tuner.engines.engine import INSIDE

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TILE = SkinnyTile(block_size=128, outputs_per_block=2)


@pytest.fixture
def tools() -> Toolchain:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tuner" / "kernels"
    python = Path(os.environ.get("TUNER_DSL_PYTHON", cache / "dsl-4.8.1-cu13/bin/python"))
    if not python.exists():
        pytest.skip(f"no CuTe DSL at {python}; name its interpreter in TUNER_DSL_PYTHON")
    return Toolchain(python=python, inside=INSIDE, vllm=asking.python_files() / "vllm")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tile_compiles_to_an_object_with_its_resources(tools: Toolchain, tmp_path: Path, architecture: str) -> None:
    static = SkinnyTile(block_size=128, outputs_per_block=2, static_k=7168)
    found = compile_tiles(tools, [(1, TILE), (1, static)], tmp_path, architecture=architecture, processes=1)
    assert [one.refused for one in found] == ["", ""]
    for one in found:
        assert 16 <= one.registers <= 255
        assert not one.spills
        assert (tmp_path / f"{one.symbol}.o").stat().st_size > 10_000
    assert found[1].registers > found[0].registers  # its first weights are asked for before it may start
    assert found[0].shared_bytes >= TILE.smem_bytes(1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_decode_gemm_compiles_without_spills_for_up_to_8_and_up_to_16_rows(
    tools: Toolchain, tmp_path: Path, architecture: str
) -> None:
    """One tile without a cluster, and one whose blocks add up within one."""
    tiles = [DecodeTile(rows=24, warps=4, stages=3), DecodeTile(rows=16, warps=2, split_k=4, early=False)]
    jobs = [(1, tiles[0]), (16, tiles[1])]
    found = compile_tiles(tools, jobs, tmp_path, architecture=architecture, processes=1)
    assert [(one.m, one.refused, one.spills) for one in found] == [(8, "", False), (16, "", False)]
    for one, tile in zip(found, tiles, strict=True):
        assert tile.registers(one.m) <= one.registers <= 255
        assert one.shared_bytes - tile.smem_bytes(one.m) in (1024, 1088)  # the system's own, on 9.0 and on 10.x
        assert (tmp_path / f"{one.symbol}.o").stat().st_size > 10_000
        assert (len(one.kernel_version), one.compiler.split()[0]) == (12, "nvidia-cutlass-dsl")


def test_a_tile_that_the_kernel_refuses_is_an_answer_and_the_next_one_compiles(
    tools: Toolchain, tmp_path: Path
) -> None:
    odd = SkinnyTile(block_size=100, outputs_per_block=2)
    refused, right = compile_tiles(tools, [(1, odd), (1, TILE)], tmp_path, architecture="sm_90a", processes=1)
    assert "multiple of the warp size" in refused.refused
    assert right.refused == ""


def test_an_interpreter_without_the_dsl_says_so(tmp_path: Path) -> None:
    tools = Toolchain(python=asking.engine_python(), inside=INSIDE, vllm=asking.python_files() / "vllm")
    with pytest.raises(CompileError, match="cutlass"):
        compile_tiles(tools, [(1, TILE)], tmp_path, architecture="sm_90a", processes=1)
