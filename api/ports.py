"""What the service is given from outside. Knows no implementation of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from api.policy import Policy
from tuner.core.measurement import Start
from tuner.core.ports import Audit, Clock, Readings, Studies, Submissions, Tokens
from tuner.core.study_file import StudyFile
from tuner.core.submitting import Desk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """examine: raises StudyFileError or SpaceError where a file could never run.   spaces: names of the built-in ones.
    table: a group's tuned tiles, or one study's, as JSON, unvalidated ones too where asked; raises UnknownStudyError,
    NothingToExportError, or RenderError where it is of no kernel.
    read_log: the end of a start's log, at most so many bytes; None where this host does not have it.
    always_ask: ask for a token although none is stored yet; set where the server listens beyond loopback.
    unavailable: exceptions that mean that the database cannot answer now."""

    studies: Studies
    readings: Readings
    tokens: Tokens
    submissions: Submissions
    audit: Audit
    clock: Clock
    policy: Policy
    examine: Callable[[StudyFile], None]
    table: Callable[[str, bool], str]
    read_log: Callable[[Start, int], str | None]
    spaces: Sequence[str]
    always_ask: bool = True
    unavailable: tuple[type[Exception], ...] = ()
    heartbeat_s: float = 10.0
    poll_s: float = 0.5

    @property
    def desk(self) -> Desk:
        return Desk(studies=self.studies, submissions=self.submissions, audit=self.audit, clock=self.clock)
