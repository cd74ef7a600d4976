"""Compiling without a GPU: what the processes answer is read, and what fails is an error."""

import importlib
import json
import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kernels.compile import CompileError, Toolchain, compile_tiles, link, resources
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import SkinnyTile
from tuner.engines.engine import INSIDE

TILE = SkinnyTile(block_size=128, outputs_per_block=2)
OTHER = SkinnyTile(block_size=64, outputs_per_block=4, static_k=7168)

# Stands in for the interpreter that has the DSL: answers what kernel_compile would, and notes what it was given.
COMPILER = """#!/bin/sh
exec {python} -c '
import json, os, sys
asked = json.load(sys.stdin)
for job in asked["jobs"]:
    versions = {{"kernel": asked["target"].split(".")[1], "compiler": "dsl 1"}}
    answer = {{"registers": 40, "local_bytes": 8 * (job["m"] == 8), "shared_bytes": 1024, "code_bytes": 2816}}
    if job["m"] == 7:
        answer = {{"refused": "ValueError: no"}}
    name = "m%d_%s_%s" % (job["m"], os.environ["CUTE_DSL_ARCH"], "_".join(map(str, job["values"].values())))
    open(os.path.join(asked["out"], name + ".o"), "w").close()
    print(json.dumps({{**job, **versions, "symbol": name, "compile_s": 0.5, **answer}}))
'
"""


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    python = tmp_path / "python"
    python.write_text(COMPILER.format(python=sys.executable))
    python.chmod(0o755)
    return Toolchain(python=python, inside=tmp_path)


def test_every_kernel_is_compiled_once_and_answered_in_the_order_asked(tools: Toolchain, tmp_path: Path) -> None:
    jobs = [(1, TILE), (2, OTHER), (1, TILE), (8, TILE), (7, TILE)]
    found = compile_tiles(tools, jobs, tmp_path / "out", architecture="sm_90a", processes=3)
    assert [(c.m, c.tile) for c in found] == [(1, TILE), (2, OTHER), (8, TILE), (7, TILE)]
    assert [c.spills for c in found] == [False, False, True, False]
    assert found[3].refused == "ValueError: no"
    assert {c.architecture for c in found} == {"sm_90a"}
    assert not list((tmp_path / "out").glob("dump*"))


def test_tiles_of_two_kernels_are_compiled_by_their_own_targets_and_a_decode_tile_for_8_and_16_rows(
    tools: Toolchain, tmp_path: Path
) -> None:
    decode = DecodeTile(rows=16, warps=4, split_k=2)
    jobs = [(2, decode), (2, TILE), (4, decode), (11, decode)]
    found = compile_tiles(tools, jobs, tmp_path / "out", architecture="sm_100a", processes=2)
    assert [(c.m, c.tile, c.kernel_version) for c in found] == [
        (8, decode, "decode_target"), (2, TILE, "skinny_target"), (16, decode, "decode_target"),
    ]  # fmt: skip
    assert [c.compiler for c in found] == ["dsl 1"] * 3


def test_shared_memory_counts_what_a_launch_asks_for(tools: Toolchain, tmp_path: Path) -> None:
    """vLLM's kernel declares all of its own; ours asks for its rings at launch."""
    decode = DecodeTile(rows=16, warps=4, split_k=2)
    ours, vllms = compile_tiles(tools, [(4, decode), (4, TILE)], tmp_path, architecture="sm_90a", processes=1)
    assert ours.shared_bytes == 1024 + decode.smem_bytes(8)
    assert vllms.shared_bytes == 1024


def test_what_was_only_compiled_says_so(tools: Toolchain, tmp_path: Path) -> None:
    found = compile_tiles(tools, [(1, OTHER)], tmp_path / "out", architecture="sm_103a", processes=1)
    (document,) = resources(found)
    assert document["status"] == "not_measured"
    assert document["tile"]["static_k"] == 7168
    assert document["registers"] == 40
    json.dumps(document, allow_nan=False)


def test_an_architecture_that_nothing_is_compiled_for_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    tools = Toolchain(python=tmp_path / "absent", inside=tmp_path)
    with pytest.raises(ValueError, match="sm_80"):
        compile_tiles(tools, [(1, TILE)], tmp_path, architecture="sm_80", processes=1)


def test_a_process_that_fails_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: cutlass >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(CompileError, match="ModuleNotFoundError: cutlass"):
        compile_tiles(
            Toolchain(python=python, inside=tmp_path), [(1, TILE)], tmp_path, architecture="sm_90a", processes=1
        )


def test_an_empty_folder_links_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no compiled kernel"):
        link(tmp_path, tmp_path / "k.so", search=[])


@pytest.fixture
def kernel_compile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """It is the engine's, and imports nothing but the standard library."""
    monkeypatch.syspath_prepend(str(INSIDE))
    return importlib.import_module("tuner_inside.kernel_compile")


def test_resources_are_read_from_the_kernels_elf_image(kernel_compile: ModuleType) -> None:
    assert kernel_compile.resources(elf(registers=40, local=16, shared=1024, code=2816)) == {
        "registers": 40, "local_bytes": 16, "shared_bytes": 1024, "code_bytes": 2816,
    }  # fmt: skip


def test_an_image_without_a_kernel_is_refused(kernel_compile: ModuleType) -> None:
    with pytest.raises(ValueError, match="ELF"):
        kernel_compile.resources(b"MZ")


def elf(*, registers: int, local: int, shared: int, code: int) -> bytes:
    """A 64-bit ELF image with the sections of one kernel, and no more of it than is read."""
    info = b"".join(
        struct.pack("<BBHII", 4, attribute, 8, 7, value) for attribute, value in ((0x2F, registers), (0x11, local))
    )
    info = struct.pack("<BBH", 3, 0x50, 1) + info
    sections = [("", b"", 0), (".nv.info", info, len(info)), (".text.k", b"", code), (".nv.shared.k", b"", shared)]
    names, offsets = b"", []
    for name, _, _ in [*sections, (".shstrtab", b"", 0)]:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    at, body, headers = 64, b"", b""
    for (_, data, size), name in zip([*sections, ("", names, len(names))], offsets, strict=True):
        headers += struct.pack("<IIQQQQIIQQ", name, 0, 0, 0, at + len(body), size, 0, 0, 0, 0)
        body += data
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 40, at + len(body))
    struct.pack_into("<HHH", head, 58, 64, len(sections) + 1, len(sections))
    return bytes(head) + body + headers
