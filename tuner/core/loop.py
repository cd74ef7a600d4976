"""The one loop: from a claimed study to its decisions. The only writer of its study; knows no engine and no table.

`tuner run` and the workers of a service run the same loop. It starts from what the tables say, so a study that was
interrupted goes on: open starts of the dead worker are reaped and closed as lost, an unfinished trial is run again
without the runs that it already has, and nothing is measured twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from search_spaces.candidate import Candidate, candidate_key
from tuner.core.confirming import Confirming
from tuner.core.contest import ContestState, rebuild
from tuner.core.events import SEARCH_STOPPED, searches_stopped
from tuner.core.measurement import FailureKind, Measurement, Origin, Process, Purpose
from tuner.core.plan import DRIFT_EVERY, Contest, Plan, confirmation_starts, plan, refuse_hopeless
from tuner.core.ports import Belief, Check, Clock, Evaluator, Prior, Studies
from tuner.core.starts import Finished, Job, Starts, StudyCancelledError
from tuner.core.study import Lease, Study, StudyState
from tuner.core.trial import Failed, Measured, Outcome, Rejected, Trial

ATTEMPTS = 2  # of a trial whose failure may have been bad luck
INFRASTRUCTURE_IN_A_ROW = 4  # then the machine is at fault, not the candidates

Progress = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a loop is put together from.

    reap: end a process, and all that came of it, that a dead worker left behind; true where it was alive.
    progress: told of each event after it was committed.
    pulse: called again and again while starts are waited for; what it raises ends the loop, engines first.
    """

    studies: Studies
    evaluator: Evaluator
    clock: Clock
    reap: Callable[[Process], bool]
    checks: Sequence[Check] = ()
    prior: Prior | None = None
    progress: Progress = lambda _kind, _data: None
    pulse: Callable[[], None] = lambda: None


class StudyFailedError(Exception):
    """Nothing more can be learnt; the message says why."""


class Loop:
    """One study under one lease, from wherever it stands to its end."""

    def __init__(self, study: Study, lease: Lease, parts: Parts) -> None:
        self._study = study
        self._file = study.file
        self._parts = parts
        self._studies = parts.studies
        self._starts = Starts(
            study=study,
            lease=lease,
            studies=parts.studies,
            evaluator=parts.evaluator,
            clock=parts.clock,
            pulse=parts.pulse,
        )
        self._measured = parts.evaluator.origin is Origin.MEASURED
        self._drifting: set[int] = set()
        self._next_number = 0
        self._infrastructure_in_a_row = 0

    @property
    def lease(self) -> Lease:
        return self._starts.lease

    def run(self) -> None:
        """Raises StudyFailedError, StudyCancelledError or LeaseLostError; on any exception every engine is gone."""
        try:
            self._run()
        except BaseException:
            self._starts.abort()
            raise

    def _run(self) -> None:
        what = plan(self._file, self._parts.checks)
        refuse_hopeless(self._file, what.cost)
        self._recover()
        if self._studies.get(self._study.id).cancel_requested:  # of the worker that died before it could obey
            raise StudyCancelledError(self._study.id)
        if self._studies.get(self._study.id).state in (StudyState.QUEUED, StudyState.RUNNING):
            self._studies.set_state(self.lease, StudyState.RUNNING)
            self._event("study_running", {"points": what.points, "feasible": what.feasible})
        trials = self._studies.trials(self._study.id)
        self._next_number = trials[-1].number + 1 if trials else 0
        states = [self._state_of(contest, what, trials) for contest in what.contests]
        stopped = searches_stopped(self._studies, self._study.id)
        for state in states:
            state.stopped = stopped.get(state.contest.gpus, "")
        self._search(states, what)
        self._studies.set_state(self.lease, StudyState.CONFIRMING)
        self._event("study_confirming", {})
        confirming = Confirming(self._study, self._starts, self._studies, self._parts.evaluator.origin, self._event)
        for state in states:
            confirming.run(state)
        if all(state.dead for state in states):
            raise StudyFailedError("; ".join(dict.fromkeys(state.dead for state in states)))
        self._studies.set_state(self.lease, StudyState.DONE)
        self._event("study_done", {})

    def _recover(self) -> None:
        for start in self._studies.starts(self._study.id):
            if start.ended is not None:
                continue
            alive = start.process is not None and self._parts.reap(start.process)
            lost = replace(start, ended="lost", excluded="its worker died" if start.slot is not None else "")
            self._studies.update_start(self.lease, lost)
            self._event("start_lost", {"start": start.id, "was_alive": alive})

    def _state_of(self, contest: Contest, what: Plan, trials: Sequence[Trial]) -> ContestState:
        beliefs: dict[str, Belief] = {}
        if self._parts.prior is not None:
            believed = ((c, self._parts.prior(c, what.workloads)) for c in contest.candidates)
            beliefs = {candidate_key(c): belief for c, belief in believed if belief is not None}
        return rebuild(
            contest,
            self._file,
            trials=trials,
            starts=self._studies.starts(self._study.id),
            measurements=self._studies.measurements(self._study.id, purpose=Purpose.DRIFT),
            beliefs=beliefs,
        )

    def _search(self, states: Sequence[ContestState], what: Plan) -> None:
        for state in states:
            self._baseline_first(state)
        while True:
            job = self._next(states, what) if self._starts.in_flight < self._file.parallel else None
            if job is not None:
                self._starts.submit(job)
            elif self._starts.in_flight:
                self._settle(self._starts.wait(), states)
            else:
                return

    def _baseline_first(self, state: ContestState) -> None:
        """A contest without a baseline has nothing to compare with, so it ends before it begins."""
        trial = state.baseline or self._begin(state, state.contest.baseline, "baseline", baseline=True)
        while trial.outcome is None:
            job = self._job(state, trial)
            if job is not None:
                self._settle(self._starts.run(job), [state])
            trial = state.trials[trial.number]
        if isinstance(trial.outcome, Measured):
            return
        reason = trial.outcome.reasons[0].sentence if isinstance(trial.outcome, Rejected) else trial.outcome.sentence
        state.dead = f"the baseline for {state.contest.gpus} GPUs could not be measured: {reason}"
        self._event("baseline_failed", {"gpus": state.contest.gpus, "reason": reason})

    def _next(self, states: Sequence[ContestState], what: Plan) -> Job | None:
        """The next start to make: an interrupted trial, a baseline that is due, or a new candidate."""
        living = [state for state in states if not state.dead]
        for state in living:
            for number in sorted(state.pending):
                job = self._job(state, state.trials[number])
                if job is not None:
                    return job
        hungry = [state for state in living if state.wants_more and self._affordable(state, what)]
        while hungry:
            state = min(hungry, key=lambda s: s.tried / s.contest.trials)
            if self._measured and state.since_baseline >= DRIFT_EVERY and state.contest.gpus not in self._drifting:
                return self._drift_job(state)
            choice = state.search.ask()
            if choice is not None:
                trial = self._begin(state, choice.candidate, choice.why)
                job = self._job(state, trial) if trial.outcome is None else None
                if job is not None:
                    return job
            if choice is None or not state.wants_more:
                hungry.remove(state)
        return None

    def _affordable(self, state: ContestState, what: Plan) -> bool:
        """Whether one more start leaves enough GPU hours for every confirmation."""
        budget = self._file.budget.gpu_hours
        if budget is None or not self._measured:
            return True
        per_start = self._starts.longest_held_s
        confirmation = sum(confirmation_starts(self._file).values())
        promised = sum(confirmation * contest.gpus * per_start for contest in what.contests)
        return self._starts.gpu_seconds + promised + state.contest.gpus * per_start <= budget * 3600

    def _begin(self, state: ContestState, candidate: Candidate, why: str, *, baseline: bool = False) -> Trial:
        """A new row; with its outcome at once where a check refuses the candidate."""
        reasons = tuple(reason for check in self._parts.checks for reason in check(candidate))
        trial = Trial(
            number=self._next_number,
            candidate=candidate,
            key=candidate_key(candidate),
            gpus=state.contest.gpus,
            baseline=baseline,
            chosen_by=why,
            outcome=Rejected(reasons=reasons) if reasons else None,
        )
        self._studies.add_trial(self._starts.lease, trial)
        self._next_number += 1
        state.add(trial)
        if reasons:
            self._event("trial_rejected", {"trial": trial.number, "reason": reasons[0].sentence})
        else:
            self._event("trial_started", {"trial": trial.number, "gpus": trial.gpus, "why": why})
        return trial

    def _job(self, state: ContestState, trial: Trial) -> Job | None:
        """The runs that the trial still lacks; where it lacks none, its outcome is written at once."""
        state.pending.discard(trial.number)
        have = {(m.workload_key, m.repeat) for m in self._measurements_of(trial)}
        runs = tuple(
            (workload, repeat)
            for repeat in range(self._file.repeats)
            for workload in self._file.workloads
            if (workload.key, repeat) not in have
        )
        if not runs:
            self._finish(state, trial, Measured(measurements=tuple(self._measurements_of(trial))))
            return None
        may_stop = self._measured and not trial.baseline and not have
        return Job(
            candidate=trial.candidate,
            gpus=trial.gpus,
            purpose=Purpose.SEARCH,
            runs=runs,
            trial=trial.number,
            enough=partial(state.cannot_win, trial.number) if may_stop else None,
        )

    def _drift_job(self, state: ContestState) -> Job:
        baseline = state.baseline
        assert baseline is not None
        self._drifting.add(state.contest.gpus)
        runs = tuple((workload, repeat) for workload in self._file.workloads for repeat in range(self._file.repeats))
        return Job(
            candidate=baseline.candidate,
            gpus=baseline.gpus,
            purpose=Purpose.DRIFT,
            runs=runs,
            trial=baseline.number,
        )

    def _settle(self, finished: Finished, states: Sequence[ContestState]) -> None:
        state = next(state for state in states if state.contest.gpus == finished.job.gpus)
        if finished.job.purpose is Purpose.DRIFT:
            self._settle_drift(state, finished)
            return
        assert finished.job.trial is not None
        trial = state.trials[finished.job.trial]
        failed = finished.failed
        if failed is not None and failed.kind.retried and trial.attempts < ATTEMPTS:
            self._studies.retry_trial(self._starts.lease, trial.number)
            state.replace(replace(trial, attempts=trial.attempts + 1))
            state.pending.add(trial.number)
            self._event("trial_retried", {"trial": trial.number, "kind": failed.kind, "reason": failed.sentence})
            return
        outcome = failed or Measured(measurements=tuple(self._measurements_of(trial)))
        self._finish(state, trial, outcome)

    def _settle_drift(self, state: ContestState, finished: Finished) -> None:
        self._drifting.discard(state.contest.gpus)
        state.baseline_measured(max(state.trials) + 0.5, finished.measurements if finished.failed is None else ())
        self._event("baseline_measured_again", {"gpus": state.contest.gpus, "failed": finished.failed is not None})
        if not self._file.budget.stop_early or not state.wants_more:
            return
        state.stopped = state.why_stop()
        if state.stopped:
            self._event(SEARCH_STOPPED, {"gpus": state.contest.gpus, "reason": state.stopped})

    def _finish(self, state: ContestState, trial: Trial, outcome: Outcome) -> None:
        self._studies.finish_trial(self._starts.lease, trial.number, outcome)
        trial = replace(trial, outcome=outcome)
        state.replace(trial)
        if trial.baseline and isinstance(outcome, Measured):
            state.baseline_measured(trial.number, outcome.measurements)
        verdict = state.tell(trial)
        data: dict[str, object] = {"trial": trial.number, "gpus": trial.gpus, "baseline": trial.baseline}
        if isinstance(outcome, Failed):
            data.update(outcome="failed", kind=outcome.kind, reason=outcome.sentence)
        elif verdict is not None:
            data.update(outcome="measured", ratio=verdict.value, feasible=verdict.feasible)
        self._event("trial_finished", data)
        self._watch_the_machine(outcome)

    def _watch_the_machine(self, outcome: Outcome) -> None:
        infrastructure = isinstance(outcome, Failed) and outcome.kind is FailureKind.INFRASTRUCTURE
        self._infrastructure_in_a_row = self._infrastructure_in_a_row + 1 if infrastructure else 0
        if infrastructure and self._infrastructure_in_a_row >= INFRASTRUCTURE_IN_A_ROW:
            assert isinstance(outcome, Failed)
            raise StudyFailedError(
                f"{INFRASTRUCTURE_IN_A_ROW} trials in a row failed for reasons of the machine: {outcome.sentence}"
            )

    def _measurements_of(self, trial: Trial) -> Sequence[Measurement]:
        return self._studies.measurements(self._study.id, purpose=Purpose.SEARCH, trial=trial.number)

    def _event(self, kind: str, data: Mapping[str, object]) -> None:
        self._studies.add_event(self._study.id, kind, data)
        self._parts.progress(kind, data)
