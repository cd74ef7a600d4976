"""The `kernel` evaluator: each tile is checked and timed by a worker process in the engine's interpreter.

A start is an independent timing pass. A search keeps its worker from one candidate to the next; a start that must be
fresh gets a process of its own. What a worker cannot survive (a hang, a fault on the GPU) ends its process and is the
candidate's failure; the next candidate meets a new one.
"""

import contextlib
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.targets import name_of
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose
from tuner.core.ports import Answers, Generated, Running, Scored, StartRequest, TaskSet
from tuner.core.recorded import METRIC
from tuner.core.trial import Failed
from tuner.core.workload import GemmProblem, Workload


class Worker(Protocol):
    """A process that answers questions; a helper of `tuner.engines`."""

    def ask(self, question: dict[str, Any], *, timeout_s: float) -> Any: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """How workers are made and what they raise.

    make: one that is not started yet.   gone: raised where it died or did not answer in time.   raised: where the
    library inside raised.   options: for the worker's `open` question: target, device, and what the target needs.
    """

    make: Callable[[], Worker]
    gone: type[Exception]
    raised: type[Exception]
    options: Mapping[str, Any]


class KernelEvaluator:
    """timeout_s: for one candidate, compilation included; then it has hung."""

    origin = Origin.MEASURED

    def __init__(self, kind: WorkerKind, *, timeout_s: float = 120.0) -> None:
        self._kind = kind
        self._timeout_s = timeout_s
        self._shared: _Opened | None = None
        self._opened: set[_Opened] = set()
        self._environment: Mapping[str, Any] | None = None
        self._lock = threading.Lock()

    def fingerprint(self, gpus: int) -> Fingerprint:
        """Raises RuntimeError where no worker can be had on this machine."""
        if self._environment is None:
            with self._worker(fresh=False) as worker:
                if isinstance(worker, Failed):
                    raise RuntimeError(worker.sentence)
        assert self._environment is not None
        return fingerprint_of(self._environment, gpus, engine=name_of(self._kind.options["target"]))

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        del started  # a worker ends when its standard input does, so it cannot outlive this process
        with self._worker(fresh=request.fresh) as worker:
            if isinstance(worker, Failed):
                yield worker
            else:
                yield _RunningKernel(worker, request, self.fingerprint(1), self._timeout_s)

    def close(self) -> None:
        """From any thread; what is being timed fails."""
        with self._lock:
            opened, self._shared = list(self._opened), None
            self._opened.clear()
        for worker in opened:
            worker.stop()

    @contextlib.contextmanager
    def _worker(self, *, fresh: bool) -> "Iterator[_Opened | Failed]":
        worker = None if fresh else self._shared
        if worker is None or worker.gone:
            worker = _Opened(self._kind)
            environment = worker.open(self._timeout_s)
            if isinstance(environment, Failed):
                worker.stop()
                yield environment
                return
            self._environment = environment
            with self._lock:
                self._opened.add(worker)
        if not fresh:
            self._shared = worker
        try:
            yield worker
        finally:
            if fresh:
                with self._lock:
                    self._opened.discard(worker)
                worker.stop()


class _Opened:
    """A worker with its target open."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._worker = kind.make()
        self.gone = False
        self.ready_s = 0.0

    def open(self, timeout_s: float) -> Mapping[str, Any] | Failed:
        begun = time.monotonic()
        environment = self.ask({"open": dict(self._kind.options)}, timeout_s=timeout_s)
        self.ready_s = time.monotonic() - begun
        if isinstance(environment, Failed):
            return Failed(
                kind=FailureKind.INFRASTRUCTURE, sentence=f"no kernel can be timed here: {environment.sentence}"
            )
        return environment

    def ask(self, question: dict[str, Any], *, timeout_s: float) -> Mapping[str, Any] | Failed:
        begun = time.monotonic()
        try:
            answer: Mapping[str, Any] = self._worker.ask(question, timeout_s=timeout_s)
        except self._kind.gone as error:
            self.stop()
            hung = time.monotonic() - begun >= timeout_s
            kind = FailureKind.HUNG if hung else FailureKind.CRASHED
            return Failed(kind=kind, sentence=str(error))
        except self._kind.raised as error:
            self.stop()  # after an error of CUDA the whole process is of no use
            return Failed(kind=FailureKind.CRASHED, sentence=str(error), evidence=getattr(error, "trace", ""))
        if "failed" in answer:
            return Failed(kind=FailureKind(answer["failed"]), sentence=answer["sentence"])
        return answer

    def stop(self) -> None:
        self.gone = True
        self._worker.stop()


class _RunningKernel:
    process = None
    command: Sequence[str] = ()
    log_path = ""

    def __init__(self, worker: _Opened, request: StartRequest, fingerprint: Fingerprint, timeout_s: float) -> None:
        self._worker = worker
        self._request = request
        self._timeout_s = timeout_s
        self.fingerprint = fingerprint
        self.ready_s = worker.ready_s

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        candidate = self._request.candidate
        if not isinstance(workload, GemmProblem) or workload.dtype != "bfloat16":
            return Failed(
                kind=FailureKind.REJECTED_BY_ENGINE, sentence=f"{workload.key} is no GEMM in bfloat16 that is timed"
            )
        begun = time.monotonic()
        question = {
            "problem": {"n": workload.n, "k": workload.k, "m": workload.m},
            "candidate": {"kind": candidate.kind, "values": candidate.values()},
            "seed": zlib.crc32(f"{self._request.start_id} {workload.key} {repeat}".encode()),
        }
        answer = self._worker.ask(question, timeout_s=self._timeout_s)
        if isinstance(answer, Failed):
            return answer
        us = [float(value) for value in answer["us"]]
        return Measurement(
            start_id=self._request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.MEASURED,
            metrics={METRIC: statistics.median(us), "error_of_allowed": float(answer["error"])},
            samples={METRIC: us},
            seconds=time.monotonic() - begun,
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return _no_text(f"a kernel generates nothing ({len(prompts)} x {max_tokens} tokens, {concurrency} at once)")

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return _no_text(f"a kernel scores nothing ({len(outputs)} outputs)")

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        return _no_text(f"a kernel answers no question of {', '.join(asked.tasks)}")


def fingerprint_of(environment: Mapping[str, Any], gpus: int, *, engine: str) -> Fingerprint:
    """engine: the kernel that the worker's target brings."""
    return Fingerprint(
        engine=engine,
        versions=dict(environment["versions"]),
        gpu=environment["gpu"],
        gpus=gpus,
        driver=environment["driver"],
    )


def _no_text(sentence: str) -> Failed:
    return Failed(kind=FailureKind.REJECTED_BY_ENGINE, sentence=sentence)
