"""Check a kernel, then time it, on one device. Knows no kernel; a target brings it.

For every candidate: build it; run it on fresh random inputs into a poisoned output between guards; compare each element
with float64; see that the inputs are untouched. Only then time it, by replaying a CUDA graph over weights larger than
the cache, and check inputs and outputs of the timed launches again. A candidate that fails is an answer with a failure
kind, never a number; one that hangs or takes the process down is the parent's to see.
"""

import itertools
import math
import subprocess
import time
from collections.abc import Callable
from typing import Any

Launch = Callable[[Any, Any, Any], Any]  # x (m, k), w (n, k), out (m, n)

GUARD = 4096  # elements on each side of an output
# One rounding to bfloat16 is off by up to 2^-9 of the value; a sum of k products in float32 by far less than 2^-20 of
# the sum of their magnitudes, whatever the order.
RELATIVE, ACCUMULATED = 2.0**-8, 2.0**-20
CHECKS = 2
L2_TIMES = 5  # weights that a timing goes through, in caches
LEAST_COPIES, MOST_COPIES = 2, 1024
LAUNCHES = 64  # in one graph, at least
REPLAYS = 7


class RefusedError(Exception):
    """The candidate cannot be built or run here; the message says why."""


class WrongError(Exception):
    """It ran and is wrong; the message says how."""


class Bench:
    """One target on one device. Weights of the last shape are kept, since many candidates are asked of it."""

    def __init__(self, target: Any, device: str) -> None:
        import torch

        self._torch = torch
        self._target = target
        self._device = device
        self._cuda = device == "cuda"
        self._shape: tuple[int, int] | None = None
        self._weights: Any = None  # (copies, n, k)
        self._pristine: Any = None

    def environment(self) -> dict[str, Any]:
        torch = self._torch
        found: dict[str, Any] = {"gpu": "cpu", "driver": "", "versions": {"torch": torch.__version__}}
        if self._cuda:
            properties = torch.cuda.get_device_properties(0)
            found |= {
                "gpu": properties.name,
                "driver": _driver(),
                "multiprocessors": properties.multi_processor_count,
                "l2_bytes": properties.L2_cache_size,
                "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
            }
            found["versions"]["cuda"] = str(torch.version.cuda)
        found["versions"].update(self._target.versions())
        return found

    def measure(self, question: dict[str, Any]) -> dict[str, Any]:
        """`{"us": [...], "error": largest relative error}`, or `{"failed": FailureKind, "sentence": ...}`."""
        torch = self._torch
        problem, candidate = question["problem"], question["candidate"]
        torch.manual_seed(question["seed"])
        begun = time.monotonic()
        try:
            launch = self._target.launcher(problem, candidate)
            built_s = time.monotonic() - begun
            error = max(self._check(problem, launch) for _ in range(question.get("checks", CHECKS)))
            us = self._time(problem, launch, question) if question.get("time", True) else []
        except RefusedError as refused:
            return _failed("rejected_by_engine", refused)
        except WrongError as wrong:
            self._forget()
            return _failed("wrong_output", wrong)
        except torch.OutOfMemoryError as full:
            self._forget()
            return _failed("out_of_memory", full)
        return {"us": us, "error": error, "built_s": built_s}

    def _check(self, problem: dict[str, Any], launch: Launch) -> float:
        """Largest error relative to its bound, at most 1. Raises WrongError."""
        n, k, m = problem["n"], problem["k"], problem["m"]
        x, w = self._random(m, k), self._random(n, k)
        kept = x.clone(), w.clone()
        whole = self._poison(1, m * n)
        out = whole[0, GUARD : GUARD + m * n].view(m, n)
        launch(x, w, out)
        self._wait()
        _untouched("its input x", x, kept[0], self._torch)
        _untouched("its weights", w, kept[1], self._torch)
        self._guards(whole)
        return self._compare(out, *kept)

    def _compare(self, out: Any, x: Any, w: Any) -> float:
        torch = self._torch
        x, w = x.double(), w.double()
        reference = x @ w.t()
        allowed = RELATIVE * reference.abs() + ACCUMULATED * (x.abs() @ w.abs().t())
        error = (out.double() - reference).abs() / allowed
        if not bool(torch.isfinite(error).all()):
            left = int((~torch.isfinite(out)).sum())
            raise WrongError(f"{left} of {out.numel()} outputs were not written, or are not finite")
        worst = float(error.max())
        if worst > 1:
            off = int((error > 1).sum())
            distance = float((out.double() - reference).norm() / reference.norm())
            raise WrongError(f"{off} of {out.numel()} outputs differ from float64, in all by {distance:.2e}")
        return worst

    def _time(self, problem: dict[str, Any], launch: Launch, question: dict[str, Any]) -> list[float]:
        """Microseconds a launch, one figure for each replay."""
        n, k, m = problem["n"], problem["k"], problem["m"]
        self._fill(n, k)
        copies = len(self._weights)
        launches = copies * math.ceil(question.get("launches", LAUNCHES) / copies)
        x = self._random(m, k)
        kept = x.clone()
        whole = self._poison(copies, m * n)
        places = [(self._weights[i], whole[i, GUARD : GUARD + m * n].view(m, n)) for i in range(copies)]

        def run() -> None:
            for place in range(launches):
                launch(x, *places[place % copies])

        us = self._replay(run, question.get("replays", REPLAYS), launches)
        _untouched("its input x", x, kept, self._torch)
        _untouched("its weights", self._weights, self._pristine, self._torch)
        self._guards(whole)
        chosen = question["seed"] % copies
        self._compare(places[chosen][1], x, self._weights[chosen])
        return us

    def _replay(self, run: Callable[[], None], replays: int, launches: int) -> list[float]:
        torch = self._torch
        if not self._cuda:
            times = []
            for _ in range(replays):
                begun = time.perf_counter()
                run()
                times.append(1e6 * (time.perf_counter() - begun) / launches)
            return times
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
        for _ in range(2):
            graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        torch.cuda.synchronize()
        return [1000 * a.elapsed_time(b) / launches for a, b in itertools.pairwise(marks)]

    def _fill(self, n: int, k: int) -> None:
        """Copies of the weights, each with its own numbers: so many that none is still cached when its turn comes."""
        if self._shape == (n, k):
            return
        self._forget()
        torch = self._torch
        cache = torch.cuda.get_device_properties(0).L2_cache_size if self._cuda else 0
        copies = min(MOST_COPIES, max(LEAST_COPIES, math.ceil(L2_TIMES * cache / (2 * n * k))))
        self._weights = self._random(copies, n, k)
        self._pristine = self._weights.clone()
        self._shape = (n, k)

    def _forget(self) -> None:
        self._weights, self._pristine, self._shape = None, None, None

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(*shape, dtype=self._torch.bfloat16, device=self._device)

    def _poison(self, copies: int, count: int) -> Any:
        """Outputs of NaN, each between guards."""
        shape = (copies, count + 2 * GUARD)
        return self._torch.full(shape, math.nan, dtype=self._torch.bfloat16, device=self._device)

    def _guards(self, whole: Any) -> None:
        guards = self._torch.cat([whole[:, :GUARD], whole[:, -GUARD:]])
        if not bool(self._torch.isnan(guards).all()):
            raise WrongError("it wrote outside its output")

    def _wait(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()


def _untouched(what: str, now: Any, before: Any, torch: Any) -> None:
    if not torch.equal(now, before):
        raise WrongError(f"it changed {what}")


def _failed(kind: str, error: Exception) -> dict[str, Any]:
    return {"failed": kind, "sentence": str(error)[:2000]}


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
