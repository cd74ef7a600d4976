"""Tuned tiles in the place of vLLM's own for Kimi K3's decode projections; and what vLLM's own are.

TUNER_KERNEL_TABLE names a file that `tuner export-config --format table` wrote. It is put into vLLM's table for this
GPU when the engine imports that table, all of it or nothing: another vLLM version, another kernel, another GPU, or a
table of another layout is refused with one line in the log, and vLLM runs as it would without us.

As a program it prints vLLM's tables as JSON.
"""

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner_inside.after_import import after_import
from tuner_inside.kernel_bench import RefusedError
from tuner_inside.skinny_target import kernel_version, vllm_folder

VARIABLE = "TUNER_KERNEL_TABLE"
REPORT_VARIABLE = "TUNER_KERNEL_TABLE_REPORT"  # a folder; each process writes one file
MODULE = "vllm.models.kimi_k3.nvidia.low_latency_gemm"
FORMAT = 1
VLLM_VERSIONS = ("0.33.0",)  # whose layout was read
# Compute capability to the table that vLLM reads on it.
TABLES = {"9.0": "KIMI_K3_PROJECTIONS_SM90", "10.0": "KIMI_K3_PROJECTIONS_SM100", "10.3": "KIMI_K3_PROJECTIONS"}
SPEC_FIELDS = ("n", "k", "dsv3_tokens", "cute_configs", "residual_configs", "name")
TILE_FIELDS = ("num_rows", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")

log = logging.getLogger("vllm.tuner_inside.kernel_table")


def load() -> None:
    """Called by the plug-in in each of the engine's processes. Never raises for what the file or the vLLM is."""
    path = os.environ[VARIABLE]
    after_import(MODULE, lambda module: _put(module, path))


def _put(module: ModuleType, path: str) -> None:
    try:
        count = apply(module, json.loads(Path(path).read_text(encoding="utf-8")), vllm_version())
    except (RefusedError, OSError, ValueError) as error:
        log.warning("Tuned kernel table %s is not used: %s", path, error)
        return
    log.info("Tuned kernel table %s is in use: %d tiles", path, count)


def apply(module: ModuleType, document: dict[str, Any], version: str) -> int:
    """Put every tile of the file into the module's table and watch what is planned and captured.

    Returns:
        How many tiles.

    Raises:
        RefusedError: the file is not for this vLLM, kernel or GPU, or the layout is unknown. Nothing was changed.
    """
    _check(module, document, version)
    table = getattr(module, TABLES[document["gpu"]["capability"]])
    changed = {}
    for entry in document["tiles"]:
        shape = entry["n"], entry["k"]
        spec = changed.get(shape) or table.get(shape) or module.ProjectionSpec(*shape)
        changed[shape] = _with_tile(module, spec, entry)
    table.update(changed)
    _Watch(module, document["tiles"])
    return len(document["tiles"])


def _check(module: ModuleType, document: dict[str, Any], version: str) -> None:
    if document.get("format") != FORMAT:
        raise RefusedError(f"its format is {document.get('format')!r}, and {FORMAT} is understood")
    if document.get("status") != "validated":
        raise RefusedError(f"its tiles are {document.get('status')!r}, and only validated ones are used")
    if version not in VLLM_VERSIONS:
        raise RefusedError(
            f"the layout of vLLM {version}'s table is not known, only that of {', '.join(VLLM_VERSIONS)}"
        )
    if document["vllm_version"] != version:
        raise RefusedError(f"it was measured with vLLM {document['vllm_version']}, and this is {version}")
    kernel = kernel_version(vllm_folder())
    if document["kernel_version"] != kernel:
        raise RefusedError(f"it was measured with kernel {document['kernel_version']}, and this vLLM has {kernel}")
    capability = document["gpu"]["capability"]
    name = TABLES.get(capability)
    if name is None:
        raise RefusedError(f"vLLM has no table for compute capability {capability}")
    missing = [n for n in (name, "ProjectionSpec", "SkinnyGemmConfig", "_build_plan", "_run_plan", "_low_latency_table")
               if not hasattr(module, n)]  # fmt: skip
    if missing:
        raise RefusedError(f"the table's layout changed: {MODULE} has no {missing[0]}")
    for kind, known in ((module.ProjectionSpec, SPEC_FIELDS), (module.SkinnyGemmConfig, TILE_FIELDS)):
        fields = tuple(field.name for field in dataclasses.fields(kind))
        if fields != known:
            raise RefusedError(f"the table's layout changed: {kind.__name__} has the fields {', '.join(fields)}")
    if module._low_latency_table() is not getattr(module, name):
        raise RefusedError(f"it is for {document['gpu']['name']}, and vLLM reads another table than {name} on this GPU")


def _with_tile(module: ModuleType, spec: Any, entry: dict[str, Any]) -> Any:
    """The projection with that tile at that number of rows; a tile goes before vLLM's other kernels.

    Raises:
        RefusedError: vLLM's kernel would refuse the tile at its first launch.
    """
    m, tile = entry["m"], entry["tile"]
    if not 1 <= m <= 16 or entry["n"] % tile["outputs_per_block"] or tile["block_size"] % 32:
        raise RefusedError(f"no kernel runs {tile} at {entry['n']} x {entry['k']}, {m} rows")
    static_k = tile.get("static_k")
    if entry["k"] % (tile["block_size"] * tile["vector_width"]) or static_k not in (None, entry["k"]):
        raise RefusedError(f"no kernel runs {tile} at {entry['n']} x {entry['k']}, {m} rows")
    config = module.SkinnyGemmConfig(num_rows=m, **tile)
    configs = {**dict(spec.cute_configs), m: config}
    return dataclasses.replace(
        spec, cute_configs=tuple(sorted(configs.items())), dsv3_tokens=frozenset(spec.dsv3_tokens) - {m}
    )


class _Watch:
    """Which tuned tiles vLLM planned for a layer, and which it launched while a CUDA graph was captured."""

    def __init__(self, module: ModuleType, entries: list[dict[str, Any]]) -> None:
        self._tuned = {(e["n"], e["k"], e["m"]) for e in entries}
        self._planned: set[tuple[int, int, int]] = set()
        self._captured: set[tuple[int, int, int]] = set()
        build, run = module._build_plan, module._run_plan

        def build_plan(spec: Any) -> Any:
            plan = build(spec)
            self._note(self._planned, {(spec.n, spec.k, m) for m in plan})
            return plan

        def run_plan(plan: Any, x: Any, weight: Any) -> Any:
            out = run(plan, x, weight)
            if out is not None and module.torch.cuda.is_current_stream_capturing():
                self._note(self._captured, {(weight.shape[0], weight.shape[1], x.shape[0])})
            return out

        module._build_plan, module._run_plan = build_plan, run_plan  # type: ignore[attr-defined]

    def _note(self, seen: set[tuple[int, int, int]], found: set[tuple[int, int, int]]) -> None:
        new = (found & self._tuned) - seen
        if new:
            seen |= new
            self._write()

    def _write(self) -> None:
        folder = os.environ.get(REPORT_VARIABLE)
        if not folder:
            return
        report = {
            "tuned": len(self._tuned),
            "planned": sorted(map(list, self._planned)),
            "captured": sorted(map(list, self._captured)),
        }
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f"kernel-table-{os.getpid()}.json").write_text(json.dumps(report))
        except OSError as error:
            log.warning("What became of the tuned tiles cannot be written: %s", error)


def tables(module: ModuleType) -> dict[str, list[dict[str, Any]]]:
    """vLLM's own tables: by compute capability, every row that its plan does not leave to cuBLAS."""
    found: dict[str, list[dict[str, Any]]] = {}
    for capability, name in TABLES.items():
        rows = found.setdefault(capability, [])
        for (n, k), spec in getattr(module, name).items():
            for m, (backend, config) in module._build_plan(spec).items():
                tile = None if config is None else {f: getattr(config, f) for f in TILE_FIELDS[1:]}
                rows.append({"n": n, "k": k, "m": m, "backend": backend, "tile": tile})
    return found


def vllm_version() -> str:
    """Without what a build adds to it: 0.33.0+cu130 is 0.33.0."""
    import vllm

    return vllm.__version__.partition("+")[0]


def main() -> None:
    import importlib

    out, sys.stdout = sys.stdout, sys.stderr
    module = importlib.import_module(MODULE)
    answer = {"vllm": vllm_version(), "kernel": kernel_version(vllm_folder()), "tables": tables(module)}
    out.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
