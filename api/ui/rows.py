"""The trials table: which rows, in which order, from where. Knows trials and documents; no HTTP, no templates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

from api import documents
from api.schemas import TrialSummary
from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed, Measured, Rejected, Trial

ROWS = 50


class Order(StrEnum):
    NUMBER = "number"
    NEWEST = "newest"
    BEST = "best"
    OUTCOME = "outcome"


ORDERS = {
    Order.NUMBER: "by number",
    Order.NEWEST: "newest first",
    Order.BEST: "best ratio first",
    Order.OUTCOME: "by outcome and kind of failure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """first, last: of the rows shown, from 1; of: how many there are.   back, on: where the other pages begin."""

    study: str
    trials: Sequence[TrialSummary]
    first: int
    last: int
    of: int
    back: int | None
    on: int | None
    asked: Mapping[str, str]

    def link(self, after: int) -> str:
        return f"/ui/studies/{self.study}?{urlencode({**self.asked, 'after': after})}#trials"


def outcome_of(trial: Trial) -> str:
    """`measured`, `rejected`, `running`, or the kind of a failure."""
    match trial.outcome:
        case Failed(kind=kind):
            return kind
        case Measured():
            return "measured"
        case Rejected():
            return "rejected"
    return "running"


ALL_OUTCOMES = sorted(["measured", "rejected", "running", *FailureKind])


def outcomes_of(trials: Sequence[Trial]) -> list[str]:
    return sorted({outcome_of(trial) for trial in trials})


def page_of(study_id: str, shown: Sequence[Trial], after: int, of: int) -> Rows:
    """The page of a long study's trials by number, where only its own rows were read. of: how many there are."""
    return _rows(study_id, shown, after, of, {"outcome": "", "order": Order.NUMBER})


def rows_of(
    study_id: str, trials: Sequence[Trial], ratios: Mapping[int, float], outcome: str, order: Order, after: int
) -> Rows:
    """ratios: of trials to the baseline."""
    found = [trial for trial in trials if outcome in ("", outcome_of(trial))]
    if order is Order.NEWEST:
        found.reverse()
    elif order is Order.BEST:
        found.sort(key=lambda t: (-ratios.get(t.number, -math.inf), t.number))
    elif order is Order.OUTCOME:
        found.sort(key=lambda t: (outcome_of(t), t.number))
    return _rows(study_id, found[after : after + ROWS], after, len(found), {"outcome": outcome, "order": order})


def _rows(study_id: str, shown: Sequence[Trial], after: int, of: int, asked: Mapping[str, str]) -> Rows:
    return Rows(
        study=study_id,
        trials=[documents.trial(trial) for trial in shown],
        first=min(after + 1, of),
        last=min(after + ROWS, of),
        of=of,
        back=max(0, after - ROWS) if after else None,
        on=after + ROWS if after + ROWS < of else None,
        asked=asked,
    )
