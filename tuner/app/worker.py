"""Run whatever study is queued, one after the other, until told to stop. The loop is that of `tuner run`."""

import contextlib
import ctypes
import logging
import os
import platform
import signal
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

import tenacity

from search_spaces.space import SpaceError
from tuner.app.errors import WrongInputError
from tuner.core.loop import Loop, Parts, Progress, StudyFailedError
from tuner.core.measurement import Process
from tuner.core.ports import Studies
from tuner.core.starts import LEASE_S, StudyCancelledError
from tuner.core.study import IllegalStateError, Lease, LeaseLostError, Study, StudyState
from tuner.core.study_file import StudyFile, StudyFileError
from tuner.predict import PredictError

POLL_S = 1.0
WAIT_S = 60.0  # for a database that restarts
_PR_SET_PDEATHSIG = 1

log = logging.getLogger("tuner.worker")


class MakesParts(Protocol):
    def __call__(self, file: StudyFile, studies: Studies, progress: Progress) -> AbstractContextManager[Parts]: ...


class StopNowError(BaseException):
    """The worker was told to stop while a loop lived; its engines are stopped on the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """owner: this process among all.   unavailable: exceptions that mean that the database cannot answer now.
    stop: set when the worker is to end; a study that it runs is given back first."""

    owner: str
    studies: Studies
    parts: MakesParts
    unavailable: tuple[type[Exception], ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until `stop` is set."""
        while not self.stop.is_set():
            try:
                lease = self.studies.claim(self.owner, ttl_s=LEASE_S)
                if lease is None:
                    self.stop.wait(POLL_S)
                else:
                    self.run_one(lease)
            except self.unavailable as error:
                log.warning("%s; trying again", error)
                self.stop.wait(POLL_S)
            except StopNowError:
                break

    def run_one(self, lease: Lease) -> None:
        """One study to its end, or as far as the lease and the database allow; the lease is given back."""
        study = self.studies.get(lease.study_id)
        held = _Held(lease)
        log.info("study %s: %s", study.id, study.name.encode("unicode_escape").decode())
        try:
            self._live(study, held)
        except LeaseLostError as error:
            log.warning("%s", error)
        finally:
            self._release(held.lease)

    def _live(self, study: Study, held: "_Held") -> None:
        try:
            with self.parts(study.file, self.studies, _quiet) as parts:
                loop = Loop(study, held.lease, replace(parts, pulse=self._pulse))
                try:
                    loop.run()
                except StudyCancelledError:
                    held.lease = loop.lease
                    elsewhere = self._prove_gone(study, parts)
                    if elsewhere:
                        hosts = ", ".join(sorted({process.host for process in elsewhere}))
                        reason = f"cancelled on request, but only {hosts} can tell whether engines left there live"
                        self._end(held.lease, StudyState.FAILED, reason)
                    else:
                        self._end(held.lease, StudyState.CANCELLED, "cancelled on request")
                finally:
                    held.lease = loop.lease
        except (StudyFailedError, StudyFileError, SpaceError, PredictError, WrongInputError) as error:
            self._end(held.lease, StudyState.FAILED, str(error))
        except LeaseLostError:
            raise
        except Exception as error:
            if isinstance(error, self.unavailable):
                raise
            # A bug, or what no rule foresaw. Raised further it would end this worker, and the next one that claims the
            # oldest study, and so on: one study would stop them all.
            log.exception("study %s: a bug", study.id)
            self._end(held.lease, StudyState.FAILED, f"internal error, {type(error).__name__}: {error}")

    def _pulse(self) -> None:
        if self.stop.is_set():
            raise StopNowError

    def _prove_gone(self, study: Study, parts: Parts) -> list[Process]:
        """Look at every process that the study ever started before it is said to be cancelled.

        Returns what can not be looked at from here: lost by a worker on another host, which may only be paused.
        """
        started = [(start, start.process) for start in self.studies.starts(study.id) if start.process is not None]
        left = sum(parts.reap(process) for _, process in started)
        elsewhere = [p for start, p in started if start.ended in (None, "lost") and p.host != platform.node()]
        counts = {"starts": len(started), "were_alive": left, "on_other_hosts": len(elsewhere)}
        self.studies.add_event(study.id, "engines_gone" if not elsewhere else "engines_unknown", counts)
        return elsewhere

    def _end(self, lease: Lease, state: StudyState, reason: str) -> None:
        with contextlib.suppress(IllegalStateError):  # it had come to its end before the failure
            self.studies.set_state(lease, state, reason)
            self.studies.add_event(lease.study_id, f"study_{state}", {"reason": reason})
        log.info("study %s: %s, %s", lease.study_id, state, reason)

    def _release(self, lease: Lease) -> None:
        """Where it cannot be given back it runs out by itself."""
        with contextlib.suppress(LeaseLostError, *self.unavailable):
            self.studies.release(lease)


@dataclass(slots=True)
class _Held:
    lease: Lease


def _quiet(_kind: str, _data: Mapping[str, object]) -> None:
    """Events are in the tables; a worker has no terminal."""


def stopped_by_signals() -> threading.Event:
    """What SIGTERM and SIGINT set. They raise nothing: an exception could fall into a write, a finalizer or the start
    of a thread, and the loop looks at this every second."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: asked.set())
    return asked


def end_with(parent: int, asked: threading.Event) -> None:
    """Get SIGTERM when the process that started us dies, however it dies (Linux); asked is set where it has died."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        asked.set()


def is_away(unavailable: tuple[type[Exception], ...], stop: threading.Event) -> tenacity.Retrying:
    """Repeats what could not reach the database for up to WAIT_S, or until told to stop."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(unavailable),
        wait=tenacity.wait_random(0.5, 1.5),
        stop=tenacity.stop_after_delay(WAIT_S) | tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        reraise=True,
    )


def work(url: str, *, ends_with: int | None = None) -> None:
    """A worker on the database behind a URL, until SIGTERM or SIGINT."""
    from db.engine import open_database, upgrade
    from db.errors import DatabaseError
    from db.studies import SqlStudies
    from tuner.app import wiring
    from tuner.app.clock import SystemClock

    asked = stopped_by_signals()
    if ends_with is not None:
        end_with(ends_with, asked)
    engine = is_away((DatabaseError,), asked)(open_database, url)
    try:
        upgrade(engine)
        Worker(
            owner=wiring.owner(),
            studies=SqlStudies(engine, SystemClock(), wait_s=WAIT_S, stop=asked),
            parts=wiring.parts,
            unavailable=(DatabaseError,),
            stop=asked,
        ).run()
    finally:
        engine.dispose()
