"""The study file: what a user asks for, checked key by key. Knows the words, not what they lead to."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from search_spaces.knob import Scalar
from tuner.core.acceptance import REAL, Acceptance, AcceptanceError
from tuner.core.datasets import DatasetError, Facts, examine, sha256
from tuner.core.workload import RANDOM, Dataset, GemmProblem, ServingWorkload, Workload


class StudyFileError(ValueError):
    """A study file that cannot be used. The message names each key and what is wrong with it."""


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Positive = Annotated[int, Field(gt=0, strict=True)]
PositiveList = Annotated[tuple[Positive, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=32)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HardwareSection(_Section):
    """gpu: product name, or `cpu`.   gpus: all that the study may hold.   gpus_per_node: in one tray."""

    gpu: Name
    gpus: Positive = 1
    gpus_per_node: Positive = 8


class InlineSpace(_Section):
    """A user's own space: knobs are vLLM option names. baseline: what is run today; the first choices where absent."""

    name: Name = "inline"
    knobs: Mapping[str, tuple[Scalar, ...]] = Field(min_length=1)
    rules: tuple[str, ...] = ()
    baseline: Mapping[str, Scalar] = Field(default_factory=dict)


class SyntheticAcceptance(_Section):
    """curve: name of a shipped curve; the length follows the draft length.   length: one for every draft length."""

    curve: str | None = None
    length: float | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "SyntheticAcceptance":
        if (self.curve is None) == (self.length is None):
            raise ValueError("takes exactly one of curve and length")
        return self


class AcceptanceSection(_Section):
    synthetic: SyntheticAcceptance


class DatasetSection(_Section):
    """Exactly one file: JSON lines of prompts, conversations as ShareGPT has them, or a trace of requests.

    sha256: of the file; where the user gives it, another file is refused.   facts: what the file was found to hold.
    Both are filled in when the file is read.
    """

    prompts: str | None = None
    sharegpt: str | None = None
    trace: str | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    facts: Facts | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> "DatasetSection":
        if sum(path is not None for path in (self.prompts, self.sharegpt, self.trace)) != 1:
            raise ValueError("is `random`, or takes exactly one of prompts, sharegpt and trace")
        return self

    @property
    def kind(self) -> Literal["prompts", "sharegpt", "trace"]:
        return "prompts" if self.prompts is not None else "sharegpt" if self.sharegpt is not None else "trace"

    @property
    def path(self) -> str:
        return self.prompts or self.sharegpt or self.trace or ""

    def dataset(self) -> Dataset:
        return Dataset(kind=self.kind, sha256=self.sha256 or "", path=self.path)

    def read(self, folder: Path | None) -> "DatasetSection":
        """With its hash and facts. folder: that the path is relative to. Raises DatasetError."""
        path = (folder / self.path).resolve() if folder is not None else Path(self.path)
        digest = sha256(path)
        if self.sha256 not in (None, digest):
            raise DatasetError(f"{path}: its sha256 is {digest}, not {self.sha256}")
        facts = examine(self.kind, path)
        return self.model_copy(update={self.kind: str(path), "sha256": digest, "facts": facts})


def _as_dataset(value: object) -> object:
    """`random` is no file; a path alone is a file of prompts."""
    if value == "random":
        return None
    return {"prompts": value} if isinstance(value, str) else value


class TraceSection(_Section):
    """Recorded traffic: the file says how many tokens, when, and in which session.

    repeats: runs in one start, each with tokens of its own.
    """

    dataset: DatasetSection
    repeats: Positive = 1
    acceptance: Literal["real"] | AcceptanceSection = "real"
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("acceptance")
    @classmethod
    def _curve_is_known(cls, value: Literal["real"] | AcceptanceSection) -> Literal["real"] | AcceptanceSection:
        _acceptance(value)
        return value

    def workloads(self) -> tuple[ServingWorkload, ...]:
        facts = self.dataset.facts
        if facts is None:
            raise StudyFileError("workload.dataset: the trace was not read")
        return (
            ServingWorkload(
                input_tokens=facts.longest_input_tokens,
                output_tokens=facts.longest_output_tokens,
                context_tokens=facts.longest_input_tokens,
                concurrency=facts.sessions_at_once,
                requests=facts.requests,
                dataset=self.dataset.dataset(),
                acceptance=_acceptance(self.acceptance),
                seed=self.seed,
                quiet_s=facts.quiet_s,
            ),
        )


class WorkloadSection(_Section):
    """Lists of concurrency and context make several workloads. requests: in one run, warm-up excluded; by default
    four times the concurrency, at least 8.   repeats: runs of each workload in one start.   dataset: None for random
    tokens; with a file, input_tokens and output_tokens are the most of one request.   synthetic_kv: do not compute the
    context, fill the cache with made-up values."""

    input_tokens: Positive
    output_tokens: Positive
    context_tokens: PositiveList | None = None
    concurrency: PositiveList = (1,)
    requests: Positive | None = None
    request_rate: Annotated[float, Field(gt=0)] | None = None
    repeats: Positive = 1
    dataset: Annotated[DatasetSection | None, BeforeValidator(_as_dataset)] = None
    synthetic_kv: bool = False
    acceptance: Literal["real"] | AcceptanceSection = "real"
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("acceptance")
    @classmethod
    def _curve_is_known(cls, value: Literal["real"] | AcceptanceSection) -> Literal["real"] | AcceptanceSection:
        _acceptance(value)
        return value

    @model_validator(mode="after")
    def _a_file_has_its_own_lengths(self) -> "WorkloadSection":
        if self.dataset is None:
            return self
        if self.context_tokens is not None:
            raise ValueError("context_tokens: prompts from a file have their own lengths; leave it out")
        if self.synthetic_kv:
            raise ValueError("synthetic_kv: a made-up cache has no use for a file's prompts; leave one of the two out")
        longest = self.dataset.facts.longest_output_tokens if self.dataset.facts is not None else 0
        if longest > self.output_tokens:
            raise ValueError(f"output_tokens: {self.output_tokens}, but a line of the file asks for {longest}")
        return self

    def workloads(self) -> tuple[ServingWorkload, ...]:
        return tuple(
            ServingWorkload(
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                context_tokens=max(context, self.input_tokens),
                concurrency=concurrency,
                requests=self.requests or max(8, 4 * concurrency),
                request_rate=self.request_rate,
                dataset=RANDOM if self.dataset is None else self.dataset.dataset(),
                acceptance=_acceptance(self.acceptance),
                seed=self.seed,
                synthetic_kv=self.synthetic_kv,
            )
            for context in self.context_tokens or (self.input_tokens,)
            for concurrency in self.concurrency
        )


def _shape(value: object) -> str:
    """Which of the two sections a document, or a section, is."""
    dataset = value.get("dataset") if isinstance(value, Mapping) else getattr(value, "dataset", None)
    trace = dataset.get("trace") if isinstance(dataset, Mapping) else getattr(dataset, "trace", None)
    return "TraceSection" if trace is not None else "WorkloadSection"


def _acceptance(section: Literal["real"] | AcceptanceSection) -> Acceptance:
    if section == "real":
        return REAL
    try:
        return Acceptance(curve=section.synthetic.curve, fixed_length=section.synthetic.length)
    except AcceptanceError as error:
        raise ValueError(str(error)) from error


class ProblemSection(_Section):
    n: Positive
    k: Positive
    m: Positive
    dtype: Literal["bfloat16", "float16", "float32", "float8_e4m3"] = "bfloat16"
    name: str = ""


class ObjectiveSection(_Section):
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


class LimitSection(_Section):
    """A bound that every workload must keep."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "LimitSection":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("takes exactly one of at_most and at_least")
        return self


class BudgetSection(_Section):
    """trials: candidates tried in the search, over all GPU counts, baselines not counted.   gpu_hours: of all starts,
    the confirmation's included; None is no bound.   start_minutes: expected length of one start, for the estimate."""

    trials: Positive = 40
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    start_minutes: Annotated[float, Field(gt=0)] | None = None


class ConfirmSection(_Section):
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


class QualitySection(_Section):
    """prompts, prompt_tokens, output_tokens: of the generations that are scored, at each graph size.
    vocabulary_size: prompts are token ids from the middle of so many; every tokenizer has the default.
    enabled: false leaves the check out, and then nothing can be validated."""

    enabled: bool = True
    prompts: Positive = 8
    prompt_tokens: Positive = 16
    output_tokens: Positive = 128
    vocabulary_size: Annotated[int, Field(ge=20)] = 500


class EngineSection(_Section):
    """python: the interpreter that has vLLM.   options: further vLLM options for every candidate.   environment:
    variables for the engine.   arguments: appended to the command line."""

    python: str | None = None
    version: str | None = None
    options: Mapping[str, Any] = Field(default_factory=dict)
    environment: Mapping[str, str] = Field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    trust_remote_code: bool = False
    draft_models: Mapping[str, str] = Field(default_factory=dict)
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0


class StudyFile(_Section):
    """One study, or with `problems` a group of kernel studies. candidates: try these configurations, not the space."""

    name: Name
    model: Name
    hardware: HardwareSection
    space: str | InlineSpace
    evaluator: Literal["predicted", "recorded", "vllm", "kernel"]
    workload: (
        Annotated[
            Annotated[WorkloadSection, Tag("WorkloadSection")] | Annotated[TraceSection, Tag("TraceSection")],
            Discriminator(_shape),
        ]
        | None
    ) = None
    problems: tuple[ProblemSection, ...] = ()
    objective: ObjectiveSection
    limits: tuple[LimitSection, ...] = ()
    fix: Mapping[str, Scalar] = Field(default_factory=dict)
    only: Mapping[str, Annotated[tuple[Scalar, ...], BeforeValidator(_as_list), Field(min_length=1)]] = Field(
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
        return self

    @model_validator(mode="after")
    def _a_file_is_sent_to_an_engine(self) -> "StudyFile":
        workload = self.workload
        if workload is None:
            return self
        if self.evaluator != "vllm" and (workload.dataset is not None or getattr(workload, "synthetic_kv", False)):
            raise ValueError(f"workload: only a vllm study has a data set or a synthetic KV cache, not {self.evaluator}")
        per_session = [m for m in (self.objective.metric, *(limit.metric for limit in self.limits)) if "session_" in m]
        if per_session and not isinstance(workload, TraceSection):
            raise ValueError(f"workload: {per_session[0]} needs sessions, and only a trace has them")
        return self

    @property
    def workloads(self) -> tuple[Workload, ...]:
        if self.workload is not None:
            return self.workload.workloads()
        return tuple(GemmProblem(n=p.n, k=p.k, m=p.m, dtype=p.dtype, name=p.name) for p in self.problems)

    @property
    def repeats(self) -> int:
        return self.workload.repeats if self.workload is not None else 1

    @property
    def key(self) -> str:
        """Hash of everything asked for; two files that ask for the same have the same key."""
        document = self.model_dump(mode="json")
        dataset = (document["workload"] or {}).get("dataset")
        if dataset is not None and dataset["sha256"] is not None:  # wherever the file is
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
    """With what its data set holds. Raises StudyFileError, also where a file cannot be read or is not what it should be."""
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
            section = next((t for t in options if isinstance(t, type) and issubclass(t, _Section)), None)
    known = list(getattr(section, "model_fields", {}))
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}" if known else ""
