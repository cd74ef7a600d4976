"""One contest as the loop lives it: its search, its baseline's values over time, what its trials came to.

A pure reading of trials and measurements; it runs nothing and writes nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search_spaces.candidate import difference
from tuner.core.measurement import Measurement, Purpose, Start
from tuner.core.objective import Verdict, drift_corrected, judge
from tuner.core.paired import start_spread
from tuner.core.plan import Contest
from tuner.core.ports import Belief
from tuner.core.search import Search
from tuner.core.stopping import why_stop
from tuner.core.study_file import StudyFile
from tuner.core.trial import Measured, Trial

FREEDOM_NEEDED = 3  # repeats of the baseline beyond the first of each start and workload; fewer show no noise by chance
LEAST_NOISE = (
    0.005  # a run is never quieter than 0.5 % (0.4 % within one start on an H200 at concurrency 1, 2026-12-01)
)
BASELINES_NEEDED = 3  # its starts in the search, before anything is said of their noise
NOISES_APART = 4.0  # a candidate that is so many standard deviations below the best is not worth its other repeats


@dataclass(slots=True)
class ContestState:
    """trials: by number, the baseline included.   pending: numbers of trials without an outcome and without a start.
    baseline_runs: what the baseline's search and drift starts measured, by their place among the trials' numbers.
    best: ratio of the best trial that keeps every limit, the baseline's 1 at least.   stopped: why the rest of the
    search was not worth its starts, where it was not."""

    contest: Contest
    file: StudyFile
    search: Search
    trials: dict[int, Trial] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    baseline_runs: list[tuple[float, tuple[Measurement, ...]]] = field(default_factory=list)
    baseline: Trial | None = None
    tried: int = 0
    since_baseline: int = 0
    best: float = 1.0
    dead: str = ""
    stopped: str = ""

    @property
    def wants_more(self) -> bool:
        return not self.dead and not self.stopped and self.tried < self.contest.trials and self.search.left > 0

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

    def cannot_win(self, number: int, measured: Sequence[Measurement]) -> str:
        """Why further repeats of a trial would be wasted; empty while it may still win, or too little is known.

        Asked after each run, it speaks only when every workload has been run equally often, and only where the
        baseline's own repeats say how noisy a run is.
        """
        counts = Counter(run.workload_key for run in measured)
        noise = self.run_noise()
        if noise is None or len(counts) < len(self.file.workloads) or len(set(counts.values())) != 1:
            return ""
        verdict = drift_corrected(measured, number, self.baseline_runs, self.file.objective, self.file.limits)
        repeats = len(measured) / len(counts)
        room = NOISES_APART * noise * math.sqrt(2 / (repeats * len(counts)))
        if verdict.value is None or math.log(verdict.value) + room >= math.log(self.best):
            return ""
        return f"{verdict.value:.3f} x baseline cannot reach {self.best:.3f} with {noise:.1%} noise a run"

    def run_noise(self) -> float | None:
        """Standard deviation of the log of one run within a start, from the baseline's repeats; None of too few."""
        squares: list[float] = []
        freedom = 0
        for _, runs in self.baseline_runs:
            groups: dict[tuple[str, str], list[float]] = {}
            for run in runs:
                value = run.metrics.get(self.file.objective.metric, 0.0)
                if value > 0:
                    groups.setdefault((run.start_id, run.workload_key), []).append(math.log(value))
            for logs in groups.values():
                mean = math.fsum(logs) / len(logs)
                squares += [(log - mean) ** 2 for log in logs]
                freedom += len(logs) - 1
        return max(LEAST_NOISE, math.sqrt(math.fsum(squares) / freedom)) if freedom >= FREEDOM_NEEDED else None

    def why_stop(self) -> str:
        """Why the rest of the search is not worth its starts; empty while it may be. To be asked after the baseline was
        measured again: its starts tell how noisy a start is."""
        noise = self.start_noise()
        if noise is None or self.baseline is None:
            return ""
        told: dict[str, tuple[float, bool]] = {}
        for trial in self.trials.values():
            verdict = self.verdict(trial)
            if not trial.baseline and verdict is not None and verdict.value is not None:
                told[trial.key] = (math.log(verdict.value), verdict.feasible)
        own = self.verdict(self.baseline)
        left = min(self.contest.trials - self.tried, self.search.left)
        feasible = own is not None and own.feasible
        return why_stop(self.search.known(told, baseline_feasible=feasible, trials=left, noise=noise))

    def start_noise(self) -> float | None:
        """Standard deviation of the log of one start, from the baseline's in the search; None of too few."""
        if len(self.baseline_runs) < BASELINES_NEEDED:
            return None
        levels = [judge(runs, self.baseline_runs[0][1], self.file.objective).value for _, runs in self.baseline_runs]
        spread = start_spread([level for level in levels if level is not None])
        return None if spread is None else max(LEAST_NOISE, spread)

    def tell(self, trial: Trial) -> Verdict | None:
        """Tell the search what became of a trial."""
        verdict = self.verdict(trial)
        if verdict is None or verdict.value is None or not math.isfinite(verdict.value):
            self.search.tell(trial.key, None)
        else:
            self.best = max(self.best, verdict.value) if verdict.feasible else self.best
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
