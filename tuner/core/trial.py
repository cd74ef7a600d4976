"""A candidate tried in a study, once, and what became of it. Knows nothing of why it was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.candidate import Candidate
from search_spaces.rule import Reason
from tuner.core.measurement import FailureKind, Measurement

LEAST_SPECIALIZED_SHARE = 0.95  # of the uniform decode steps of up to 64 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A check refused it; nothing was run."""

    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It ran, or was to run, and did not yield a number.

    evidence: what a person needs to believe it: the last log lines, the exit code, the exact command.
    """

    kind: FailureKind
    sentence: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    measurements: tuple[Measurement, ...]


Outcome = Rejected | Failed | Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """number: order of creation within the study, from 0.   gpus: the contest that it takes part in.
    baseline: whether it is that contest's reference.   outcome: None while it runs."""

    number: int
    candidate: Candidate
    key: str
    gpus: int
    baseline: bool
    attempts: int = 1
    chosen_by: str = ""
    outcome: Outcome | None = None


def fell_back(trial: Trial) -> bool:
    """Whether it asked for specialised kernels and too few of its uniform decode steps ran them."""
    runs = trial.outcome.measurements if isinstance(trial.outcome, Measured) else ()
    return any(run.metrics.get("specialized_share", 1.0) < LEAST_SPECIALIZED_SHARE for run in runs)


def measured(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if isinstance(trial.outcome, Measured)]
