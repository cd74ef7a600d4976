"""Lead one contest from its search to its decision: fresh starts, then the output's quality, then the decision.

It runs what `confirm` schedules and stores what `confirm` decides. Everything it needs to go on after a crash is in
the tables: the schedule is fixed before its first start, and a start that its worker lost is made again.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tuner.core import confirm
from tuner.core.contest import ContestState
from tuner.core.decision import Confirmation, Decision, DecisionKind, QualityResult
from tuner.core.kernel_quality import output_checks
from tuner.core.measurement import FailureKind, Measurement, Origin, Start
from tuner.core.ports import Studies
from tuner.core.quality_run import UNCHECKED, check_output
from tuner.core.starts import Job, Starts
from tuner.core.study import Study
from tuner.core.trial import Failed, Trial

SLOT_ATTEMPTS = 3  # starts for one place of the schedule, where each failure may have been bad luck

Tell = Callable[[str, Mapping[str, object]], None]


class Confirming:
    """The confirmations of one study."""

    def __init__(self, study: Study, starts: Starts, studies: Studies, origin: Origin, tell: Tell) -> None:
        self._study = study
        self._starts = starts
        self._studies = studies
        self._origin = origin
        self._tell = tell
        self._terms = confirm.Terms.of(study.file)

    def run(self, state: ContestState) -> None:
        """Write the contest's decision, unless it has one already."""
        known = next((c for c in self._studies.confirmations(self._study.id) if c.gpus == state.contest.gpus), None)
        if known is not None and known.decision is not None:
            return
        early = None if known is not None else self._without_starts(state)
        if early is not None:
            self._save(_unplanned(early), early)
            return
        confirmation = known or self._plan(state)
        trials = {trial.key: trial for trial in state.trials.values()}
        self._fill(confirmation, trials)
        quality: tuple[QualityResult, ...] = ()
        if self._study.file.problems:
            passing = confirm.passing(confirmation, *self._evidence(), self._terms)
            quality = output_checks(passing, *self._evidence())
        elif self._study.file.quality.enabled:
            quality = self._quality(confirmation, trials)
        decision = confirm.decide(confirmation, *self._evidence(), self._terms, quality=quality)
        if self._origin is not Origin.MEASURED:
            decision = replace(self._not_measured(state), comparisons=decision.comparisons)
        self._save(replace(confirmation, quality=quality), decision)

    def _without_starts(self, state: ContestState) -> Decision | None:
        """The decision where there is nothing to confirm: no baseline, nothing measured, nothing that keeps the limits,
        or nothing that looks better."""
        gpus, baseline = state.contest.gpus, state.contest.baseline_key
        if state.dead:
            return Decision(
                kind=DecisionKind.NOT_MEASURED, gpus=gpus, baseline_key=baseline, winner_key=None, sentence=state.dead
            )
        ranking = state.ranking()
        if not ranking:
            return self._infeasible(state)
        if self._origin is Origin.PREDICTED or (self._origin is not Origin.MEASURED and not _finalists(state)):
            return self._not_measured(state)
        if not _finalists(state):
            return Decision(
                kind=DecisionKind.NO_VALIDATED_IMPROVEMENT,
                gpus=gpus,
                baseline_key=baseline,
                winner_key=None,
                sentence="no validated improvement: no candidate was faster than the baseline in the search",
                estimate=(ranking[0][1].value or 1.0) - 1,
            )
        return None

    def _not_measured(self, state: ContestState) -> Decision:
        """The search's best, called what it is. A recording may be confirmed as far as its passes go; that is computed
        beside it and validates nothing."""
        best, verdict = state.ranking()[0]
        estimate = (verdict.value or 1.0) - 1
        return Decision(
            kind=DecisionKind.NOT_MEASURED,
            gpus=state.contest.gpus,
            baseline_key=state.contest.baseline_key,
            winner_key=best.key,
            sentence=f"nothing was measured: the numbers are {self._origin}; the best of them is {estimate:+.1%}",
            estimate=estimate,
        )

    def _infeasible(self, state: ContestState) -> Decision:
        nearest = state.nearest()
        sentence = "no candidate has a value for the objective and every limit"
        if nearest is not None:
            missed = "; ".join(nearest[1].reasons) or "a limited metric has no value"
            sentence = (
                f"no candidate keeps every limit, the baseline included; nearest is trial {nearest[0].number}: {missed}"
            )
        measured = self._origin is Origin.MEASURED
        return Decision(
            kind=DecisionKind.INFEASIBLE if measured else DecisionKind.NOT_MEASURED,
            gpus=state.contest.gpus,
            baseline_key=state.contest.baseline_key,
            winner_key=nearest[0].key if nearest is not None else None,
            sentence=sentence if measured else f"nothing was measured ({self._origin}), and {sentence}",
        )

    def _plan(self, state: ContestState) -> Confirmation:
        confirmation = confirm.plan(
            self._study.file.confirm,
            gpus=state.contest.gpus,
            baseline_key=state.contest.baseline_key,
            finalists=_finalists(state),
            seed=self._study.file.seed,
        )
        self._studies.save_confirmation(self._starts.lease, confirmation)
        starts = len(confirm.schedule(confirmation))
        self._tell(
            "confirming",
            {"gpus": confirmation.gpus, "finalists": len(confirmation.finalists), "starts": starts},
        )
        return confirmation

    def _fill(self, confirmation: Confirmation, trials: Mapping[str, Trial]) -> None:
        """Make every start that the schedule lacks and that can still change the decision; give up at the first place
        that cannot be filled."""
        places = len(confirm.schedule(confirmation))
        while True:
            starts, measurements = self._evidence()
            missing = confirm.slots_left(confirmation, starts, measurements, self._terms)
            if not missing:
                return
            slot = missing[0]
            failed = [s for s in starts if s.slot == slot.index and s.gpus == confirmation.gpus and s.excluded]
            if len(failed) >= SLOT_ATTEMPTS or any(_hopeless(start) for start in failed):
                return
            trial = trials[slot.candidate_key]
            self._starts.run(
                Job(
                    candidate=trial.candidate,
                    gpus=confirmation.gpus,
                    purpose=slot.purpose,
                    runs=tuple(
                        (workload, repeat)
                        for workload in self._study.file.workloads
                        for repeat in range(self._study.file.repeats)
                    ),
                    trial=trial.number,
                    slot=slot.index,
                    fresh=True,
                )
            )
            self._tell(
                "slot_done",
                {
                    "gpus": confirmation.gpus,
                    "done": places - len(missing) + 1,
                    "starts": places,
                    "side": "baseline" if trial.baseline else f"candidate {trial.number}",
                },
            )

    def _quality(self, confirmation: Confirmation, trials: Mapping[str, Trial]) -> tuple[QualityResult, ...]:
        """Of the finalists that the starts alone would validate, best first, until one passes."""
        results: list[QualityResult] = []
        for key in confirm.passing(confirmation, *self._evidence(), self._terms):
            self._tell("quality_checking", {"gpus": confirmation.gpus, "candidate": f"candidate {trials[key].number}"})
            found = check_output(
                self._starts, self._study.file, candidate=trials[key], baseline=trials[confirmation.baseline_key]
            )
            if isinstance(found, Failed):
                found = (_unchecked(key, found),)
            results += found
            if all(result.passed for result in found):
                break
        return tuple(results)

    def _evidence(self) -> tuple[list[Start], list[Measurement]]:
        return list(self._studies.starts(self._study.id)), list(self._studies.measurements(self._study.id))

    def _save(self, confirmation: Confirmation, decision: Decision) -> None:
        self._studies.save_confirmation(self._starts.lease, replace(confirmation, decision=decision))
        self._tell("decided", {"gpus": decision.gpus, "kind": decision.kind, "sentence": decision.sentence})


def _finalists(state: ContestState) -> list[str]:
    """Keys of the candidates that keep every limit and looked better than the baseline, best first."""
    return [trial.key for trial, verdict in state.ranking() if not trial.baseline and (verdict.value or 0.0) > 1.0]


def _hopeless(start: Start) -> bool:
    """Whether the same start would fail again."""
    kind = start.ended or ""
    return kind in tuple(FailureKind) and not FailureKind(kind).retried


def _unplanned(decision: Decision) -> Confirmation:
    return Confirmation(
        gpus=decision.gpus, baseline_key=decision.baseline_key, finalists=(), starts=0, noise_starts=0, seed=0
    )


def _unchecked(key: str, failed: Failed) -> QualityResult:
    """An output that could not be made is not a good one."""
    return QualityResult(
        name=UNCHECKED,
        candidate_key=key,
        value=1.0,
        limit=0.0,
        unit="failures",
        passed=False,
        detail=f"{failed.kind}: {failed.sentence}",
    )
