"""What every target of compiled GEMMs does alike: kernels from a library or made on demand, cuBLAS beside them."""

import ctypes
from collections.abc import Callable
from typing import Any

from tuner_inside.kernel_bench import Launch, RefusedError


class CompiledGemms:
    """Kernels of one kind, each found or compiled once.

    options: `library`, kernels that were compiled before; `runtime`, the DSL's run-time library that such kernels need.
    kind: of the candidates.   symbol: a kernel's name in the library, of rows and tile.   compiled: makes what the
    library lacks.   operands: what the kernel takes before the stream, of x, w and out.
    """

    def __init__(
        self,
        options: dict[str, Any],
        *,
        kind: str,
        symbol: Callable[[int, dict[str, Any]], str],
        compiled: Callable[[int, dict[str, Any]], Any],
        operands: Callable[[Any, Any, Any], tuple[Any, ...]],
    ) -> None:
        self._kind, self._symbol, self._compiled, self._operands = kind, symbol, compiled, operands
        self._library = None
        self._kernels: dict[str, Any] = {}
        if options.get("library"):
            import tvm_ffi

            if options.get("runtime"):
                ctypes.CDLL(options["runtime"], mode=ctypes.RTLD_GLOBAL)
            self._library = tvm_ffi.load_module(options["library"])

    def launcher(self, problem: dict[str, Any], candidate: dict[str, Any]) -> Launch:
        """Raises RefusedError where the candidate cannot be built."""
        import torch

        if candidate["kind"] == "library_gemm":
            if candidate["values"]["backend"] != "cublas":
                raise RefusedError(f"{candidate['values']['backend']} needs vLLM's compiled extension")
            return lambda x, w, out: torch.mm(x, w.t(), out=out)
        if candidate["kind"] != self._kind:
            raise RefusedError(f"no kernel here is of kind {candidate['kind']!r}")
        kernel = self._kernel(problem["m"], candidate["values"])

        def launch(x: Any, w: Any, out: Any) -> None:
            kernel(*self._operands(x, w, out), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

        return launch

    def _kernel(self, m: int, values: dict[str, Any]) -> Any:
        name = self._symbol(m, values)
        if name not in self._kernels:
            in_library = self._library is not None and self._library.implements_function(name)
            found = self._library.get_function(name) if in_library else self._compiled(m, values)
            self._kernels[name] = found
        return self._kernels[name]


def fake_tensor(element: Any, rows: Any, columns: Any, divisibility: int) -> Any:
    """A row-major operand whose leading stride is known to be a multiple of so many elements."""
    from cutlass import cute

    stride = (cute.sym_int64(divisibility=divisibility), 1)
    align = divisibility * element.width // 8
    return cute.runtime.make_fake_tensor(element, (rows, columns), stride=stride, assumed_align=align)
