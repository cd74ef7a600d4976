"""A study's life: what was asked, where it stands, and which step may follow. Knows no storage."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tuner.core.study_file import StudyFile


class StudyState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CONFIRMING = "confirming"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED)

    def may_become(self, other: "StudyState") -> bool:
        return other in _NEXT[self]


_NEXT: dict[StudyState, frozenset[StudyState]] = {
    StudyState.QUEUED: frozenset({StudyState.RUNNING, StudyState.CANCELLED, StudyState.FAILED}),
    StudyState.RUNNING: frozenset(
        {StudyState.CONFIRMING, StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED, StudyState.RUNNING}
    ),
    StudyState.CONFIRMING: frozenset({StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED, StudyState.CONFIRMING}),
    StudyState.DONE: frozenset(),
    StudyState.CANCELLED: frozenset(),
    StudyState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """file: what was asked.   file_key: hash of what was asked; the same file resumes its unfinished study.
    group: set where one file opened several studies.   reason: why it failed or was cancelled.
    state: the repository's word; a copy in memory may be old."""

    id: str
    name: str
    file: StudyFile
    file_key: str
    created_at: datetime
    state: StudyState = StudyState.QUEUED
    group: str | None = None
    owner: str = ""
    reason: str = ""
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write a study. token: grows with each takeover; a write with an older one is refused."""

    study_id: str
    owner: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """id: grows within the database.   kind: e.g. `trial_finished`.   data: JSON-ready."""

    id: int
    study_id: str
    at: datetime
    kind: str
    data: dict[str, object]


class UnknownStudyError(LookupError):
    """No study has that id; the message says which."""


class LeaseLostError(RuntimeError):
    """Somebody else holds the study now; nothing was written."""


class IllegalStateError(RuntimeError):
    """The study is in a state from which that step is not possible; the message names both."""
