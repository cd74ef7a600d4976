"""The workload of a study file, and its data set: the words, and what they make. Runs nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from tuner.core.acceptance import REAL, Acceptance, AcceptanceError
from tuner.core.datasets import DatasetError, Facts, examine, sha256
from tuner.core.section import Positive, PositiveList, Section, StudyFileError
from tuner.core.workload import RANDOM, Dataset, ServingWorkload


class SyntheticAcceptance(Section):
    """curve: name of a shipped curve; the length follows the draft length.   length: one for every draft length."""

    curve: str | None = None
    length: float | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "SyntheticAcceptance":
        if (self.curve is None) == (self.length is None):
            raise ValueError("takes exactly one of curve and length")
        return self


class AcceptanceSection(Section):
    synthetic: SyntheticAcceptance


def _acceptance(section: Literal["real"] | AcceptanceSection) -> Acceptance:
    if section == "real":
        return REAL
    try:
        return Acceptance(curve=section.synthetic.curve, fixed_length=section.synthetic.length)
    except AcceptanceError as error:
        raise ValueError(str(error)) from error


def _known(section: Literal["real"] | AcceptanceSection) -> Literal["real"] | AcceptanceSection:
    _acceptance(section)
    return section


AnyAcceptance = Annotated[Literal["real"] | AcceptanceSection, AfterValidator(_known)]


class DatasetSection(Section):
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


class TraceSection(Section):
    """Recorded traffic: the file says how many tokens, when, and in which session.

    repeats: runs in one start, each with tokens of its own.
    """

    dataset: DatasetSection
    repeats: Positive = 1
    acceptance: AnyAcceptance = "real"
    seed: Annotated[int, Field(ge=0)] = 0

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


class WorkloadSection(Section):
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
    acceptance: AnyAcceptance = "real"
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _a_file_has_its_own_lengths(self) -> "WorkloadSection":
        if self.dataset is None:
            return self
        if self.context_tokens is not None:
            raise ValueError("context_tokens: prompts from a file have their own lengths; leave it out")
        if self.synthetic_kv:
            raise ValueError("synthetic_kv: a made-up cache has no use for a file's prompts; leave one of the two out")
        facts = self.dataset.facts
        if facts is None:
            return self
        if facts.longest_output_tokens > self.output_tokens:
            longest = facts.longest_output_tokens
            raise ValueError(f"output_tokens: {self.output_tokens}, but a line of the file asks for {longest}")
        most = max(self._requests(concurrency) for concurrency in self.concurrency)
        if most > facts.requests:
            raise ValueError(f"requests: {most} are to be sent in a run, and the file holds {facts.requests}")
        return self

    def _requests(self, concurrency: int) -> int:
        return self.requests or max(8, 4 * concurrency)

    def workloads(self) -> tuple[ServingWorkload, ...]:
        return tuple(
            ServingWorkload(
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                context_tokens=max(context, self.input_tokens),
                concurrency=concurrency,
                requests=self._requests(concurrency),
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


AnyWorkload = Annotated[
    Annotated[WorkloadSection, Tag("WorkloadSection")] | Annotated[TraceSection, Tag("TraceSection")],
    Discriminator(_shape),
]
