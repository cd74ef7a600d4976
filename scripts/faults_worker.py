"""A worker for `faults_service.py`: real leases, tables and processes, predicted numbers.

Each start is a process under the same guard as an engine's, with a log, so that what a fault leaves behind can be seen.
Leases last 2 s here, not 20, so that twenty takeovers take minutes.

    TUNER_DB=URL FAULTS_MARK=NAME python scripts/faults_worker.py FOLDER [--full-logs EVERY]
"""

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tuner.app import worker
from tuner.app.clock import SystemClock
from tuner.core import starts
from tuner.core.loop import Parts, Progress
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Process, Purpose
from tuner.core.ports import Generated, Running, Scored, StartRequest, Studies
from tuner.core.study_file import StudyFile
from tuner.core.trial import Failed
from tuner.core.workload import Workload
from tuner.engines.process import Guarded, reap
from tuner.predict.evaluator import PredictedEvaluator

LEASE_S = 2.0
MEASURING_S = 0.05
ENGINE = "echo ready; exec sleep 3600"


class ProcessEvaluator:
    """The predicted evaluator, with a process for each start. full_logs: every so many-th log is on a full disk."""

    def __init__(self, file: StudyFile, folder: Path, full_logs: int) -> None:
        self._predicted = PredictedEvaluator(file)
        self.origin = self._predicted.origin
        self._folder = folder
        self._full_logs = full_logs
        self._started = 0
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
        engine = Guarded(["sh", "-c", ENGINE], environment=os.environ, cwd=self._folder, log=log, grace_s=1.0)
        self._living.add(engine)
        started(engine.process, engine.command, str(log))
        try:
            with self._predicted.start(request, started=lambda *_: None) as running:
                yield running if isinstance(running, Failed) else _Run(running, engine)
        finally:
            engine.stop()
            self._living.discard(engine)

    def close(self) -> None:
        for engine in list(self._living):
            engine.stop()


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
        if self._engine.exit_code is not None:
            return Failed(kind=FailureKind.CRASHED, sentence="the engine's process has ended")
        try:
            with self._engine.log.open("a", encoding="utf-8") as log:
                log.write(f"measured {workload.key}\n")
        except OSError as error:
            return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=f"the log cannot be written: {error.strerror}")
        return self._running.measure(workload, purpose=purpose, repeat=repeat)

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return self._running.generate(prompts, max_tokens=max_tokens, concurrency=concurrency)

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return self._running.score(outputs)


def main() -> None:
    from db.engine import open_database
    from db.errors import DatabaseError
    from db.studies import SqlStudies

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full-logs", type=int, default=0)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    starts.LEASE_S = LEASE_S
    vars(worker)["LEASE_S"] = LEASE_S

    @contextlib.contextmanager
    def parts(file: StudyFile, studies: Studies, progress: Progress) -> Iterator[Parts]:
        evaluator = ProcessEvaluator(file, asked.folder, asked.full_logs)
        try:
            yield Parts(studies=studies, evaluator=evaluator, clock=SystemClock(), reap=reap, progress=progress)
        finally:
            evaluator.close()

    with worker.stopped_by_signals() as asked_to_stop:
        engine = open_database(os.environ["TUNER_DB"])
        try:
            worker.Worker(
                owner=f"faults:{os.getpid()}",
                studies=SqlStudies(engine, SystemClock(), wait_s=30.0),
                parts=parts,
                unavailable=(DatabaseError,),
                stop=asked_to_stop,
            ).run()
        finally:
            engine.dispose()


if __name__ == "__main__":
    main()
