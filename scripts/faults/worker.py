"""A worker for the faults: real leases, tables and processes, predicted numbers.

Each start is a process under the same guard as an engine's, with a log, so that what a fault leaves behind can be seen.
Its studies are written down where they begin and end here, in FOLDER/held.jsonl, which no lease has a part in.

    TUNER_DB=URL python -m scripts.faults.worker FOLDER [--lease-s 2] [--no-engines] [--full-logs EVERY] [--gpus COUNT]
"""

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scripts.faults import engine as stand_in
from tuner.app import worker
from tuner.app.clock import SystemClock
from tuner.core import starts
from tuner.core.loop import Parts, Progress
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Process, Purpose
from tuner.core.ports import Evaluator, Generated, Running, Scored, StartRequest, Studies
from tuner.core.study_file import StudyFile
from tuner.core.trial import Failed
from tuner.core.workload import Workload
from tuner.engines.devices import Devices, NoDeviceError
from tuner.engines.process import Guarded, reap
from tuner.predict.evaluator import PredictedEvaluator

MEASURING_S = 0.05
STOPPING_S = 0.1
READY_S = 20.0


class ProcessEvaluator:
    """The predicted evaluator, with a process for each start, and GPUs that only exist as locks.

    full_logs: every so many-th log is on a full disk.   gpus: of this host; 0 for none."""

    def __init__(self, file: StudyFile, folder: Path, *, full_logs: int, gpus: int) -> None:
        self._predicted = PredictedEvaluator(file)
        self.origin = self._predicted.origin
        self._folder = folder
        self._full_logs = full_logs
        self._devices = Devices(
            visible=None, patience_s=120, usage=lambda: dict.fromkeys(range(gpus), 0), folder=folder
        )
        self._started = 0
        self._closed = False
        self._living: set[Guarded] = set()

    def fingerprint(self, gpus: int) -> Fingerprint:
        return self._predicted.fingerprint(gpus)

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        self._started += 1
        log = self._folder / f"{request.start_id}.log"
        if self._full_logs and self._started % self._full_logs == 0:
            log.symlink_to("/dev/full")  # every write to it fails with "No space left on device"
        try:
            held = self._devices.hold(getattr(request.candidate, "gpus", 1), stopped=lambda: self._closed)
        except NoDeviceError as error:
            yield Failed(kind=FailureKind.INFRASTRUCTURE, sentence=str(error))
            return
        engine = Guarded(
            [sys.executable, "-I", "-S", stand_in.__file__, "faults-engine", str(self._folder), str(STOPPING_S)],
            environment={**os.environ, **held.variables},
            cwd=self._folder,
            log=log,
            grace_s=1.0,
            locks=held.locks,
        )
        self._living.add(engine)
        try:
            started(engine.process, engine.command, str(log))
            _await_ready(engine)
            with self._predicted.start(request, started=lambda *_: None) as running:
                yield running if isinstance(running, Failed) else _Run(running, engine)
        finally:
            engine.stop()
            self._devices.give_back(held)
            self._living.discard(engine)

    def close(self) -> None:
        self._closed = True
        for engine in list(self._living):
            engine.stop()


def _await_ready(engine: Guarded) -> None:
    deadline = time.monotonic() + READY_S
    while not engine.log.is_symlink() and "ready" not in engine.log.read_text():
        if engine.exit_code is not None or time.monotonic() > deadline:
            return
        time.sleep(0.02)


class _Run:
    process = None
    ready_s = 0.0
    command: Sequence[str] = ()

    def __init__(self, running: Running, engine: Guarded) -> None:
        self._running = running
        self._engine = engine
        self.fingerprint = running.fingerprint
        self.log_path = str(engine.log)

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        time.sleep(MEASURING_S)
        try:
            with self._engine.log.open("a", encoding="utf-8") as log:
                log.write(f"measured {workload.key}\n")
        except OSError as error:
            return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=f"the log cannot be written: {error.strerror}")
        if self._engine.exit_code is not None:
            return Failed(kind=FailureKind.CRASHED, sentence="the engine's process has ended")
        return self._running.measure(workload, purpose=purpose, repeat=repeat)

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return self._running.generate(prompts, max_tokens=max_tokens, concurrency=concurrency)

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return self._running.score(outputs)


@contextlib.contextmanager
def written_down(folder: Path, study: str) -> Iterator[None]:
    """One write each, which another process's cannot fall into."""

    def write(what: str) -> None:
        line = {"at_s": time.monotonic(), "study": study, "worker": os.getpid(), "what": what}
        with (folder / "held.jsonl").open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")

    write("begin")
    try:
        yield
    finally:
        write("end")


def main() -> None:
    from db.engine import open_database
    from db.errors import DatabaseError
    from db.studies import SqlStudies

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lease-s", type=float, default=2.0, help="the product's is 20; twenty takeovers take minutes")
    parser.add_argument("--no-engines", action="store_true")
    parser.add_argument("--full-logs", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=0)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    starts.LEASE_S = asked.lease_s
    vars(worker)["LEASE_S"] = asked.lease_s

    @contextlib.contextmanager
    def parts(file: StudyFile, studies: Studies, progress: Progress) -> Iterator[Parts]:
        evaluator: Evaluator
        if asked.no_engines:
            evaluator = PredictedEvaluator(file)
        else:
            evaluator = ProcessEvaluator(file, asked.folder, full_logs=asked.full_logs, gpus=asked.gpus)
        with written_down(asked.folder, file.name), contextlib.closing(evaluator):
            yield Parts(studies=studies, evaluator=evaluator, clock=SystemClock(), reap=reap, progress=progress)

    asked_to_stop = worker.stopped_by_signals()
    engine = open_database(os.environ["TUNER_DB"])
    try:
        worker.Worker(
            owner=f"faults:{os.getpid()}",
            studies=SqlStudies(engine, SystemClock(), wait_s=30.0, stop=asked_to_stop),
            parts=parts,
            unavailable=(DatabaseError,),
            stop=asked_to_stop,
        ).run()
    finally:
        engine.dispose()


if __name__ == "__main__":
    main()
