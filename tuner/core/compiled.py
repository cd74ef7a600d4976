"""What a compiler said of a tile, without a GPU. Knows no compiler and no storage. A compiled tile is not a measured
one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from search_spaces.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """One kernel, for every n and k. architecture: `sm_90a`.   kernel_version: of the kernel's text.   compiler: name
    and version.   m: rows of x, for a decode tile the most (8 or 16).   symbol: its name in a library.

    registers, local_bytes: of a thread; local memory holds what spilled.   shared_bytes: of a block, with what a launch
    asks for and the kilobyte that the system keeps.   refused: why the compiler would not; then nothing else is known.
    """

    architecture: str
    kernel_version: str
    compiler: str
    m: int
    tile: Candidate
    symbol: str
    compile_s: float
    registers: int = 0
    local_bytes: int = 0
    shared_bytes: int = 0
    code_bytes: int = 0
    refused: str = ""

    @property
    def spills(self) -> bool:
        return self.local_bytes > 0


class CompiledKernels(Protocol):
    """Every kernel once by architecture, text, compiler and symbol."""

    def keep(self, kernels: Sequence[CompiledKernel]) -> None:
        """All or none; one that is there already is replaced."""
        ...

    def all(self) -> Sequence[CompiledKernel]:
        """By architecture, version, compiler and symbol."""
        ...
