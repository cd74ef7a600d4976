"""The only place where the parts are put together.

Parts are imported where they are needed: `tuner check` answers without loading a sampler, statistics or a database.
"""

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.app.clock import SystemClock
from tuner.app.errors import WrongInputError
from tuner.app.settings import Settings, state_folder
from tuner.core.compiled import CompiledKernels
from tuner.core.ports import Check, Evaluator, Prior, Studies
from tuner.core.study_file import StudyFile

if TYPE_CHECKING:
    from sqlalchemy import Engine as DatabaseEngine

    from tuner.core.loop import Parts, Progress
    from tuner.engines.doctor import Finding
    from tuner.engines.engine import Deadlines
    from tuner.engines.tasks import Tasks


def owner() -> str:
    """This process among all that may hold a lease."""
    return f"{platform.node()}:{os.getpid()}"


@contextlib.contextmanager
def connected(url: str | None) -> Iterator[Studies]:
    """The tables behind a URL, brought to this version."""
    from db.studies import SqlStudies

    with _database(url) as engine:
        yield SqlStudies(engine, SystemClock())


@contextlib.contextmanager
def compiled_kernels(url: str | None) -> Iterator[CompiledKernels]:
    """What was compiled, in the tables behind a URL."""
    from db.kernels import SqlCompiledKernels
    from db.sessions import Sessions

    with _database(url) as engine:
        yield SqlCompiledKernels(Sessions(engine))


@contextlib.contextmanager
def _database(url: str | None) -> "Iterator[DatabaseEngine]":
    from db.engine import open_database, upgrade

    settings = Settings()
    if url is None and settings.db == Settings.model_fields["db"].get_default(call_default_factory=True):
        state_folder().mkdir(parents=True, exist_ok=True)
    engine = open_database(url or settings.db)
    try:
        upgrade(engine)
        yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def connected_if_there(url: str | None) -> "Iterator[Studies | None]":
    """The same, but None where no database is named and the usual file does not exist: nothing is made."""
    settings = Settings()
    file = settings.db.removeprefix("sqlite:///")
    if url is None and settings.db.startswith("sqlite:///") and not Path(file).exists():
        yield None
        return
    with connected(url) as studies:
        yield studies


def checks_of(file: StudyFile) -> Sequence[Check]:
    """Reasons that need no engine: memory, where the model knows this hardware."""
    if file.space != "kimi_k3_gb300":
        return ()
    from tuner.predict.memory import memory_check

    return (memory_check(file),)


def prior_of(file: StudyFile) -> Prior | None:
    if file.problems:
        from tuner.app.kernel_studies import tile_prior

        return tile_prior(file)
    if file.space != "kimi_k3_gb300":
        return None
    from tuner.predict.prior import prior

    return prior(file)


@contextlib.contextmanager
def parts(file: StudyFile, studies: Studies, progress: "Progress") -> Iterator["Parts"]:
    """What a loop needs for that study; the evaluator is closed at the end."""
    from tuner.core.loop import Parts
    from tuner.engines.process import reap

    evaluator = evaluator_of(file)
    try:
        yield Parts(
            studies=studies,
            evaluator=evaluator,
            clock=SystemClock(),
            reap=reap,
            checks=(*checks_of(file), *_preflight(evaluator)),
            prior=None if file.evaluator == "predicted" else prior_of(file),
            progress=progress,
        )
    finally:
        evaluator.close()


def evaluator_of(file: StudyFile) -> Evaluator:
    """Raises WrongInputError where the study asks for an engine that is not there."""
    if file.evaluator == "predicted":
        from tuner.predict.evaluator import PredictedEvaluator

        return PredictedEvaluator(file)
    if file.evaluator == "vllm":
        return _vllm(file)
    from tuner.app.kernel_studies import recorded_evaluator, timing_evaluator

    if file.evaluator == "recorded":
        return recorded_evaluator(file)
    settings = Settings()
    named = Path(file.engine.python) if file.engine.python else None
    return timing_evaluator(file, engine_python(named), settings.runs.resolve())


def engine_python(named: Path | None) -> Path:
    """Raises WrongInputError where no interpreter is named, or it cannot be run."""
    python = named or Settings().engine_python
    if python is None:
        raise WrongInputError("engine.python: name the interpreter that has vLLM, or set TUNER_ENGINE_PYTHON")
    if not os.access(python, os.X_OK):
        raise WrongInputError(
            f"engine.python: {python} is not an interpreter that can be run (`make engine` makes one)"
        )
    return python


def examine_engine(python: Path | None) -> "list[Finding]":
    from tuner.engines.doctor import examine
    from tuner.engines.engine import Engine
    from tuner.engines.hardware import NoEngineError

    try:
        return examine(Engine(python=engine_python(python)))
    except NoEngineError as error:
        raise WrongInputError(str(error)) from error


def _vllm(file: StudyFile) -> Evaluator:
    from tuner.core.use_cases import model_of, nodes_of
    from tuner.engines.engine import Deadlines, Engine
    from tuner.engines.evaluator import VllmEvaluator
    from tuner.engines.hardware import NoEngineError

    settings = Settings()
    python = Path(file.engine.python) if file.engine.python else settings.engine_python
    if python is None:
        raise WrongInputError("engine.python: name the interpreter that has vLLM, or set TUNER_ENGINE_PYTHON")
    if not os.access(python, os.X_OK):
        raise WrongInputError(
            f"engine.python: {python} is not an interpreter that can be run (`make engine` makes one)"
        )
    model = model_of(file)
    if Path(model.model).is_dir():  # an engine works in a folder of its own
        model = replace(model, model=str(Path(model.model).resolve()))
    deadlines = Deadlines(start_s=file.engine.start_timeout_s, request_s=file.engine.request_timeout_s)
    try:
        return VllmEvaluator(
            engine=Engine(python=python, environment=file.engine.environment, arguments=file.engine.arguments),
            model=model,
            nodes=nodes_of(file),
            runs=settings.runs.resolve(),
            kernel_tables=_kernel_tables(file),
            deadlines=deadlines,
            tasks=_tasks(file, python, settings.runs.resolve() / "helpers", deadlines),
        )
    except NoEngineError as error:
        raise WrongInputError(str(error)) from error


def _tasks(file: StudyFile, engine_python: Path, runs: Path, deadlines: "Deadlines") -> "Tasks | None":
    """Ready to be asked. Raises NoEngineError where lm-eval or a task is missing: no start is spent on that."""
    from tuner.core.accuracy import fewest_questions
    from tuner.engines.engine import Engine
    from tuner.engines.tasks import Tasks

    asked = file.quality
    if not asked.tasks:
        return None
    python = Path(asked.tasks_python) if asked.tasks_python else engine_python
    folder = Path(asked.tasks_folder) if asked.tasks_folder else None
    engine = Engine(python=python, environment=file.engine.environment)
    tasks = Tasks(engine, folder=folder, runs=runs, deadlines=deadlines)
    tasks.require(asked.tasks, asked.limit, at_least=fewest_questions(asked.margin))
    return tasks


def _kernel_tables(file: StudyFile) -> dict[str, str]:
    """Each table's file, whole. Raises WrongInputError where one is no validated table: vLLM would not take it."""
    from kernels.table import Status, TableError, from_json

    found = {}
    for name, text in file.engine.kernel_tables.items():
        path = Path(text).resolve()
        try:
            table = from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, TableError) as error:
            raise WrongInputError(f"engine.kernel_tables.{name}: {path}: {error}") from error
        if table.status is not Status.VALIDATED:
            raise WrongInputError(f"engine.kernel_tables.{name}: {path} holds no validated tiles ({table.status})")
        found[name] = str(path)
    return found


def _preflight(evaluator: Evaluator) -> tuple[Check, ...]:
    check = getattr(evaluator, "preflight", None)
    return (check,) if check is not None else ()
