"""vLLM's own CuTe skinny GEMM as a target of the kernel worker: taken from the installed vLLM, never copied.

Only the kernel's file is executed; `vllm` itself is not imported, which would cost seconds and every dependency it has.
Compiled as vLLM 0.33.0 does (cute_dsl/skinny_gemm.py, `_compile`): n and k at run time, programmatic dependent launch,
at most 64 registers a thread.
"""

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner_inside.compiled_gemm import CompiledGemms, fake_tensor
from tuner_inside.kernel_bench import Launch, RefusedError

FOLDER = Path("model_executor/kernels/linear/cute_dsl")
FILES = ("_skinny_gemm.py", "skinny_gemm.py")
OPTIONS = "--enable-tvm-ffi --ptxas-options -maxrregcount=64"
TILE = ("block_size", "outputs_per_block", "k_unroll", "vector_width")


def vllm_folder(named: str | None = None) -> Path:
    """Of the vLLM that this interpreter has, or of the one named.

    Raises:
        RefusedError: there is none, or it has no such kernel.
    """
    if named is None:
        found = importlib.util.find_spec("vllm")
        if found is None or found.origin is None:
            raise RefusedError("this interpreter has no vLLM")
        named = str(Path(found.origin).parent)
    folder = Path(named)
    missing = [name for name in FILES if not (folder / FOLDER / name).is_file()]
    if missing:
        raise RefusedError(f"the vLLM in {folder} has no {FOLDER / missing[0]}")
    return folder


def kernel_version(folder: Path) -> str:
    """Twelve hex digits of the kernel's and its launcher's source: another text is another kernel.

    Raises:
        RefusedError: vLLM compiles it with other options than these, so timings would not be its own.
    """
    texts = [(folder / FOLDER / name).read_bytes() for name in FILES]
    if OPTIONS.encode() not in texts[1]:
        raise RefusedError(f"this vLLM does not compile its skinny GEMM with {OPTIONS!r}")
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def symbol(m: int, values: dict[str, Any]) -> str:
    """A compiled kernel's name in a library."""
    tile = "_".join(str(values[name]) for name in TILE)
    return f"skinny_m{m}_{tile}" + (f"_k{values['static_k']}" if values.get("static_k") else "")


def compiled(folder: Path, m: int, values: dict[str, Any], further: str = "") -> Any:
    """What `cute.compile` returns for one tile and number of rows; the architecture is CUTE_DSL_ARCH's, or the GPU's.

    further: compiler options that change no code, to keep what it makes.

    Raises:
        RefusedError: the compiler, or the kernel itself, refuses the tile.
    """
    import cutlass
    import cutlass.cute as cute
    from cuda.bindings.driver import CUstream

    kernel_class = _kernel_class(folder)
    element, width = cutlass.BFloat16, values["vector_width"]
    static_k = values.get("static_k")

    def tensor(rows: Any, columns: Any, divisibility: int) -> Any:
        return fake_tensor(element, rows, columns, divisibility)

    try:
        kernel = kernel_class(
            element_type=element,
            num_rows=m,
            block_size=values["block_size"],
            outputs_per_block=values["outputs_per_block"],
            vector_width=width,
            k_unroll=values["k_unroll"],
            has_residual=False,
            use_pdl=True,
            static_k=static_k,
        )
        n = cute.sym_int(divisibility=values["outputs_per_block"])
        k = static_k or cute.sym_int(divisibility=values["block_size"] * width)
        x, w = tensor(m, k, width), tensor(n, k, width)
        residual, out = tensor(m, n, 1), tensor(m, n, 1)
        return cute.compile(kernel, x, w, residual, out, CUstream(0), options=f"{OPTIONS} {further}".rstrip())
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error


def compiler(options: dict[str, Any]) -> Callable[[int, dict[str, Any], str], Any]:
    """`compiled` for the vLLM that the options name. Raises RefusedError where it has no such kernel."""
    return functools.partial(compiled, vllm_folder(options.get("vllm")))


def version(options: dict[str, Any]) -> str:
    """`kernel_version` of the vLLM that the options name. Raises RefusedError as it does."""
    return kernel_version(vllm_folder(options.get("vllm")))


def _kernel_class(folder: Path) -> Any:
    name = "tuner_vllm_skinny_gemm"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / FOLDER / FILES[0])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name].CuteSkinnyGemm


class Target:
    """options: `vllm`, the folder of the package where it is not installed; the others as CompiledGemms has them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder = vllm_folder(options.get("vllm"))
        self.version = kernel_version(self._folder)
        self._gemms = CompiledGemms(
            options,
            kind="skinny_gemm",
            symbol=symbol,
            compiled=functools.partial(compiled, self._folder),
            operands=lambda x, w, out: (x, w, out, out),  # the third is a residual, which this kernel is built without
        )

    def versions(self) -> dict[str, str]:
        found = {"kernel": self.version}
        version = self._folder / "_version.py"
        if version.is_file():
            lines = [line for line in version.read_text().splitlines() if line.startswith("__version__ = ")]
            found["vllm"] = lines[-1].split("'")[1] if lines and "'" in lines[-1] else "unknown"
        return found

    def launcher(self, problem: dict[str, Any], candidate: dict[str, Any]) -> Launch:
        """Raises RefusedError where the candidate cannot be built."""
        return self._gemms.launcher(problem, candidate)
