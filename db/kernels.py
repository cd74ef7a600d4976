"""The port `CompiledKernels` on SQLAlchemy."""

from collections.abc import Sequence

from sqlalchemy import select

from db.convert import candidate_of
from db.sessions import Sessions
from db.tables import CompiledKernelRow
from tuner.core.compiled import CompiledKernel

_ALIKE = (
    "architecture", "kernel_version", "compiler", "symbol", "m", "compile_s", "registers", "local_bytes",
    "shared_bytes", "code_bytes", "refused",
)  # fmt: skip


class SqlCompiledKernels:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def keep(self, kernels: Sequence[CompiledKernel]) -> None:
        with self._sessions.writing() as session:
            for kernel in kernels:
                session.merge(_row(kernel))

    def all(self) -> Sequence[CompiledKernel]:
        row = CompiledKernelRow
        query = select(row).order_by(row.architecture, row.kernel_version, row.compiler, row.symbol)
        with self._sessions.reading() as session:
            return [_kernel(found) for found in session.scalars(query)]


def _row(kernel: CompiledKernel) -> CompiledKernelRow:
    told = {name: getattr(kernel, name) for name in _ALIKE}
    return CompiledKernelRow(**told, kind=kernel.tile.kind, values=dict(kernel.tile.values()))


def _kernel(row: CompiledKernelRow) -> CompiledKernel:
    """Raises ValueError where its tile is of a kind that this version does not know."""
    told = {name: getattr(row, name) for name in _ALIKE}
    return CompiledKernel(**told, tile=candidate_of(row.kind, row.values))
