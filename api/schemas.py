"""What the service answers with, in the study's own nouns. Shapes only; `documents` fills them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from search_spaces.knob import Scalar
from tuner.core.access import Scope
from tuner.core.decision import DecisionKind
from tuner.core.measurement import FailureKind, Origin, Purpose
from tuner.core.study import StudyState

Metrics = dict[str, float]
StudyId = Annotated[str, Field(examples=["5f0c9a1e"])]
Cursor = Annotated[str | None, Field(description="Send it as `cursor` for the next page; null on the last one.")]


class Submitted(BaseModel):
    """The same for every request with the same Idempotency-Key. A file with several problems opens several studies."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "study": "5f0c9a1e",
                    "group": None,
                    "studies": [{"study": "5f0c9a1e", "name": "kimi-k3", "url": "/v1/studies/5f0c9a1e"}],
                }
            ]
        }
    )

    class One(BaseModel):
        study: StudyId
        name: str
        url: str

    study: Annotated[StudyId, Field(description="The first one.")]
    group: str | None
    studies: list[One]


class DecisionDocument(BaseModel):
    kind: DecisionKind
    sentence: str
    winner_key: str | None
    baseline_key: str
    gain: float | None = Field(description="Over the baseline, from fresh paired starts; 0.01 is 1 %.")
    lower: float | None = Field(description="Confidence bound of the gain.")
    upper: float | None
    qualifier: str


class Counts(BaseModel):
    """Trials by outcome."""

    running: int = 0
    rejected: int = 0
    failed: int = 0
    measured: int = 0


class BestDocument(BaseModel):
    trial: int
    ratio: float = Field(description="To the baseline, as the search saw it; not a proof.")


class ContestDocument(BaseModel):
    """One GPU count: its own baseline, search and decision, never compared in percent with another."""

    gpus: int
    trials: Counts
    best: BestDocument | None
    decision: DecisionDocument | None


class StudySummary(BaseModel):
    study: StudyId
    name: str
    state: StudyState
    reason: str
    owner: str
    group: str | None
    evaluator: str
    origin: Origin
    created_at: datetime
    cancel_requested: bool
    trials_budget: int
    contests: list[ContestDocument]


class StudyDocument(StudySummary):
    file: dict[str, Any] = Field(description="The study file, defaults filled in.")


class StudyPage(BaseModel):
    studies: list[StudySummary]
    next: Cursor


class ReasonDocument(BaseModel):
    rule: str
    sentence: str
    source: str


class TrialSummary(BaseModel):
    """outcome: `running`, `rejected` (reasons), `failed` (kind, reason) or `measured` (metrics by workload).
    fell_back: measured, and too few of its decode steps ran the specialised kernels that it asked for."""

    number: int
    key: str
    gpus: int
    baseline: bool
    chosen_by: str
    attempts: int
    config: dict[str, Scalar]
    outcome: str
    metrics: dict[str, Metrics]
    fell_back: bool
    reasons: list[ReasonDocument]
    kind: FailureKind | None
    reason: str


class TrialPage(BaseModel):
    trials: list[TrialSummary]
    next: Cursor


class MeasurementDocument(BaseModel):
    workload: str
    purpose: Purpose
    repeat: int
    origin: Origin
    metrics: Metrics
    missing: dict[str, str]
    samples: dict[str, list[float]]
    seconds: float


class FingerprintDocument(BaseModel):
    engine: str
    versions: dict[str, str]
    gpu: str
    gpus: int
    driver: str
    host: str
    settings: dict[str, str]


class StartDocument(BaseModel):
    start: str
    purpose: Purpose
    opened_at: datetime
    ready_s: float | None
    held_s: float | None
    ended: str | None
    excluded: str
    command: list[str]
    fingerprint: FingerprintDocument
    measurements: list[MeasurementDocument]


class TrialDocument(TrialSummary):
    evidence: str = Field(description="Of a failure: the last lines of the log, the exit code, the command.")
    starts: list[StartDocument]


class RowDocument(BaseModel):
    """One GPU count under one workload, beside the others."""

    gpus: int
    workload: str
    replicas: int
    users: float | None
    per_user: float | None
    per_gpu: float | None


class SideDocument(BaseModel):
    trial: int
    key: str
    config: dict[str, Scalar]
    metrics: dict[str, Metrics]


class ComparisonContest(BaseModel):
    gpus: int
    baseline: SideDocument | None
    best: SideDocument | None
    differs: dict[str, tuple[Scalar, Scalar]] = Field(description="Option to the best's and the baseline's value.")
    ratios: dict[str, float]
    margins: dict[str, float]
    decision: DecisionDocument | None


class ComparisonDocument(BaseModel):
    study: StudyId
    objective: str
    origin: Origin
    contests: list[ComparisonContest]
    side_by_side: list[RowDocument]


class EventDocument(BaseModel):
    """One message of the stream: `id` grows, `event` is the kind, `data` is JSON."""

    id: int
    event: str
    data: dict[str, Any]


class SpaceList(BaseModel):
    spaces: list[str]


class AuditDocument(BaseModel):
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class AuditPage(BaseModel):
    entries: list[AuditDocument]
    next: Cursor


class Me(BaseModel):
    name: str
    scope: Scope


class Health(BaseModel):
    status: str
