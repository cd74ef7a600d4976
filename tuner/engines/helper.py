"""A long-lived process of ours in the engine's interpreter that answers questions as JSON lines.

It is started at the first question, and again where it died; it ends when its standard input does, so it cannot outlive
us by more than one answer. One question at a time.
"""

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tuner.engines.engine import Engine
from tuner.engines.process import end, marked


class HelperError(RuntimeError):
    """There is no answer, and nothing is known of the question."""


class HelperDiedError(HelperError):
    """The process ended or was stopped; that says nothing of what it was asked about."""


class NoAnswerError(HelperError):
    """It did not answer in time, or was given up for the reason that the message gives. It was stopped."""


class AnswerError(RuntimeError):
    """The library inside raised; the message is its own.

    kind: the exception's type.   trace: its traceback.
    """

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.trace = trace


class Helper:
    """module: what to run, `tuner_inside.bench`.   folder: where it works and logs."""

    def __init__(self, engine: Engine, module: str, folder: Path, *, first_answer_s: float) -> None:
        self._engine = engine
        self._module = module
        self._name = module.rpartition(".")[2]
        self._folder = folder
        self._first_answer_s = first_answer_s
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._has_answered = False
        self._started_s = 0.0

    @property
    def log(self) -> Path:
        return self._folder / f"{self._name}.log"

    def ask(self, question: dict[str, Any], *, timeout_s: float, give_up: Callable[[], str] = lambda: "") -> Any:
        """The value that the module answers with.

        Args:
            give_up: called about every second while it works; a sentence ends the wait, an empty one does not.

        Raises:
            AnswerError: the library inside raised.
            HelperError: there is no answer.
        """
        with self._asking:
            if self._process is None or self._process.poll() is not None:
                self._start()
            process = self._process
            assert process is not None
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise HelperDiedError(f"{self._name} died; see {self.log}") from error
            line = self._next(timeout_s, give_up)
        answer = json.loads(line)
        if "error" in answer:
            raise AnswerError(answer["error"], answer["message"], answer.get("trace", ""))
        return answer["ok"]

    def warm_up(self) -> None:
        """Start it and let it import, without waiting for it; what goes wrong shows at the first question."""
        with self._asking, contextlib.suppress(HelperDiedError):
            if self._process is None or self._process.poll() is not None:
                self._start()

    def stop(self) -> None:
        """May be called from any thread; a question that is being asked fails."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        end(marked(process.pid))
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        self._answers.put(None)

    def _start(self) -> None:
        self._answers = queue.SimpleQueue()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [str(self._engine.python), "-m", self._module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    env=self._engine.variables(),
                    cwd=self._folder,
                    start_new_session=True,
                )
        except OSError as error:
            raise HelperDiedError(f"{self._name} could not be started: {error}") from error
        assert process.stdout is not None
        self._process = process
        self._has_answered = False
        answers = self._answers
        threading.Thread(target=_read, args=(process.stdout, answers), daemon=True).start()
        self._started_s = time.monotonic()

    def _next(self, timeout_s: float, give_up: Callable[[], str]) -> str:
        """The first answer may take as long as the imports do."""
        importing_s = 0.0 if self._has_answered else self._first_answer_s - (time.monotonic() - self._started_s)
        patience_s = max(0.0, importing_s) + timeout_s
        deadline = time.monotonic() + patience_s
        while True:
            try:
                line = self._answers.get(timeout=max(0.0, min(1.0, deadline - time.monotonic())))
                break
            except queue.Empty:
                reason = give_up()
                if not reason and time.monotonic() >= deadline:
                    reason = f"{self._name} did not answer within {patience_s:.0f} s"
                if reason:
                    self.stop()
                    raise NoAnswerError(f"{reason}; see {self.log}") from None
        if line is None:
            self.stop()  # its output has ended, but it may not be dead for the next question to see
            raise HelperDiedError(f"{self._name} died or was stopped; see {self.log}")
        self._has_answered = True
        return line


def _read(stream: IO[str], answers: "queue.SimpleQueue[str | None]") -> None:
    with contextlib.suppress(ValueError), stream:
        for line in stream:
            answers.put(line)
    answers.put(None)
