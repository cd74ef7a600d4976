"""The study file: what a user asks for, checked key by key. Knows the words, not what they lead to."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from search_spaces.knob import Scalar
from tuner.core.datasets import DatasetError
from tuner.core.section import Name, Positive, Section, StudyFileError, as_list
from tuner.core.workload import GemmProblem, Workload
from tuner.core.workload_section import AnyWorkload, TraceSection, WorkloadSection

__all__ = ["StudyFile", "StudyFileError", "load", "parse", "read", "with_dataset"]


KERNEL_EVALUATORS = ("kernel", "recorded")
SHIPPED_RECORDING = "h200_skinny_gemm"  # a sweep that comes with the product, by name instead of by path


class HardwareSection(Section):
    """gpu: product name, or `cpu`.   gpus: all that the study may hold.   gpus_per_node: in one tray."""

    gpu: Name
    gpus: Positive = 1
    gpus_per_node: Positive = 8


class InlineSpace(Section):
    """A user's own space: knobs are vLLM option names. baseline: what is run today; the first choices where absent."""

    name: Name = "inline"
    knobs: Mapping[str, tuple[Scalar, ...]] = Field(min_length=1)
    rules: tuple[str, ...] = ()
    baseline: Mapping[str, Scalar] = Field(default_factory=dict)


class ProblemSection(Section):
    n: Positive
    k: Positive
    m: Positive
    dtype: Literal["bfloat16", "float16", "float32", "float8_e4m3"] = "bfloat16"
    name: str = ""


class ObjectiveSection(Section):
    """Exactly one metric, to be made large or small."""

    maximize: str | None = None
    minimize: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "ObjectiveSection":
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("takes exactly one of maximize and minimize")
        return self

    @property
    def metric(self) -> str:
        return self.maximize or self.minimize or ""

    @property
    def larger_is_better(self) -> bool:
        return self.maximize is not None


class LimitSection(Section):
    """A bound that every workload must keep."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "LimitSection":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("takes exactly one of at_most and at_least")
        return self


class BudgetSection(Section):
    """trials: candidates tried in the search, over all GPU counts, baselines not counted.   gpu_hours: of all starts,
    the confirmation's included; None is no bound.   start_minutes: expected length of one start, for the estimate.
    stop_early: end a search once what is left of it is expected to gain less than the noise of one start."""

    trials: Positive = 40
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    start_minutes: Annotated[float, Field(gt=0)] | None = None
    stop_early: bool = True


class ConfirmSection(Section):
    """finalists: candidates confirmed per GPU count.   starts: fresh starts a side (at least 5 for one finalist, 6 for
    two or three: fewer cannot reach p < 0.05).   noise_starts: of the baseline, first.   min_gain: 0.01 is 1 %."""

    finalists: Annotated[int, Field(ge=1, le=3)] = 1
    starts: Annotated[int, Field(ge=5, le=50)] | None = None
    noise_starts: Annotated[int, Field(ge=2, le=20)] = 2
    min_gain: Annotated[float, Field(ge=0, lt=1)] = 0.01

    @model_validator(mode="after")
    def _enough_starts(self) -> "ConfirmSection":
        if self.finalists > 1 and self.starts is not None and self.starts < 6:
            raise ValueError(f"starts: {self.finalists} finalists need at least 6 starts a side")
        return self

    @property
    def starts_a_side(self) -> int:
        return self.starts or (5 if self.finalists == 1 else 6)


TaskName = Annotated[str, Field(pattern=r"^[\w.:+-]{1,100}$")]  # never a path: a task file can run code


class QualitySection(Section):
    """prompts, prompt_tokens, output_tokens: of the generations that are scored, at each graph size.
    vocabulary_size: prompts are token ids from the middle of so many; every tokenizer has the default.
    enabled: false leaves the check out, and then nothing can be validated.
    tasks: of lm-eval, each of which must lose less than `margin` of its answers against the baseline.   limit:
    questions of each task.   tasks_python: the interpreter that has lm-eval; the engine's where absent.
    tasks_folder: of task files of your own."""

    enabled: bool = True
    prompts: Positive = 8
    prompt_tokens: Positive = 16
    output_tokens: Positive = 128
    vocabulary_size: Annotated[int, Field(ge=20)] = 500
    tasks: Annotated[tuple[TaskName, ...], BeforeValidator(as_list)] = ()
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    limit: Positive | None = None
    tasks_python: str | None = None
    tasks_folder: str | None = None

    @model_validator(mode="after")
    def _tasks_are_checked(self) -> "QualitySection":
        if self.tasks and not self.enabled:
            raise ValueError("tasks: they are part of the check that `enabled: false` leaves out")
        return self


class EngineSection(Section):
    """python: the interpreter that has vLLM.   options: further vLLM options for every candidate.   environment:
    variables for the engine.   arguments: appended to the command line.   kernel_tables: name of a tuned tile table,
    as `kernel_table` takes it, to its file on the engine's host."""

    python: str | None = None
    version: str | None = None
    options: Mapping[str, Any] = Field(default_factory=dict)
    environment: Mapping[str, str] = Field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    trust_remote_code: bool = False
    draft_models: Mapping[str, str] = Field(default_factory=dict)
    kernel_tables: Mapping[str, Name] = Field(default_factory=dict)
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0

    @property
    def dummy_weights(self) -> bool:
        """Whether vLLM makes the weights up instead of reading them."""
        asked = " ".join(self.arguments).replace("=", " ").replace("_", "-")
        by_option = (self.options.get("load-format"), self.options.get("load_format"))
        return "dummy" in by_option or "--load-format dummy" in asked


class StudyFile(Section):
    """One study, or with `problems` a group of kernel studies. candidates: try these configurations, not the space."""

    name: Name
    model: Name
    hardware: HardwareSection
    space: str | InlineSpace
    evaluator: Literal["predicted", "recorded", "vllm", "kernel"]
    workload: AnyWorkload | None = None
    problems: tuple[ProblemSection, ...] = ()
    objective: ObjectiveSection
    limits: tuple[LimitSection, ...] = ()
    fix: Mapping[str, Scalar] = Field(default_factory=dict)
    only: Mapping[str, Annotated[tuple[Scalar, ...], BeforeValidator(as_list), Field(min_length=1)]] = Field(
        default_factory=dict
    )
    knobs: Mapping[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = Field(default_factory=dict)
    rules: tuple[str, ...] = ()
    baseline: Mapping[str, Scalar] = Field(default_factory=dict)
    candidates: tuple[Mapping[str, Scalar], ...] = ()
    budget: BudgetSection = BudgetSection()
    confirm: ConfirmSection = ConfirmSection()
    quality: QualitySection = QualitySection()
    engine: EngineSection = EngineSection()
    recording: str | None = None
    parallel: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("name", "model")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.strip() or any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise ValueError("must be one line of printable text")
        return value

    @model_validator(mode="after")
    def _workload_or_problems(self) -> "StudyFile":
        if (self.workload is None) == (not self.problems):
            raise ValueError("takes exactly one of workload and problems")
        if self.evaluator == "recorded" and self.recording is None:
            raise ValueError("recording: the recorded evaluator needs the file of measurements")
        if self.problems and self.evaluator not in KERNEL_EVALUATORS:
            raise ValueError(f"evaluator: problems are timed by {' or '.join(KERNEL_EVALUATORS)}, not {self.evaluator}")
        if self.workload is not None and self.evaluator in KERNEL_EVALUATORS:
            raise ValueError(f"evaluator: {self.evaluator} knows kernels; a workload is served by vllm or predicted")
        if self.problems and self.hardware.gpus != 1:
            raise ValueError("hardware.gpus: a kernel runs on 1 GPU")
        return self

    @model_validator(mode="after")
    def _a_file_is_sent_to_an_engine(self) -> "StudyFile":
        workload = self.workload
        if workload is None:
            return self
        if self.evaluator == "predicted" and (workload.dataset is not None or getattr(workload, "synthetic_kv", False)):
            raise ValueError("workload: the model predicts random tokens; a data set or synthetic_kv needs an engine")
        metrics = (self.objective.metric, *(limit.metric for limit in self.limits))
        per_session = [name for name in metrics if name.startswith("session_")]
        if per_session and not isinstance(workload, TraceSection):
            raise ValueError(f"workload: {per_session[0]} needs sessions, and only a trace has them")
        return self

    @property
    def workloads(self) -> tuple[Workload, ...]:
        if self.workload is not None:
            return self.workload.workloads()
        return tuple(GemmProblem(n=p.n, k=p.k, m=p.m, dtype=p.dtype, name=p.name) for p in self.problems)

    @property
    def parts(self) -> "tuple[StudyFile, ...]":
        """One study each: a file with several problems makes a group of them."""
        if len(self.problems) < 2:
            return (self,)
        return tuple(self.model_copy(update={"problems": (problem,)}) for problem in self.problems)

    @property
    def repeats(self) -> int:
        return self.workload.repeats if self.workload is not None else 1

    @property
    def key(self) -> str:
        """Hash of everything asked for; two files that ask for the same have the same key.

        What stands at its default is left out, so a key that a later version adds changes nothing for older files.
        """
        document = self.model_dump(mode="json", exclude_defaults=True)
        dataset = document.get("workload", {}).get("dataset", {})
        if "sha256" in dataset:  # wherever the file is
            dataset[self.workload.dataset.kind] = ""  # type: ignore[union-attr]
        text = json.dumps(document, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse(document: object) -> StudyFile:
    """Raises StudyFileError, one line for each key that is wrong."""
    if not isinstance(document, Mapping):
        raise StudyFileError("a study file is a mapping of keys to values")
    try:
        return StudyFile.model_validate(document)
    except ValidationError as error:
        raise StudyFileError("\n".join(_lines(error.errors(include_url=False)))) from error


def load(path: Path) -> StudyFile:
    """With what its data set holds. Raises StudyFileError, also where one of the files cannot be read."""
    return with_dataset(read(path), path.parent)


def with_dataset(file: StudyFile, folder: Path | None = None) -> StudyFile:
    """The study file with its data set read, hashed and measured; the file itself where it has none.

    folder: that a path in it is relative to. Raises StudyFileError.
    """
    if file.workload is None or file.workload.dataset is None:
        return file
    try:
        dataset = file.workload.dataset.read(folder)
    except DatasetError as error:
        raise StudyFileError(f"workload.dataset: {error}") from error
    workload = {**file.workload.model_dump(mode="json"), "dataset": dataset.model_dump(mode="json")}
    return parse({**file.model_dump(mode="json"), "workload": workload})


def read(path: Path) -> StudyFile:
    """Without its data set, which may be on another machine. Raises StudyFileError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyFileError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyFileError(f"{path}: not a YAML file: {error}") from error
    return parse(document)


_UNIONS = ("str", "InlineSpace", "AcceptanceSection", "WorkloadSection", "TraceSection")  # parts that nobody wrote


def _lines(errors: Sequence[Any]) -> list[str]:
    lines = []
    for error in errors:
        key = ".".join(str(part) for part in error["loc"] if part not in _UNIONS)
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message = f"unknown key{_suggestion(error['loc'])}"
        lines.append(f"{key}: {message}" if key else message)
    return lines


_SECTIONS = {"WorkloadSection": WorkloadSection, "TraceSection": TraceSection}


def _suggestion(location: Sequence[object]) -> str:
    section: Any = StudyFile
    for part in location[:-1]:
        if part in _SECTIONS:
            section = _SECTIONS[str(part)]
            continue
        field = getattr(section, "model_fields", {}).get(part)
        section = field.annotation if field is not None else None
        if not isinstance(section, type):
            options = getattr(section, "__args__", ())
            section = next((t for t in options if isinstance(t, type) and issubclass(t, Section)), None)
    known = list(getattr(section, "model_fields", {}))
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}" if known else ""
