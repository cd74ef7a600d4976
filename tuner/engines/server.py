"""Start a vLLM server from the file that an export writes, be sure that it is ours, and stop it. Knows no metric."""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed
from tuner.engines import failures
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.process import Guarded

POLL_S = 0.25
SOCKETS = "VLLM_RPC_BASE_PATH"  # the folder of vLLM's ZMQ sockets, some of which outlive it (0.32.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to start. yaml: the exported configuration.   overlay: arguments of the benchmark, behind the file's.
    variables: further environment.   name: unique, and the served model's name: an answer under it is ours.
    locks: descriptors that stay open until the last process is gone."""

    name: str
    yaml: str
    overlay: tuple[str, ...]
    variables: Mapping[str, str]
    locks: Sequence[int] = ()


class Server:
    """A server that was told to start; `await_ready` says whether it came up."""

    def __init__(self, engine: Engine, recipe: Recipe, folder: Path, deadlines: Deadlines) -> None:
        """Raises OSError where the folder cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.yaml"
        config.write_text(recipe.yaml, encoding="utf-8")
        self.name = recipe.name
        self.log = folder / "server.log"
        self._deadlines = deadlines
        self.port = free_port()
        self.command = (
            str(engine.python),
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            "--config",
            str(config),
            *recipe.overlay,
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--served-model-name",
            recipe.name,
            *engine.arguments,
        )
        self._started_s = time.monotonic()
        self.guarded = Guarded(
            self.command,
            environment=engine.variables(recipe.variables),
            cwd=folder,
            log=self.log,
            locks=recipe.locks,
            scratch=SOCKETS,
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=5.0, trust_env=False)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def await_ready(self) -> float | Failed:
        """Seconds until our process answered healthy under our name; Failed where it ended or took too long.

        A port that another server holds answers under another name, or with 200 before ours could: neither is ours.
        """
        deadline = self._started_s + self._deadlines.start_s
        while time.monotonic() < deadline:
            exit_code = self.guarded.exit_code
            if exit_code is not None:
                return failures.of_start(self.command, self.log, exit_code)
            if self.is_healthy():
                return time.monotonic() - self._started_s
            time.sleep(POLL_S)
        return Failed(
            kind=FailureKind.START_TIMEOUT,
            sentence=f"the engine was not ready after {self._deadlines.start_s:g} s",
            evidence=failures.evidence(self.command, self.log, self.guarded.exit_code),
        )

    def is_healthy(self) -> bool:
        """Whether our process lives, its engine is healthy, and the model it serves is ours."""
        try:
            if self.http.get("/health").status_code != 200:
                return False
            models = self.http.get("/v1/models").json()
        except (httpx.HTTPError, ValueError):
            return False
        served = [model.get("id") for model in models.get("data", [])]
        return self.guarded.exit_code is None and self.name in served

    def failed(self, sentence: str, *, otherwise: FailureKind = FailureKind.INCOMPLETE) -> Failed:
        """A run did not yield numbers: the engine died, or hangs, or its log says why.

        otherwise: the kind where it lives, answers, and its log names no cause.
        """
        time.sleep(0.5)  # an engine core that was killed takes its API server with it after about 2 s
        if self.guarded.exit_code is None and not self.is_healthy():
            deadline = time.monotonic() + 5.0
            while self.guarded.exit_code is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if self.guarded.exit_code is None:
                otherwise, sentence = FailureKind.HUNG, f"the engine no longer answers: {sentence}"
        return failures.of_traffic(self.command, self.log, self.guarded.exit_code, sentence, otherwise=otherwise)

    def counters(self) -> Mapping[str, float]:
        """The engine's own counters by name, summed over their labels; empty where it has none to give."""
        try:
            return parse_counters(self.http.get("/metrics").text)
        except httpx.HTTPError:
            return {}

    def stop(self) -> None:
        self.http.close()
        self.guarded.stop()


def free_port() -> int:
    """A port that was free a moment ago; a start that loses the race for it is an infrastructure failure, retried."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def parse_counters(text: str) -> dict[str, float]:
    """Prometheus text to name and sum over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:") and " " in line:
            name, _, value = line.rpartition(" ")
            try:
                found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0.0) + float(value)
            except ValueError:
                continue
    return found
