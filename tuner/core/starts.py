"""Run starts, at most `parallel` at a time, and write down what they yield. Knows no search and no decision.

Each start runs in a thread and reports through one inbox; the thread that waits on it is the only writer of the
study. So a result is committed before anybody is told of it, and the lease is renewed while engines work.
"""

import contextlib
import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.acceptance import mismatch
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Process, Purpose, Start
from tuner.core.ports import Clock, Evaluator, Running, StartRequest, Studies
from tuner.core.study import Lease, LeaseLostError, Study
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload

LEASE_S = 20.0  # a worker that is silent for so long has lost its study


class StudyCancelledError(Exception):
    """Somebody asked for it; every engine is gone when this is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one start is to do: runs of workloads, then a talk with the engine whose result is handed back.

    runs: (workload, repeat), in order.   trial: the trial it belongs to.   slot: its place in a confirmation.
    enough: asked after each run; the sentence that it returns ends the start early, an empty one does not.
    """

    candidate: Candidate
    gpus: int
    purpose: Purpose
    runs: tuple[tuple[Workload, int], ...]
    trial: int | None = None
    slot: int | None = None
    fresh: bool = False
    real_acceptance: bool = False
    talk: "Callable[[Running], object | Failed] | None" = None
    enough: "Callable[[Sequence[Measurement]], str] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    job: Job
    start: Start
    measurements: tuple[Measurement, ...]
    failed: Failed | None
    talked: object = None


@dataclass(slots=True)
class _InFlight:
    job: Job
    start: Start
    opened_s: float
    thread: threading.Thread
    measurements: list[Measurement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    start_id: str
    process: Process
    command: Sequence[str]
    log_path: str


@dataclass(frozen=True, slots=True)
class _Ready:
    start_id: str
    fingerprint: Fingerprint
    ready_s: float


@dataclass(frozen=True, slots=True)
class _Ended:
    start_id: str
    failed: Failed | None
    talked: object
    error: BaseException | None


_Message = _Known | _Ready | Measurement | _Ended


class Starts:
    """The starts of one study, under one lease."""

    def __init__(
        self,
        *,
        study: Study,
        lease: Lease,
        studies: Studies,
        evaluator: Evaluator,
        clock: Clock,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        """pulse: called before each wait; what it raises ends the wait, every engine stopped first."""
        self._pulse = pulse
        self._study = study
        self.lease = lease
        self._studies = studies
        self._evaluator = evaluator
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._in_flight: dict[str, _InFlight] = {}
        self._renewed_s = clock.monotonic_s()
        held = [(start.held_s or 0.0, start.gpus) for start in studies.starts(study.id)]
        self.gpu_seconds = sum(seconds * gpus for seconds, gpus in held)
        self.longest_held_s = max((seconds for seconds, _ in held), default=0.0)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, job: Job) -> None:
        """Open the start's row, then start it."""
        start = Start(
            id=f"{self._study.id}-{secrets.token_hex(4)}",
            trial=job.trial,
            gpus=job.gpus,
            candidate_key=candidate_key(job.candidate),
            purpose=job.purpose,
            fingerprint=self._evaluator.fingerprint(job.gpus),
            opened_at=self._clock.now(),
            slot=job.slot,
        )
        self._studies.open_start(self.lease, start)
        thread = threading.Thread(target=self._run, args=(job, start.id), name=f"start {start.id}", daemon=True)
        self._in_flight[start.id] = _InFlight(job, start, self._clock.monotonic_s(), thread)
        thread.start()

    def wait(self) -> Finished:
        """Write what arrives until one start has ended, and hand that one back.

        Raises:
            StudyCancelledError: cancellation was requested; every engine was stopped first.
            LeaseLostError: another worker holds the study; every engine was stopped first.
        """
        try:
            while True:
                self._pulse()
                self._renew()
                try:
                    message = self._inbox.get(timeout=1.0)
                except queue.Empty:
                    continue
                finished = self._write(message)
                if finished is not None:
                    return finished
        except BaseException:
            self.abort()
            raise

    def run(self, job: Job) -> Finished:
        """Submit one and wait for it; nothing else may be in flight."""
        self.submit(job)
        return self.wait()

    def record(self, measurement: Measurement) -> None:
        """Write what was made of a start's talk."""
        self._studies.add_measurement(self.lease, measurement)

    def abort(self) -> None:
        """Stop every engine of this study and wait until each is gone; what they yield from now on is not written."""
        if not self._in_flight:
            return
        self._evaluator.close()
        for flight in self._in_flight.values():
            flight.thread.join()
            ended = replace(
                flight.start,
                ended="interrupted",
                held_s=self._clock.monotonic_s() - flight.opened_s,
                excluded="it was interrupted" if flight.start.slot is not None else "",
            )
            with contextlib.suppress(LeaseLostError):
                self._studies.update_start(self.lease, ended)
        self._in_flight.clear()

    def _renew(self) -> None:
        if self._clock.monotonic_s() - self._renewed_s < LEASE_S / 6:
            return
        self.lease = self._studies.heartbeat(self.lease, ttl_s=LEASE_S)
        self._renewed_s = self._clock.monotonic_s()
        if self._studies.get(self._study.id).cancel_requested:
            raise StudyCancelledError(self._study.id)

    def _run(self, job: Job, start_id: str) -> None:
        failed: Failed | None = None
        talked: object = None
        error: BaseException | None = None
        request = StartRequest(
            start_id=start_id,
            candidate=job.candidate,
            purpose=job.purpose,
            workloads=tuple(dict.fromkeys(workload for workload, _ in job.runs)) or self._study.file.workloads,
            fresh=job.fresh,
            real_acceptance=job.real_acceptance,
        )

        def started(process: Process, command: Sequence[str], log_path: str) -> None:
            self._inbox.put(_Known(start_id, process, command, log_path))

        try:
            with self._evaluator.start(request, started=started) as running:
                if isinstance(running, Failed):
                    failed = running
                else:
                    self._inbox.put(_Ready(start_id, running.fingerprint, running.ready_s))
                    failed, talked = self._use(running, job)
        except BaseException as raised:  # noqa: BLE001 - handed to the waiting thread, which raises it
            error = raised
        self._inbox.put(_Ended(start_id, failed, talked, error))

    def _use(self, running: Running, job: Job) -> tuple[Failed | None, object]:
        measured: list[Measurement] = []
        for workload, repeat in job.runs:
            measurement = running.measure(workload, purpose=job.purpose, repeat=repeat)
            if isinstance(measurement, Failed):
                return measurement, None
            wrong = _wrong_acceptance(job, workload, measurement)
            if wrong:
                return Failed(kind=FailureKind.WRONG_OUTPUT, sentence=wrong), None
            self._inbox.put(measurement)
            measured.append(measurement)
            if job.enough is not None and job.enough(measured):
                break
        talked = job.talk(running) if job.talk is not None else None
        return (talked, None) if isinstance(talked, Failed) else (None, talked)

    def _write(self, message: _Message) -> Finished | None:
        flight = self._in_flight[message.start_id]
        if isinstance(message, Measurement):
            self._studies.add_measurement(self.lease, message)
            flight.measurements.append(message)
            return None
        if isinstance(message, _Known):
            flight.start = replace(
                flight.start, process=message.process, command=tuple(message.command), log_path=message.log_path
            )
        elif isinstance(message, _Ready):
            flight.start = replace(flight.start, fingerprint=message.fingerprint, ready_s=message.ready_s)
        else:
            return self._end(flight, message)
        self._studies.update_start(self.lease, flight.start)
        return None

    def _end(self, flight: _InFlight, message: _Ended) -> Finished:
        flight.thread.join()
        ended = "stopped" if message.failed is None else message.failed.kind.value
        if message.error is not None:
            ended = FailureKind.INFRASTRUCTURE.value
        start = replace(flight.start, held_s=self._clock.monotonic_s() - flight.opened_s, ended=ended)
        if message.failed is not None and start.slot is not None:
            start = replace(start, excluded=f"{message.failed.kind}: {message.failed.sentence}")
        self._studies.update_start(self.lease, start)
        self.gpu_seconds += (start.held_s or 0.0) * start.gpus
        self.longest_held_s = max(self.longest_held_s, start.held_s or 0.0)
        del self._in_flight[start.id]
        if message.error is not None:
            raise message.error
        return Finished(
            job=flight.job,
            start=start,
            measurements=tuple(flight.measurements),
            failed=message.failed,
            talked=message.talked,
        )


def _wrong_acceptance(job: Job, workload: Workload, measurement: Measurement) -> str:
    """Synthetic acceptance is checked against what the engine reports; real acceptance is whatever it is."""
    config = job.candidate
    if job.real_acceptance or not isinstance(workload, ServingWorkload) or not isinstance(config, ServingConfig):
        return ""
    if not workload.acceptance.synthetic:
        return ""
    asked = workload.acceptance.length(config.num_speculative_tokens)
    return mismatch(asked, measurement.metrics.get("acceptance_length"))
