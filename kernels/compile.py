"""Compile tiles without a GPU: what each would take of a multiprocessor, and a library of those that a worker can load.

The interpreter that has the CuTe DSL does the work, in several processes with a dump folder each. The compiler refuses
almost nothing, so what is legal is decided before (search_spaces/gemm.py); what spills is seen here. A compiled tile is
not a measured one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kernels.targets import TARGETS, Tile, compiled_rows, launched_bytes, tile_of
from search_spaces.candidate import Candidate
from tuner.core.compiled import CompiledKernel

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
MODULE = "tuner_inside.kernel_compile"


class CompileError(RuntimeError):
    """A compiling process, or the linker, ended with an error; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """python: the interpreter that has the CuTe DSL.   inside: the folder of `tuner_inside`.   vllm: the folder of the
    package that holds the kernel; None where that interpreter has it installed.   path: further folders for its
    PYTHONPATH."""

    python: Path
    inside: Path
    vllm: Path | None = None
    path: tuple[Path, ...] = ()


def compile_tiles(
    tools: Toolchain, jobs: Sequence[tuple[int, Tile]], out: Path, *, architecture: str, processes: int
) -> list[CompiledKernel]:
    """jobs: rows and tile, of any target; each is compiled once for every n and k.   out: gets an object file a kernel.

    Raises:
        CompileError: a process ended with an error.
        ValueError: an architecture that no kernel here is compiled for.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r} is none of {', '.join(ARCHITECTURES)}")
    out.mkdir(parents=True, exist_ok=True)
    distinct = list(dict.fromkeys((compiled_rows(tile, m), tile) for m, tile in jobs))
    shares = [
        share
        for kind in TARGETS
        if (of_kind := [job for job in distinct if job[1].kind == kind])
        for number in range(processes)
        if (share := of_kind[number::processes])
    ]
    with ThreadPoolExecutor(processes) as pool:
        done = [
            pool.submit(_one_process, tools, share, out, architecture, out / f"dump{number}")
            for number, share in enumerate(shares)
        ]
        found = [compiled for future in done for compiled in future.result()]
    by_job: dict[tuple[int, Candidate], CompiledKernel] = {(compiled.m, compiled.tile): compiled for compiled in found}
    return [by_job[job] for job in distinct]


def link(folder: Path, library: Path, *, search: Sequence[Path]) -> Path:
    """One shared library of a folder's object files. search: folders of the DSL's and of tvm-ffi's run-time libraries.

    Raises:
        CompileError: there is nothing to link, or the linker failed.
    """
    objects = sorted(folder.glob("*.o"))
    if not objects:
        raise CompileError(f"{folder} holds no compiled kernel")
    listing = folder / "objects"
    listing.write_text("\n".join(map(str, objects)))
    paths = [f"-L{path}" for path in search]
    command = ["cc", "-shared", "-o", str(library), f"@{listing}", *paths, "-lcute_dsl_runtime", "-ltvm_ffi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr[-4000:])
    return library


def resources(compiled: Sequence[CompiledKernel]) -> list[dict[str, Any]]:
    """JSON-ready; `status` says that nothing of it was measured."""
    return [
        {
            **{field.name: getattr(one, field.name) for field in fields(one)},
            "kind": one.tile.kind,
            "tile": one.tile.values(),
            "spills": one.spills,
            "status": "not_measured",
        }
        for one in compiled
    ]


def _one_process(
    tools: Toolchain, jobs: Sequence[tuple[int, Tile]], out: Path, architecture: str, dump: Path
) -> list[CompiledKernel]:
    """jobs: of one target."""
    dump.mkdir(parents=True, exist_ok=True)
    kind = jobs[0][1].kind
    asked = {
        "target": TARGETS[kind].module,
        "vllm": str(tools.vllm) if tools.vllm else None,
        "out": str(out),
        "jobs": [{"m": m, "values": tile.values()} for m, tile in jobs],
    }
    done = subprocess.run(
        [tools.python, "-m", MODULE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={
            **_passed_on(),
            "PYTHONPATH": os.pathsep.join(map(str, (tools.inside, *tools.path))),
            "PYTHONSAFEPATH": "1",
            "CUTE_DSL_ARCH": architecture,
            "CUTE_DSL_DUMP_DIR": str(dump),
        },
        cwd=dump,
    )
    if done.returncode != 0:
        raise CompileError(done.stderr[-4000:])
    shutil.rmtree(dump)
    return [_compiled(json.loads(line), kind, architecture) for line in done.stdout.splitlines()]


def _compiled(answer: Mapping[str, Any], kind: str, architecture: str) -> CompiledKernel:
    tile = tile_of(kind, answer["values"])
    known = {
        name: answer[name] for name in ("registers", "local_bytes", "shared_bytes", "code_bytes") if name in answer
    }
    if "shared_bytes" in known:
        known["shared_bytes"] += launched_bytes(tile, answer["m"])
    return CompiledKernel(
        architecture=architecture,
        kernel_version=answer["kernel"],
        compiler=answer["compiler"],
        m=answer["m"],
        tile=tile,
        symbol=answer["symbol"],
        compile_s=answer["compile_s"],
        refused=answer.get("refused", ""),
        **known,
    )


def _passed_on() -> dict[str, str]:
    """What a compiler needs of this process's environment."""
    return {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ
    }
