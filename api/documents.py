"""Nouns to what the service answers with. Reads; decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from api.schemas import (
    AuditDocument,
    BestDocument,
    ComparisonContest,
    ComparisonDocument,
    ContestDocument,
    Counts,
    DecisionDocument,
    FingerprintDocument,
    MeasurementDocument,
    ReasonDocument,
    RowDocument,
    SideDocument,
    StartDocument,
    StudyDocument,
    StudySummary,
    Submitted,
    TrialDocument,
    TrialSummary,
)
from api.standing import Best
from search_spaces.candidate import difference
from tuner.core.access import AuditEntry
from tuner.core.decision import Confirmation, Decision
from tuner.core.measurement import Measurement, Start
from tuner.core.side_by_side import means, rows
from tuner.core.study import Study
from tuner.core.trial import Failed, Measured, Rejected, Trial, fell_back
from tuner.core.use_cases import Outlook, origin_of


def submitted(studies: Sequence[Study]) -> Submitted:
    return Submitted(
        study=studies[0].id,
        group=studies[0].group,
        studies=[Submitted.One(study=s.id, name=s.name, url=f"/v1/studies/{s.id}") for s in studies],
    )


def summary(
    study: Study,
    counts: Mapping[int, Mapping[str, int]],
    best: Mapping[int, Best],
    confirmations: Sequence[Confirmation],
) -> StudySummary:
    decided = {c.gpus: c.decision for c in confirmations if c.decision is not None}
    return StudySummary(
        study=study.id,
        name=study.name,
        state=study.state,
        reason=study.reason,
        owner=study.owner,
        group=study.group,
        evaluator=study.file.evaluator,
        origin=origin_of(study),
        created_at=study.created_at,
        cancel_requested=study.cancel_requested,
        trials_budget=study.file.budget.trials,
        contests=[
            ContestDocument(
                gpus=gpus,
                trials=Counts(**counts.get(gpus, {})),
                best=BestDocument(trial=best[gpus].trial, ratio=best[gpus].ratio) if gpus in best else None,
                decision=decision(decided.get(gpus)),
            )
            for gpus in sorted({*counts, *decided})
        ],
    )


def study(of: StudySummary, study: Study) -> StudyDocument:
    return StudyDocument(**dict(of), file=study.file.model_dump(mode="json"))


def decision(of: Decision | None) -> DecisionDocument | None:
    if of is None:
        return None
    shown = next((c for c in of.comparisons if c.candidate_key == of.winner_key), None)
    return DecisionDocument(
        kind=of.kind,
        sentence=of.sentence,
        winner_key=of.winner_key,
        baseline_key=of.baseline_key,
        gain=shown.gain if shown else None,
        lower=shown.lower if shown else None,
        upper=shown.upper if shown else None,
        qualifier=of.qualifier,
    )


def trial(of: Trial) -> TrialSummary:
    outcome = of.outcome
    failed = outcome if isinstance(outcome, Failed) else None
    return TrialSummary(
        number=of.number,
        key=of.key,
        gpus=of.gpus,
        baseline=of.baseline,
        chosen_by=of.chosen_by,
        attempts=of.attempts,
        config=of.candidate.values(),
        outcome=_OUTCOMES[type(outcome)],
        metrics=means(of),
        fell_back=fell_back(of),
        reasons=[ReasonDocument(**asdict(r)) for r in outcome.reasons] if isinstance(outcome, Rejected) else [],
        kind=failed.kind if failed else None,
        reason=failed.sentence if failed else "",
    )


_OUTCOMES: Mapping[type, str] = {
    type(None): "running",
    Rejected: "rejected",
    Failed: "failed",
    Measured: "measured",
}


def trial_detail(of: Trial, starts: Sequence[Start], measured: Sequence[Measurement]) -> TrialDocument:
    """measured: of those starts, whatever their purpose."""
    evidence = of.outcome.evidence if isinstance(of.outcome, Failed) else ""
    return TrialDocument(**dict(trial(of)), evidence=evidence, starts=[_start(s, measured) for s in starts])


def _start(of: Start, measured: Sequence[Measurement]) -> StartDocument:
    return StartDocument(
        start=of.id,
        purpose=of.purpose,
        opened_at=of.opened_at,
        ready_s=of.ready_s,
        held_s=of.held_s,
        ended=of.ended,
        excluded=of.excluded,
        command=list(of.command),
        fingerprint=FingerprintDocument(**asdict(of.fingerprint)),
        measurements=[
            MeasurementDocument(
                workload=m.workload_key,
                purpose=m.purpose,
                repeat=m.repeat,
                origin=m.origin,
                metrics=dict(m.metrics),
                missing=dict(m.missing),
                samples={name: list(values) for name, values in m.samples.items()},
                seconds=m.seconds,
            )
            for m in measured
            if m.start_id == of.id
        ],
    )


def comparison(of: Study, views: Sequence[Outlook]) -> ComparisonDocument:
    best = {view.gpus: view.best for view in views if view.best is not None}
    return ComparisonDocument(
        study=of.id,
        objective=of.file.objective.metric,
        origin=origin_of(of),
        contests=[_contest(view) for view in views],
        side_by_side=[
            RowDocument(
                gpus=row.gpus,
                workload=row.workload_key,
                replicas=row.replicas,
                users=row.users,
                per_user=row.per_user,
                per_gpu=row.per_gpu,
            )
            for row in rows(best, of.file.hardware.gpus)
        ],
    )


def _contest(view: Outlook) -> ComparisonContest:
    both = view.best is not None and view.baseline is not None
    return ComparisonContest(
        gpus=view.gpus,
        baseline=_side(view.baseline),
        best=_side(view.best),
        differs=difference(view.best.candidate, view.baseline.candidate) if both else {},  # type: ignore[union-attr]
        ratios=dict(view.verdict.ratios) if view.verdict else {},
        margins=dict(view.verdict.margins) if view.verdict else {},
        decision=decision(view.decision),
    )


def _side(of: Trial | None) -> SideDocument | None:
    if of is None:
        return None
    return SideDocument(trial=of.number, key=of.key, config=of.candidate.values(), metrics=means(of))


def audit(of: AuditEntry) -> AuditDocument:
    return AuditDocument(**{**asdict(of), "detail": dict(of.detail)})
