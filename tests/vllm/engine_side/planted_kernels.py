"""Kernels with planted defects, for the worker: right, or wrong in the one way that `outputs_per_block` names."""

import os
import time
from typing import Any

from tuner_inside.kernel_bench import Launch, RefusedError


def _right(x: Any, w: Any, out: Any) -> None:
    out.copy_((x.float() @ w.float().t()).to(out.dtype))


def _one_product_missing(x: Any, w: Any, out: Any) -> None:
    short = x.clone()
    short[:, -1] = 0
    _right(short, w, out)


def _one_output_unwritten(x: Any, w: Any, out: Any) -> None:
    before = out[-1, -1].clone()
    _right(x, w, out)
    out[-1, -1] = before


def _corrupts_weights(x: Any, w: Any, out: Any) -> None:
    _right(x, w, out)
    w[0, 0] += 1


def _corrupts_rows(x: Any, w: Any, out: Any) -> None:
    _right(x, w, out)
    x.zero_()


def _writes_beyond(x: Any, w: Any, out: Any) -> None:
    _right(x, w, out)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)


class _WrongFromTheThirdRun:
    """Passes the check and is wrong when it is timed, as a race between launches is."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: Any, w: Any, out: Any) -> None:
        self.runs += 1
        _right(x, w, out)
        if self.runs > 2:
            out[0, 0] += 8


def _hangs(x: Any, w: Any, out: Any) -> None:
    time.sleep(3600)


def _crashes(x: Any, w: Any, out: Any) -> None:
    os.abort()


def _raises(x: Any, w: Any, out: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


PLANTED: dict[int, Any] = {
    1: _right,
    2: _one_product_missing,
    3: _one_output_unwritten,
    4: _corrupts_weights,
    5: _corrupts_rows,
    6: _writes_beyond,
    7: _hangs,
    8: _crashes,
    9: _raises,
}


class Target:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def versions(self) -> dict[str, str]:
        return {"kernel": "planted"}

    def launcher(self, problem: dict[str, Any], candidate: dict[str, Any]) -> Launch:
        if candidate["kind"] == "library_gemm":
            return _right
        which = candidate["values"]["outputs_per_block"]
        if which == 10:
            return _WrongFromTheThirdRun()
        if which not in PLANTED:
            raise RefusedError("no such kernel was planted")
        return PLANTED[which]
