"""What vLLM 0.33.0 runs for a decode GEMM of Kimi K3: its own tables, as facts. Knows no kernel.

vllm_0_33_0_gemm.csv beside this module has every row of `KIMI_K3_PROJECTIONS`, `_SM100` and `_SM90`
(models/kimi_k3/nvidia/low_latency_gemm.py), as its own `_build_plan` resolves them; rows up to 16. cuBLAS has the rest.
"""

import csv
from functools import cache
from pathlib import Path

from search_spaces.gemm import LibraryGemm, SkinnyTile

TABLE = Path(__file__).parent / "vllm_0_33_0_gemm.csv"
VLLM_VERSION = "0.33.0"
# Product to the compute capability by which vLLM chooses a table.
CAPABILITIES = {
    "GB300": "10.3", "B300": "10.3", "GB200": "10.0", "B200": "10.0", "GH200": "9.0", "H200": "9.0", "H100": "9.0",
}  # fmt: skip
_TILE = ("block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")


def capability_of(gpu: str) -> str | None:
    """gpu: a product name, `H200` or `NVIDIA H200`. None where vLLM has no table for it."""
    return next((capability for name, capability in CAPABILITIES.items() if name in gpu.upper()), None)


def vllm_choice(gpu: str, n: int, k: int, m: int) -> SkinnyTile | LibraryGemm:
    return _choices().get((capability_of(gpu) or "", n, k, m), LibraryGemm())


@cache
def _choices() -> dict[tuple[str, int, int, int], SkinnyTile | LibraryGemm]:
    with TABLE.open(encoding="utf-8") as file:
        return {
            (row["capability"], int(row["n"]), int(row["k"]), int(row["m"])): _choice(row)
            for row in csv.DictReader(file)
        }


def _choice(row: dict[str, str]) -> SkinnyTile | LibraryGemm:
    if row["backend"] != "cute":
        return LibraryGemm(backend=row["backend"])
    return SkinnyTile.from_values({name: int(row[name]) for name in _TILE if row[name]})
