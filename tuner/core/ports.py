"""What the core needs from outside, as short protocols. Knows no implementation."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from search_spaces.candidate import Candidate
from search_spaces.rule import Reason
from tuner.core.access import AccessToken, AuditEntry, Submission
from tuner.core.decision import Confirmation
from tuner.core.measurement import Fingerprint, Measurement, Origin, Process, Purpose, Start
from tuner.core.study import Event, Lease, Study, StudyState
from tuner.core.trial import Failed, Outcome, Trial
from tuner.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What a start is for.

    start_id: unique; names the log folder and the row.   fresh: nothing may be shared with an earlier start
    of another candidate.   real_acceptance: leave synthetic acceptance and a synthetic KV cache out,
    whatever the workload says.
    """

    start_id: str
    candidate: Candidate
    purpose: Purpose
    workloads: tuple[Workload, ...]
    fresh: bool = False
    real_acceptance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One request's output, and the probabilities that the decode path gave it.

    token_ids: generated tokens.   logprobs: natural log probability of each.   text: as the server returned it.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The same tokens scored as a prompt, on the prefill path.

    logprobs: natural log probability of each generated token.   best: log probability of the token that the prefill
    path would have chosen there.
    """

    logprobs: tuple[float, ...]
    best: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """limit: questions of each task; None is all of them.   concurrency: questions in flight."""

    tasks: tuple[str, ...]
    limit: int | None
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Of one task. task: its name, what counts as right, and what judged it.   questions: a number for each, of its
    text, below 2**48.   right: whether each was answered rightly."""

    task: str
    questions: tuple[int, ...]
    right: tuple[bool, ...]


class Running(Protocol):
    """An engine that is ready. Every method may return a Failed; none raises for what the engine does."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def process(self) -> Process | None: ...

    @property
    def command(self) -> Sequence[str]: ...

    @property
    def log_path(self) -> str: ...

    @property
    def ready_s(self) -> float:
        """Seconds from the start to the first healthy answer."""
        ...

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        """Greedy continuations of token-id prompts on the decode path, `concurrency` requests at a time."""
        ...

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        """The probabilities that the prefill path of this engine gives to those outputs."""
        ...

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        """The tasks' questions, answered on the decode path and judged."""
        ...


class Evaluator(Protocol):
    """Turns a candidate into measurements: a vLLM server, a kernel worker, a model, a recorded file.

    `started` is told of the process as soon as it exists, before it is ready, so that a reaper can find it.
    The context manager stops the engine and returns only when every process of it is gone. Leaving it may raise
    nothing; entering yields Failed where the engine did not become ready.
    """

    @property
    def origin(self) -> Origin: ...

    def fingerprint(self, gpus: int) -> Fingerprint:
        """Of the environment that a start on so many GPUs would have."""
        ...

    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> AbstractContextManager[Running | Failed]: ...

    def close(self) -> None:
        """End the long-lived helper processes."""
        ...


class Check(Protocol):
    """Reasons why a candidate need not be tried, each naming its source; empty where there are none."""

    def __call__(self, candidate: Candidate) -> Sequence[Reason]: ...


@dataclass(frozen=True, slots=True)
class Belief:
    """What is thought of a candidate before it is measured: log of the ratio to the baseline."""

    mean: float
    sd: float


class Prior(Protocol):
    def __call__(self, candidate: Candidate, workloads: Sequence[Workload]) -> Belief | None:
        """None where nothing is known."""
        ...


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, in UTC."""
        ...

    def monotonic_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Studies(Protocol):
    """The tables, as the core sees them. Every write under a lease checks owner and token first and raises
    LeaseLostError without having written; each call is one transaction, committed when it returns."""

    def create(self, study: Study) -> None: ...

    def get(self, study_id: str) -> Study:
        """Raises UnknownStudyError."""
        ...

    def find(
        self, *, state: StudyState | None = None, text: str = "", limit: int = 50, before: str | None = None
    ) -> Sequence[Study]:
        """Newest first. text: part of the name or of the owner's.   before: a study's id, for the next page."""
        ...

    def unfinished(self, file_key: str) -> Study | None:
        """The newest study of that file that has not ended."""
        ...

    def group(self, group: str) -> Sequence[Study]: ...

    def claim(self, owner: str, *, ttl_s: float, study_id: str | None = None) -> Lease | None:
        """Take the oldest study that has not ended and whose lease is free or expired (or just `study_id`).

        None where there is none, or somebody else holds it.
        """
        ...

    def heartbeat(self, lease: Lease, *, ttl_s: float) -> Lease: ...

    def release(self, lease: Lease) -> None: ...

    def set_state(self, lease: Lease, state: StudyState, reason: str = "") -> None:
        """Raises IllegalStateError where the life of a study does not allow it."""
        ...

    def request_cancel(self, study_id: str) -> None:
        """Needs no lease. A queued study that nobody holds is cancelled at once."""
        ...

    def add_trial(self, lease: Lease, trial: Trial) -> None:
        """The trial begins (or, with an outcome, is known at once). One row a candidate and study."""
        ...

    def retry_trial(self, lease: Lease, number: int) -> None:
        """Count one more attempt and clear the outcome."""
        ...

    def finish_trial(self, lease: Lease, number: int, outcome: Outcome) -> None: ...

    def trials(self, study_id: str, *, after: int = -1, limit: int | None = None) -> Sequence[Trial]:
        """In order of number, their measurements (purpose search) included in the outcome."""
        ...

    def open_start(self, lease: Lease, start: Start) -> None: ...

    def update_start(self, lease: Lease, start: Start) -> None:
        """Replace the row with that id: process known, ready, ended, excluded."""
        ...

    def starts(self, study_id: str) -> Sequence[Start]: ...

    def add_measurement(self, lease: Lease, measurement: Measurement) -> None: ...

    def measurements(
        self,
        study_id: str,
        *,
        purpose: Purpose | None = None,
        start_id: str | None = None,
        trial: int | None = None,
    ) -> Sequence[Measurement]:
        """In order of writing; each argument narrows further.   trial: of that trial's starts."""
        ...

    def save_confirmation(self, lease: Lease, confirmation: Confirmation) -> None:
        """Insert, or replace the one for the same GPU count."""
        ...

    def confirmations(self, study_id: str) -> Sequence[Confirmation]:
        """By GPU count."""
        ...

    def add_event(self, study_id: str, kind: str, data: Mapping[str, object]) -> None: ...

    def events(self, study_id: str, *, after: int = 0, limit: int = 500) -> Sequence[Event]: ...


class Tokens(Protocol):
    def add(self, token: AccessToken) -> None:
        """Raises ValueError where a token has that name."""
        ...

    def find(self, digest: str) -> AccessToken | None: ...

    def revoke(self, name: str) -> bool:
        """Whether there was one."""
        ...

    def all(self) -> Sequence[AccessToken]:
        """By name."""
        ...

    def any(self) -> bool: ...


class Submissions(Protocol):
    """What was submitted under which Idempotency-Key."""

    def keep(self, submission: Submission) -> Submission:
        """Store it, or hand back the one that the same actor stored under that key before."""
        ...


class Audit(Protocol):
    """Append only."""

    def record(self, entry: AuditEntry) -> None: ...

    def entries(self, *, limit: int = 50, before: int | None = None) -> Sequence[AuditEntry]:
        """Newest first. before: an entry's id, for the next page."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The whole database in figures.

    studies: by state.   trials: by outcome (`running`, `rejected`, `failed`, `measured`).   held_s: by how starts
    ended, their number and the seconds that they were held.   ready: number of starts that became ready and the
    seconds that it took.   oldest_queued_at: None where nothing waits.
    """

    studies: Mapping[str, int]
    trials: Mapping[str, int]
    held_s: Mapping[str, tuple[int, float]]
    ready: tuple[int, float]
    oldest_queued_at: datetime | None


class Readings(Protocol):
    """What pages and metrics read; each costs the same in a long study as in a short one, or is a count in an index."""

    def counts(self, study_ids: Sequence[str]) -> Mapping[str, Mapping[int, Mapping[str, int]]]:
        """Study to GPU count to outcome to number of trials."""
        ...

    def told(self, study_id: str, kind: str, *, after: int = 0) -> Sequence[tuple[int, Mapping[str, object]]]:
        """Id and data of a study's events of one kind, oldest first."""
        ...

    def starts_of(self, study_id: str, trial: int) -> Sequence[Start]: ...

    def census(self) -> Census: ...

    def is_ready(self) -> bool:
        """Whether the database can be reached and its tables are of this version."""
        ...
