"""vLLM's skinny GEMM and our decode GEMM in one kernel worker: tiles of either are timed over the same weights."""

from typing import Any

from tuner_inside import decode_target, skinny_target
from tuner_inside.kernel_bench import Launch


class Target:
    """options: as the two targets have them; a library may hold kernels of both."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._skinny, self._decode = skinny_target.Target(options), decode_target.Target(options)

    def versions(self) -> dict[str, str]:
        """`kernel` is vLLM's, `decode_kernel` ours."""
        return self._skinny.versions() | {"decode_kernel": self._decode.version}

    def launcher(self, problem: dict[str, Any], candidate: dict[str, Any]) -> Launch:
        """Raises RefusedError where the candidate cannot be built."""
        target = self._decode if candidate["kind"] == "decode_gemm" else self._skinny
        return target.launcher(problem, candidate)
