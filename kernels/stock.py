"""What an installed vLLM runs today for each decode GEMM: its own tables, asked in its own interpreter."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.workload import GemmProblem

MODULE = "tuner_inside.kernel_table"


class StockError(RuntimeError):
    """That interpreter has no vLLM with such tables; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """vllm, kernel: versions.   choices: compute capability to (n, k, m) to vLLM's choice; cuBLAS has the rest."""

    vllm: str
    kernel: str
    choices: Mapping[str, Mapping[tuple[int, int, int], SkinnyTile | LibraryGemm]]

    def choice(self, capability: str, problem: GemmProblem) -> SkinnyTile | LibraryGemm:
        """Raises KeyError for a compute capability that vLLM has no table for."""
        return self.choices[capability].get((problem.n, problem.k, problem.m), LibraryGemm())


def ask_stock(python: Path, environment: Mapping[str, str]) -> Stock:
    """environment: the whole of it; PYTHONPATH holds `tuner_inside`, and vLLM where it is not installed.

    Raises:
        StockError: it could not be asked.
    """
    done = subprocess.run(
        [python, "-m", MODULE], env=dict(environment), capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise StockError(done.stderr.strip()[-2000:])
    return read_stock(done.stdout)


def read_stock(text: str) -> Stock:
    document = json.loads(text)
    choices: dict[str, dict[tuple[int, int, int], SkinnyTile | LibraryGemm]] = {}
    for capability, rows in document["tables"].items():
        choices[capability] = {
            (row["n"], row["k"], row["m"]): SkinnyTile(**row["tile"])
            if row["tile"]
            else LibraryGemm(backend=row["backend"])
            for row in rows
        }
    return Stock(vllm=document["vllm"], kernel=document["kernel"], choices=choices)
