"""Our decode GEMM (decode_gemm.py) as a target of the kernel worker; compiled once for every n and k, and for
1 to 8 and 9 to 16 rows."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner_inside.compiled_gemm import CompiledGemms, fake_tensor
from tuner_inside.kernel_bench import Launch, RefusedError

OPTIONS = "--enable-tvm-ffi"
TILE = ("rows", "warps", "depth", "stages", "split_k", "early")
SOURCE = Path(__file__).with_name("decode_gemm.py")


def kernel_version() -> str:
    """Twelve hex digits of the kernel's source and of how it is compiled: another text is another kernel."""
    return hashlib.sha256(SOURCE.read_bytes() + OPTIONS.encode()).hexdigest()[:12]


def symbol(m: int, values: dict[str, Any]) -> str:
    """A compiled kernel's name in a library."""
    return f"decode_h{halves(m)}_" + "_".join(str(int(values[name])) for name in TILE)


def halves(m: int) -> int:
    return 1 if m <= 8 else 2


def compiled(m: int, values: dict[str, Any], further: str = "") -> Any:
    """What `cute.compile` returns for one tile and number of rows; the architecture is CUTE_DSL_ARCH's, or the GPU's.

    further: compiler options that change no code, to keep what it makes.

    Raises:
        RefusedError: the compiler, or the kernel itself, refuses the tile.
    """
    import cutlass
    from cuda.bindings.driver import CUstream
    from cutlass import cute

    from tuner_inside.decode_gemm import STEP, DecodeGemm

    element = cutlass.BFloat16

    def tensor(rows: Any, columns: Any, divisibility: int) -> Any:
        return fake_tensor(element, rows, columns, divisibility)

    try:
        kernel = DecodeGemm(halves=halves(m), **{name: values[name] for name in TILE})
        rows, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int(divisibility=STEP * values["depth"])
        x, w, out = tensor(rows, k, 8), tensor(n, k, 8), tensor(rows, n, 1)
        return cute.compile(kernel, x, w, out, CUstream(0), options=f"{OPTIONS} {further}".rstrip())
    except (KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error


def compiler(_: dict[str, Any]) -> Callable[[int, dict[str, Any], str], Any]:
    """`compiled`; there is nothing to name, since the kernel is here."""
    return compiled


def version(_: dict[str, Any]) -> str:
    return kernel_version()


class Target:
    """options: as CompiledGemms has them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.version = kernel_version()
        self._gemms = CompiledGemms(
            options, kind="decode_gemm", symbol=symbol, compiled=compiled, operands=lambda x, w, out: (x, w, out)
        )

    def versions(self) -> dict[str, str]:
        return {"kernel": self.version}

    def launcher(self, problem: dict[str, Any], candidate: dict[str, Any]) -> Launch:
        """Raises RefusedError where the candidate cannot be built."""
        return self._gemms.launcher(problem, candidate)
