"""Compile tiles without a GPU, in an interpreter that has the CuTe DSL; registers, local and shared memory of each.

Reads `{"target": module, "out": folder, "jobs": [{"m": ..., "values": {...}}, ...]}` from standard input, with what the
target needs beside it: `vllm`, the folder of the package. The architecture is CUTE_DSL_ARCH's; cubins are dumped to
CUTE_DSL_DUMP_DIR, a folder of this process alone. Answers one JSON line a job, with the versions of the kernel's text
and of the compiler; `out` holds one object file a kernel, to be linked.
"""

import importlib
import importlib.metadata
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

from tuner_inside.kernel_bench import RefusedError

SKINNY = "tuner_inside.skinny_target"
DSL = "nvidia-cutlass-dsl"
REGISTERS, FRAME_SIZE = 0x2F, 0x11  # attributes of .nv.info: of a thread; bytes of local memory, spills included


def main() -> None:
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    target = importlib.import_module(asked.get("target", SKINNY))
    build = target.compiler(asked)
    versions = {"kernel": target.version(asked), "compiler": f"{DSL} {importlib.metadata.version(DSL)}"}
    for job in asked["jobs"]:
        begun = time.monotonic()
        name = target.symbol(job["m"], job["values"])
        try:
            kernel = build(job["m"], job["values"], "--keep-cubin")
            kernel.export_to_c(str(Path(asked["out"]) / f"{name}.o"), name)
            answer: dict[str, Any] = resources(kernel.artifacts.CUBIN)
        except RefusedError as error:
            answer = {"refused": str(error)[:2000]}
        out.write(
            json.dumps({**job, **versions, "symbol": name, "compile_s": time.monotonic() - begun, **answer}) + "\n"
        )
        out.flush()


def resources(cubin: bytes) -> dict[str, int]:
    """Of the one kernel in an ELF image: registers a thread, bytes of local memory a thread, static shared bytes, bytes
    of code."""
    sections = _sections(cubin)
    text = [s for s in sections if s["name"].startswith(".text.")]
    if len(text) != 1:
        raise ValueError(f"one kernel was expected, and there are {len(text)}")
    (info,) = [s for s in sections if s["name"] == ".nv.info"]
    attributes = _attributes(cubin[info["offset"] : info["offset"] + info["size"]])
    return {
        "registers": attributes[REGISTERS],
        "local_bytes": attributes[FRAME_SIZE],
        "shared_bytes": sum(s["size"] for s in sections if s["name"].startswith(".nv.shared.")),
        "code_bytes": text[0]["size"],
    }


def _sections(elf: bytes) -> list[dict[str, Any]]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF image")
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, start + place * size) for place in range(count)]
    table = headers[names][4]

    def name(at: int) -> str:
        return elf[table + at : elf.index(b"\0", table + at)].decode()

    return [{"name": name(h[0]), "offset": h[4], "size": h[5]} for h in headers]


def _attributes(info: bytes) -> dict[int, int]:
    """The largest value of each attribute that a kernel has. An attribute is a format, a code, and where the format is
    4, a length and its bytes: the kernel's symbol and the value."""
    found: dict[int, int] = {}
    at = 0
    while at + 4 <= len(info):
        form, code, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if value == 8:
                found[code] = max(found.get(code, 0), struct.unpack_from("<I", info, at + 4)[0])
            at += value
    return found


if __name__ == "__main__":
    main()
