"""One contest as the loop lives it: its search, its baseline's values over time, what its trials came to.

A pure reading of trials and measurements; it runs nothing and writes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search_spaces.candidate import difference
from tuner.core.measurement import Measurement, Purpose, Start
from tuner.core.objective import Verdict, drift_corrected
from tuner.core.plan import Contest
from tuner.core.ports import Belief
from tuner.core.search import Search
from tuner.core.study_file import StudyFile
from tuner.core.trial import Measured, Trial


@dataclass(slots=True)
class ContestState:
    """trials: by number, the baseline included.   pending: numbers of trials without an outcome and without a start.
    baseline_runs: what the baseline's search and drift starts measured, by their place among the trials' numbers."""

    contest: Contest
    file: StudyFile
    search: Search
    trials: dict[int, Trial] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    baseline_runs: list[tuple[float, tuple[Measurement, ...]]] = field(default_factory=list)
    baseline: Trial | None = None
    tried: int = 0
    since_baseline: int = 0
    dead: str = ""

    @property
    def wants_more(self) -> bool:
        return not self.dead and self.tried < self.contest.trials and self.search.left > 0

    def add(self, trial: Trial) -> None:
        """A trial begins, or comes back from the tables."""
        self.trials[trial.number] = trial
        if trial.baseline:
            self.baseline = trial
        else:
            self.tried += 1
            self.since_baseline += 1
        if trial.outcome is None:
            self.pending.add(trial.number)

    def replace(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        if trial.baseline:
            self.baseline = trial

    def baseline_measured(self, at: float, runs: tuple[Measurement, ...]) -> None:
        """at: a trial's number, or between two. A run that yielded nothing is due again after the next trials."""
        if runs:
            self.baseline_runs.append((at, runs))
        self.since_baseline = 0

    def verdict(self, trial: Trial) -> Verdict | None:
        """None where the trial has no number, or nothing to compare it with."""
        if not isinstance(trial.outcome, Measured) or not self.baseline_runs:
            return None
        return drift_corrected(
            trial.outcome.measurements, trial.number, self.baseline_runs, self.file.objective, self.file.limits
        )

    def tell(self, trial: Trial) -> Verdict | None:
        """Tell the search what became of a trial."""
        verdict = self.verdict(trial)
        if verdict is None or verdict.value is None or not math.isfinite(verdict.value):
            self.search.tell(trial.key, None)
        else:
            self.search.tell(trial.key, math.log(verdict.value), worst_margin=verdict.worst_margin)
        return verdict

    def ranking(self) -> list[tuple[Trial, Verdict]]:
        """Trials that keep every limit and have a value, best first, the baseline included.

        Of equals, the one that changes least.
        """
        judged = [(trial, self.verdict(trial)) for trial in self.trials.values()]
        kept = [(trial, verdict) for trial, verdict in judged if verdict is not None and verdict.value is not None]
        feasible = [(trial, verdict) for trial, verdict in kept if verdict.feasible]
        return sorted(feasible, key=lambda pair: (-(pair[1].value or 0.0), self._changes(pair[0])))

    def _changes(self, trial: Trial) -> tuple[int, int]:
        return len(difference(trial.candidate, self.contest.baseline)), trial.number

    def nearest(self) -> tuple[Trial, Verdict] | None:
        """The trial that misses its limits by least."""
        judged = [(trial, self.verdict(trial)) for trial in self.trials.values()]
        known = [(trial, verdict) for trial, verdict in judged if verdict is not None]
        return max(known, key=lambda pair: (pair[1].worst_margin, -pair[0].number), default=None)


def rebuild(
    contest: Contest,
    file: StudyFile,
    *,
    trials: Sequence[Trial],
    starts: Sequence[Start],
    measurements: Sequence[Measurement],
    beliefs: Mapping[str, Belief],
) -> ContestState:
    """The state that the tables describe; the same for a study that begins and for one that is taken over."""
    search = Search(
        candidates=contest.candidates,
        trials=contest.trials,
        seed=file.seed + contest.gpus,
        seeds=contest.seeds,
        beliefs=beliefs,
    )
    state = ContestState(contest=contest, file=file, search=search)
    search.skip(contest.baseline_key)
    for trial in trials:
        if trial.gpus == contest.gpus:
            state.add(trial)
            search.skip(trial.key)
    if state.baseline is not None and isinstance(state.baseline.outcome, Measured):
        state.baseline_measured(state.baseline.number, state.baseline.outcome.measurements)
    by_start: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        by_start.setdefault(measurement.start_id, []).append(measurement)
    last = -1
    for start in sorted(starts, key=lambda start: start.opened_at):
        if start.gpus != contest.gpus:
            continue
        if start.purpose is Purpose.DRIFT and start.ended == "stopped":
            state.baseline_measured(last + 0.5, tuple(by_start.get(start.id, ())))
        elif start.purpose is Purpose.SEARCH and start.trial is not None:
            last = max(last, start.trial)
    state.since_baseline = sum(
        1 for number in state.trials if state.baseline_runs and number > state.baseline_runs[-1][0]
    )
    for trial in state.trials.values():
        if trial.outcome is not None:
            state.tell(trial)
    return state
