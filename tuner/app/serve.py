"""Run the service: its ports, an HTTP server, and one worker in a process of its own."""

import contextlib
import ipaddress
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from api.app import create_app
from api.policy import Policy
from api.ports import Ports
from search_spaces.catalog import SPACES
from tuner.app.clock import SystemClock
from tuner.app.errors import StoppedError, WrongInputError
from tuner.app.settings import ServiceSettings, Settings, state_folder
from tuner.core.measurement import Start
from tuner.core.ports import Studies, Tokens
from tuner.core.study_file import StudyFile, StudyFileError
from tuner.core.vllm_args import RenderError

WAIT_S = 15.0  # a request waits so long for a database that restarts
RESTART_AT_MOST_S = 30.0
WORKER_GRACE_S = 60.0  # to stop engines, which themselves get some seconds before they are killed
OPEN_STREAMS_S = 3
_TOKENS = re.compile(r"\b(hf_[A-Za-z0-9]{16,}|tuner_[\w-]{40,})")  # Hugging Face's and ours

_log = logging.getLogger("tuner.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def database_url(url: str | None) -> str:
    """The one asked for, or the settings'. The folder of the default one is made."""
    settings = Settings()
    if url is None and settings.db == Settings.model_fields["db"].get_default(call_default_factory=True):
        state_folder().mkdir(parents=True, exist_ok=True)
    return url or settings.db


@contextlib.contextmanager
def service_ports(url: str, *, always_ask: bool) -> Iterator[Ports]:
    """Everything that the application needs, on the database behind a URL, brought to this version."""
    from db.access import SqlAudit, SqlSubmissions, SqlTokens
    from db.engine import open_database, upgrade
    from db.errors import DatabaseError
    from db.readings import SqlReadings
    from db.sessions import Sessions
    from db.studies import SqlStudies

    engine = open_database(url)
    try:
        upgrade(engine)
        sessions = Sessions(engine, wait_s=WAIT_S)
        clock = SystemClock()
        studies = SqlStudies(engine, clock, wait_s=WAIT_S)
        yield Ports(
            studies=studies,
            readings=SqlReadings(engine, sessions),
            tokens=SqlTokens(sessions),
            submissions=SqlSubmissions(sessions),
            audit=SqlAudit(sessions),
            clock=clock,
            policy=_policy(),
            examine=examine,
            table=partial(tuned_tiles, studies),
            read_log=read_log,
            spaces=tuple(SPACES),
            always_ask=always_ask,
            unavailable=(DatabaseError,),
        )
    finally:
        engine.dispose()


def _policy() -> Policy:
    settings = ServiceSettings()
    return Policy(
        roots=settings.roots,
        interpreters=settings.interpreters,
        options=settings.options,
        variables=settings.variables,
        trust_remote_code=settings.trust_remote_code,
    )


def examine(file: StudyFile) -> None:
    """Raises StudyFileError or SpaceError where a study of that file could never run."""
    from tuner.app.wiring import checks_of
    from tuner.core.plan import plan, refuse_hopeless
    from tuner.predict import PredictError

    try:
        for part in file.parts:
            refuse_hopeless(part, plan(part, checks_of(part)).cost)
        if file.evaluator == "predicted":
            from tuner.predict.evaluator import PredictedEvaluator

            PredictedEvaluator(file).close()
    except PredictError as error:
        raise StudyFileError(str(error)) from error


def tuned_tiles(studies: Studies, text: str, allow_unvalidated: bool) -> str:
    """The tuned table of a group, or of one study, as JSON.

    Raises:
        NothingToExportError: no tile was validated.
        RenderError: the studies are of no kernel, or of several machines.
        UnknownStudyError
    """
    from kernels.table import to_json
    from tuner.app.tables import tuned_table

    found = studies.group(text) or [studies.get(text)]
    try:
        return to_json(tuned_table(studies, found, allow_unvalidated=allow_unvalidated))
    except WrongInputError as error:
        raise RenderError(str(error)) from error


def read_log(start: Start, last_bytes: int) -> str | None:
    """The end of a start's log, without what looks like a token; None where it lies outside this host's folder of runs,
    or is not there."""
    path = Path(start.log_path or "/")
    if not path.resolve().is_relative_to(Settings().runs.resolve()):
        return None
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - last_bytes))
            return _TOKENS.sub("[token]", log.read(last_bytes).decode("utf-8", "replace"))
    except OSError:
        return None


def refuse_open_doors(address: Address, tokens: Tokens) -> None:
    """Raises WrongInputError where anybody on the network could change studies."""
    if not address.loopback and not tokens.any():
        raise WrongInputError(
            f"--host {address.host}: without any token the service listens on this machine only; make one with "
            "`tuner token create NAME --scope admin`, or leave --host out"
        )


def serve(url: str, address: Address, *, worker: bool) -> None:
    """Until SIGINT or SIGTERM; then requests end, and the worker stops its engines and gives its study back.

    Raises:
        WrongInputError: it would listen beyond this machine without asking for a token.
        StoppedError: the port cannot be had.
    """
    with service_ports(url, always_ask=not address.loopback) as ports:
        refuse_open_doors(address, ports.tokens)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(ports),
                host=address.host,
                port=address.port,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=OPEN_STREAMS_S,
            )
        )
        # uvicorn raises the signals that it caught once more when it has ended; by then they have been obeyed.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _obeyed)
        with Supervised(url) if worker else contextlib.nullcontext():
            try:
                server.run()
            except SystemExit as error:  # uvicorn's way to say that it could not bind
                raise StoppedError(f"cannot listen on {address.host}:{address.port}; is the port taken?") from error


def _obeyed(_number: int, _frame: FrameType | None) -> None:
    return None


class Supervised:
    """A worker in a process of its own, started again where it dies. It ends with us, however we end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="worker", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Supervised":
        self._process = self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(RESTART_AT_MOST_S + 5)
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(WORKER_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "tuner.app.cli", "worker", "--ends-with", str(os.getpid())],
            env={**os.environ, "TUNER_DB": self._url},  # not an argument: a URL may hold a password
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the server alone, which tells the worker when requests have ended
        )

    def _watch(self) -> None:
        pause_s = 1.0
        while not self._stopping.wait(0.5):
            assert self._process is not None
            code = self._process.poll()
            if code is None:
                continue
            _log.warning("the worker ended with %s; another starts in %g s", code, pause_s)
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, RESTART_AT_MOST_S)
            self._process = self._start()
