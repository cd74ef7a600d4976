"""What a user can do with studies, whatever the door: open, cancel, look at, export. Knows no HTTP and no terminal."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.candidate import difference
from tuner.core import card, vllm_args
from tuner.core.comparability import stale_reasons
from tuner.core.decision import Confirmation, Decision, DecisionKind
from tuner.core.events import searches_stopped
from tuner.core.export import NothingToExportError, Subject, chosen
from tuner.core.measurement import Fingerprint, Origin, Start
from tuner.core.objective import Verdict, judge
from tuner.core.ports import Clock, Studies
from tuner.core.study import Study, UnknownStudyError
from tuner.core.study_file import StudyFile, StudyFileError
from tuner.core.trial import Measured, Trial


def open_studies(file: StudyFile, studies: Studies, clock: Clock, *, new: bool = False) -> list[Study]:
    """The unfinished study of that file, or a new one; with several `problems`, one study each under one group."""
    return [_open(part, studies, clock, new=new, group=group) for part, group in _parts(file)]


def proposed(file: StudyFile, studies: Studies, clock: Clock, *, new: bool = False) -> list[Study]:
    """The studies that `open_studies` would return; those that are new are not stored yet."""
    return [_propose(part, studies, clock, new=new, group=group)[0] for part, group in _parts(file)]


def _parts(file: StudyFile) -> list[tuple[StudyFile, str | None]]:
    parts = file.parts
    return [(part, file.key if len(parts) > 1 else None) for part in parts]


def _open(file: StudyFile, studies: Studies, clock: Clock, *, new: bool, group: str | None) -> Study:
    study, is_new = _propose(file, studies, clock, new=new, group=group)
    if is_new:
        studies.create(study)
    return study


def _propose(file: StudyFile, studies: Studies, clock: Clock, *, new: bool, group: str | None) -> tuple[Study, bool]:
    """And whether it is new."""
    unfinished = None if new else studies.unfinished(file.key)
    if unfinished is not None:
        return unfinished, False
    study = Study(
        id=secrets.token_hex(4),
        name=file.name,
        file=file,
        file_key=file.key,
        created_at=clock.now(),
        group=group,
    )
    return study, True


def resolve(studies: Studies, text: str) -> str:
    """A study's id from its beginning.

    Raises:
        UnknownStudyError: no study, or several, begin like that.
    """
    try:
        return studies.get(text).id
    except UnknownStudyError:
        found = [study.id for study in studies.find(limit=1000) if text and study.id.startswith(text)]
    if len(found) != 1:
        raise UnknownStudyError(
            f"no study has the id {text!r}" if not found else f"{text!r} begins several ids: {found}"
        )
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A contest as it stands. best: the trial that leads the search, with its verdict; None before any has a value."""

    gpus: int
    baseline: Trial | None
    best: Trial | None
    verdict: Verdict | None
    confirmation: Confirmation | None
    trials: int
    stopped: str = ""

    @property
    def decision(self) -> Decision | None:
        return self.confirmation.decision if self.confirmation is not None else None


def outlook(studies: Studies, study: Study, trials: Sequence[Trial] | None = None) -> list[Outlook]:
    """One for each GPU count, from the tables alone. trials: all of the study's, where they were read already."""
    if trials is None:
        trials = studies.trials(study.id)
    confirmations = {confirmation.gpus: confirmation for confirmation in studies.confirmations(study.id)}
    stopped = searches_stopped(studies, study.id)
    found = []
    for gpus in sorted({trial.gpus for trial in trials}):
        mine = [trial for trial in trials if trial.gpus == gpus]
        baseline = next((trial for trial in mine if trial.baseline), None)
        confirmation = confirmations.get(gpus)
        best, verdict = _best(study.file, mine, baseline)
        found.append(
            Outlook(
                gpus=gpus,
                baseline=baseline,
                best=best,
                verdict=verdict,
                confirmation=confirmation,
                trials=len(mine),
                stopped=stopped.get(gpus, ""),
            )
        )
    return found


def _best(file: StudyFile, trials: Sequence[Trial], baseline: Trial | None) -> tuple[Trial | None, Verdict | None]:
    if baseline is None or not isinstance(baseline.outcome, Measured):
        return None, None
    best: tuple[Trial | None, Verdict | None] = (None, None)
    for trial in trials:
        if not isinstance(trial.outcome, Measured):
            continue
        verdict = judge(trial.outcome.measurements, baseline.outcome.measurements, file.objective, file.limits)
        if verdict.value is None or not verdict.feasible:
            continue
        if best[0] is None or best[1] is None or _order(trial, verdict, baseline) < _order(best[0], best[1], baseline):
            best = (trial, verdict)
    return best


def _order(trial: Trial, verdict: Verdict, baseline: Trial) -> tuple[float, int, int]:
    """Best first; of equals, the one that changes least."""
    return -(verdict.value or 0.0), len(difference(trial.candidate, baseline.candidate)), trial.number


def subject(studies: Studies, study: Study, *, gpus: int | None = None, allow_unvalidated: bool = False) -> Subject:
    """What `tuner export-config` writes.

    gpus: whose decision; the largest GPU count where None.

    Raises:
        NothingToExportError: nothing was measured and confirmed, and unvalidated ones were not asked for.
        StudyFileError: no decision for that GPU count.
    """
    decided = {c.gpus: c.decision for c in studies.confirmations(study.id) if c.decision is not None}
    if not decided:
        raise NothingToExportError(f"study {study.id} is {study.state}: it has no decision yet")
    gpus = max(decided) if gpus is None else gpus
    decision = decided.get(gpus)
    if decision is None:
        raise StudyFileError(f"study {study.id} has no decision for {gpus} GPUs; it has for {sorted(decided)}")
    candidates = {trial.key: trial.candidate for trial in studies.trials(study.id)}
    key = chosen(decision, allow_unvalidated=allow_unvalidated)
    start = _start_of(studies, study, key)
    file = study.file
    return Subject(
        study=study,
        decision=decision,
        candidate=candidates[key],
        baseline=candidates[decision.baseline_key],
        origin=origin_of(study),
        model=model_of(file),
        nodes=nodes_of(file),
        fingerprint=start.fingerprint if start is not None else None,
        environment={**file.engine.environment, **(start.fingerprint.settings if start is not None else {})},
        other_gpus=tuple(other for other in sorted(decided) if other != gpus),
    )


def staleness(studies: Studies, study: Study, now: Callable[[int], Fingerprint]) -> dict[int, list[str]]:
    """GPU count to what has changed since its winner was validated; empty lists where nothing has.

    now: the fingerprint that a start on so many GPUs would have today.
    """
    found = {}
    for gpus, decision in _validated(studies, study).items():
        start = _start_of(studies, study, decision.winner_key or "")
        if start is not None:
            found[gpus] = stale_reasons(start.fingerprint, now(gpus))
    return found


def revalidate(studies: Studies, study: Study, clock: Clock) -> Study:
    """Open a study that measures the winners and their baselines again, and nothing else.

    Raises:
        NothingToExportError: the study has validated nothing.
    """
    winners = [decision.winner_key for decision in _validated(studies, study).values()]
    if not winners:
        raise NothingToExportError(f"study {study.id} has validated nothing that could be measured again")
    candidates = {trial.key: trial.candidate for trial in studies.trials(study.id)}
    file = study.file.model_copy(
        update={
            "candidates": tuple(candidates[key].values() for key in winners if key is not None),
            "budget": study.file.budget.model_copy(update={"trials": len(winners)}),
        }
    )
    return _open(file, studies, clock, new=True, group=study.id)


def _validated(studies: Studies, study: Study) -> dict[int, Decision]:
    decided = [c.decision for c in studies.confirmations(study.id) if c.decision is not None]
    return {decision.gpus: decision for decision in decided if decision.kind is DecisionKind.VALIDATED}


def evidence_card(studies: Studies, what: Subject) -> dict[str, Any] | None:
    """The card of a decision; None where nothing was measured for it."""
    confirmation = next((c for c in studies.confirmations(what.study.id) if c.gpus == what.decision.gpus), None)
    if confirmation is None or what.origin is not Origin.MEASURED:
        return None
    return card.make(what, confirmation, studies.starts(what.study.id), studies.measurements(what.study.id))


def origin_of(study: Study) -> Origin:
    """Of a study's numbers; by its evaluator, which is one for all of them."""
    return {"predicted": Origin.PREDICTED, "recorded": Origin.RECORDED}.get(study.file.evaluator, Origin.MEASURED)


def model_of(file: StudyFile) -> vllm_args.ModelRef:
    return vllm_args.ModelRef(
        model=file.model, trust_remote_code=file.engine.trust_remote_code, extra=dict(file.engine.options)
    )


def nodes_of(file: StudyFile) -> vllm_args.Nodes:
    return vllm_args.Nodes(gpu=file.hardware.gpu, gpus_per_node=file.hardware.gpus_per_node)


def _start_of(studies: Studies, study: Study, key: str) -> Start | None:
    """The candidate's last start that ended well."""
    starts = [s for s in studies.starts(study.id) if s.candidate_key == key and s.ended == "stopped"]
    return max(starts, key=lambda start: start.opened_at, default=None)
