"""Ask lm-eval, in the interpreter that has it, for a server's answers to tasks. Knows no study and no statistics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.core.ports import Answers, TaskSet
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.hardware import NoEngineError
from tuner.engines.helper import AnswerError, Helper, HelperError

GENERATES = "generate_until"  # of lm-eval's kinds of task, the one that decodes
HASH_DIGITS = 12  # of a prompt's hash; 48 bits, which a stored number holds exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where the server listens, and the model's name there."""

    base_url: str
    model: str


class Tasks:
    """engine: the interpreter that has lm-eval.   folder: of further task files.   runs: where it works and logs."""

    def __init__(self, engine: Engine, *, folder: Path | None, runs: Path, deadlines: Deadlines) -> None:
        self._engine = engine
        self._folder = None if folder is None else str(folder.resolve())
        self._deadlines = deadlines
        self._helper = Helper(engine, "tuner_inside.tasks", runs, first_answer_s=deadlines.helper_s)

    def require(self, names: Sequence[str], limit: int | None, *, at_least: int) -> None:
        """Load the tasks and their questions once, so that what is missing is said before an engine is started.

        at_least: how many questions each task must ask.

        Raises:
            NoEngineError: the interpreter has no lm-eval, does not know a task, or a task cannot be used.
        """
        question = {"tasks": list(names), "folder": self._folder, "limit": limit}
        try:
            found = self._helper.ask(question, timeout_s=self._deadlines.request_s)
        except AnswerError as error:
            if error.kind == "ModuleNotFoundError":
                raise NoEngineError(
                    f"quality.tasks: {self._engine.python} has no lm-eval ({error}): pip install 'lm-eval[api]' there, "
                    f"or name an interpreter that has it in quality.tasks_python"
                ) from error
            raise NoEngineError(f"quality.tasks: lm-eval cannot load them: {error}") from error
        except HelperError as error:
            raise NoEngineError(f"quality.tasks: {self._engine.python} could not be asked: {error}") from error
        finally:
            self._helper.stop()  # not to idle beside what is measured; it is asked again when a finalist has passed
        for task in found:
            if task["kinds"] != [GENERATES]:
                raise NoEngineError(
                    f"quality.tasks: {task['name']} scores given answers ({', '.join(task['kinds'])}), which runs "
                    f"prefill alone and says nothing of decoding; name a task that generates"
                )
            if task["questions"] < at_least:
                raise NoEngineError(
                    f"quality.tasks: {task['name']} asks {task['questions']} questions; were all answered alike, "
                    f"{at_least} are needed to show that no more than the margin is lost"
                )

    def answers(self, at: At, asked: TaskSet, give_up: Callable[[], str]) -> list[Answers]:
        """Raises AnswerError or HelperError."""
        question = {
            "tasks": list(asked.tasks),
            "folder": self._folder,
            "limit": asked.limit,
            "concurrency": asked.concurrency,
            "base_url": at.base_url,
            "model": at.model,
            "timeout_s": round(self._deadlines.request_s),
        }
        found = self._helper.ask(question, timeout_s=self._deadlines.run_s, give_up=give_up)
        return [_answers(task) for task in found]

    def stop(self) -> None:
        self._helper.stop()


def _answers(told: dict[str, Any]) -> Answers:
    return Answers(
        task=f"{told['name']}: {told['metric']}, lm-eval {told['version']}",
        questions=tuple(int(text[:HASH_DIGITS], 16) for text in told["questions"]),
        right=tuple(map(bool, told["right"])),
    )
