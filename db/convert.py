"""Rows to nouns and back: the only file that knows both. Knows no query."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from db.tables import ConfirmationRow, EventRow, MeasurementRow, StartRow, StudyRow, TrialRow
from search_spaces.candidate import Candidate
from search_spaces.decode_gemm import DECODE, DecodeTile
from search_spaces.gemm import LIBRARY, SKINNY, SPLIT_K, LibraryGemm, SkinnyTile, SplitKTactic
from search_spaces.knob import Scalar
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core.decision import Confirmation
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose, Start
from tuner.core.study import Event, Study, StudyState
from tuner.core.study_file import parse
from tuner.core.trial import Failed, Measured, Outcome, Rejected, Trial

# A candidate's kind to the inverse of its `values`.
CANDIDATES: Mapping[str, Callable[[Mapping[str, Scalar]], Candidate]] = {
    "serving": ServingConfig.from_values,
    SKINNY: SkinnyTile.from_values,
    DECODE: DecodeTile.from_values,
    LIBRARY: LibraryGemm.from_values,
    SPLIT_K: SplitKTactic.from_values,
}

_FINGERPRINT = TypeAdapter(Fingerprint)
_PROCESS = TypeAdapter(Process)
_CONFIRMATION = TypeAdapter(Confirmation)
_REASONS = TypeAdapter(tuple[Reason, ...])

REJECTED, FAILED, MEASURED = "rejected", "failed", "measured"


def study_row(study: Study) -> StudyRow:
    return StudyRow(
        id=study.id,
        name=study.name,
        file=study.file.model_dump(mode="json"),
        file_key=study.file_key,
        created_at=study.created_at,
        state=study.state.value,
        group=study.group,
        owner=study.owner,
        reason=study.reason,
        cancel_requested=study.cancel_requested,
    )


def study_of(row: StudyRow) -> Study:
    return Study(
        id=row.id,
        name=row.name,
        file=parse(row.file),
        file_key=row.file_key,
        created_at=row.created_at,
        state=StudyState(row.state),
        group=row.group,
        owner=row.owner,
        reason=row.reason,
        cancel_requested=row.cancel_requested,
    )


def trial_row(study_id: str, trial: Trial) -> TrialRow:
    kind, outcome = outcome_columns(trial.outcome)
    return TrialRow(
        study_id=study_id,
        number=trial.number,
        key=trial.key,
        kind=trial.candidate.kind,
        values=trial.candidate.values(),
        gpus=trial.gpus,
        baseline=trial.baseline,
        attempts=trial.attempts,
        chosen_by=trial.chosen_by,
        outcome_kind=kind,
        outcome=outcome,
    )


def outcome_columns(outcome: Outcome | None) -> tuple[str | None, Mapping[str, Any] | None]:
    """The columns `outcome_kind` and `outcome`."""
    if isinstance(outcome, Rejected):
        return REJECTED, {"reasons": _REASONS.dump_python(outcome.reasons, mode="json")}
    if isinstance(outcome, Failed):
        return FAILED, {"kind": outcome.kind.value, "sentence": outcome.sentence, "evidence": outcome.evidence}
    return (MEASURED, {}) if isinstance(outcome, Measured) else (None, None)


def trial_of(row: TrialRow, measurements: Sequence[Measurement]) -> Trial:
    """measurements: of the trial's starts, purpose search."""
    return Trial(
        number=row.number,
        candidate=candidate_of(row.kind, row.values),
        key=row.key,
        gpus=row.gpus,
        baseline=row.baseline,
        attempts=row.attempts,
        chosen_by=row.chosen_by,
        outcome=_outcome_of(row, measurements),
    )


def candidate_of(kind: str, values: Mapping[str, Scalar]) -> Candidate:
    """Raises ValueError where the kind, or one of the options, is not known to this version."""
    if kind not in CANDIDATES:
        raise ValueError(f"no candidates are of kind {kind!r}; there are {', '.join(CANDIDATES)}")
    return CANDIDATES[kind](values)


def _outcome_of(row: TrialRow, measurements: Sequence[Measurement]) -> Outcome | None:
    if row.outcome_kind is None or row.outcome is None:
        return None
    if row.outcome_kind == REJECTED:
        return Rejected(reasons=_REASONS.validate_python(row.outcome["reasons"]))
    if row.outcome_kind == FAILED:
        kind = FailureKind(row.outcome["kind"])
        return Failed(kind=kind, sentence=row.outcome["sentence"], evidence=row.outcome["evidence"])
    return Measured(measurements=tuple(measurements))


def start_row(study_id: str, start: Start) -> StartRow:
    return StartRow(id=start.id, study_id=study_id, **start_columns(start))


def start_columns(start: Start) -> dict[str, Any]:
    """All of a start's columns but its id and its study."""
    return {
        "trial": start.trial,
        "gpus": start.gpus,
        "candidate_key": start.candidate_key,
        "purpose": start.purpose.value,
        "fingerprint": _FINGERPRINT.dump_python(start.fingerprint, mode="json"),
        "opened_at": start.opened_at,
        "process": None if start.process is None else _PROCESS.dump_python(start.process, mode="json"),
        "ready_s": start.ready_s,
        "held_s": start.held_s,
        "ended": start.ended,
        "command": list(start.command),
        "log_path": start.log_path,
        "slot": start.slot,
        "excluded": start.excluded,
    }


def start_of(row: StartRow) -> Start:
    return Start(
        id=row.id,
        trial=row.trial,
        gpus=row.gpus,
        candidate_key=row.candidate_key,
        purpose=Purpose(row.purpose),
        fingerprint=_FINGERPRINT.validate_python(row.fingerprint),
        opened_at=row.opened_at,
        process=None if row.process is None else _PROCESS.validate_python(row.process),
        ready_s=row.ready_s,
        held_s=row.held_s,
        ended=row.ended,
        command=tuple(row.command),
        log_path=row.log_path,
        slot=row.slot,
        excluded=row.excluded,
    )


def measurement_row(study_id: str, measurement: Measurement) -> MeasurementRow:
    """Raises ValueError for a sample that is not finite; its metrics cannot be."""
    for name, values in measurement.samples.items():
        if not all(map(math.isfinite, values)):
            raise ValueError(f"sample {name!r} of start {measurement.start_id} is not finite")
    return MeasurementRow(
        study_id=study_id,
        start_id=measurement.start_id,
        workload_key=measurement.workload_key,
        purpose=measurement.purpose.value,
        repeat=measurement.repeat,
        origin=measurement.origin.value,
        metrics=dict(measurement.metrics),
        missing=dict(measurement.missing),
        samples={name: list(values) for name, values in measurement.samples.items()},
        seconds=measurement.seconds,
    )


def measurement_of(row: MeasurementRow) -> Measurement:
    return Measurement(
        start_id=row.start_id,
        workload_key=row.workload_key,
        purpose=Purpose(row.purpose),
        repeat=row.repeat,
        origin=Origin(row.origin),
        metrics=row.metrics,
        missing=row.missing,
        samples={name: tuple(values) for name, values in row.samples.items()},
        seconds=row.seconds,
    )


def confirmation_row(study_id: str, confirmation: Confirmation) -> ConfirmationRow:
    body = _CONFIRMATION.dump_python(confirmation, mode="json")
    return ConfirmationRow(study_id=study_id, gpus=confirmation.gpus, body=body)


def confirmation_of(row: ConfirmationRow) -> Confirmation:
    return _CONFIRMATION.validate_python(row.body)


def event_row(study_id: str, at: datetime, kind: str, data: Mapping[str, object]) -> EventRow:
    """Raises ValueError for data that strict JSON cannot hold."""
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"event {kind!r} is not strict JSON: {error}") from error
    return EventRow(study_id=study_id, at=at, kind=kind, data=dict(data))


def event_of(row: EventRow) -> Event:
    return Event(id=row.id, study_id=row.study_id, at=row.at, kind=row.kind, data=dict(row.data))
