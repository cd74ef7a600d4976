"""The figures of a study's page: what is drawn, from which trials. Knows charts and nouns; no HTTP, no templates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.ports import Ports
from api.ui.charts import Chart, Point, chart, front, stairs
from api.ui.tiles import heats
from tuner.core.effects import Effect, main_effects
from tuner.core.measurement import Measurement, Purpose, Start, held_s
from tuner.core.side_by_side import PER_GPU, PER_USER, means
from tuner.core.study import Study
from tuner.core.trial import Failed, Rejected, Trial, measured

EFFECTS_AT_MOST = 24


@dataclass(frozen=True, slots=True)
class Told:
    """One finished trial as the search was told of it."""

    trial: int
    gpus: int
    ratio: float
    feasible: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """told: the numbers behind the chart, the last ones first where there are many."""

    chart: Chart
    told: Sequence[Told]


@dataclass(frozen=True, slots=True)
class Pareto:
    """front: per user, per GPU, trial, GPUs; by the first."""

    workload: str
    chart: Chart
    front: Sequence[tuple[float, float, int, int]]


@dataclass(frozen=True, slots=True)
class NoNumber:
    """Trials that gave none for the same reason. name: of the rule, or of the kind of failure.
    sentence: the first trial's."""

    outcome: str
    name: str
    trials: int
    first: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Bar:
    """An effect and its places on an axis from 0 to 100."""

    effect: Effect
    low: float
    middle: float
    high: float
    zero: float


def drawn(ports: Ports, study: Study, trials: Sequence[Trial]) -> dict[str, Any]:
    """What the template of the figures takes. trials: all of the study's."""
    of, starts = told(ports, study.id), ports.studies.starts(study.id)
    runs, objective = baseline_runs(ports, study.id, starts), study.file.objective.metric
    counts = sorted({trial.gpus for trial in trials})
    shown = {gpus: progress(of, gpus, band(runs.get(gpus, []), objective)) for gpus in counts}
    return {
        "progress": {gpus: one for gpus, one in shown.items() if one is not None},
        "effects": {gpus: effects(trials, of, gpus) for gpus in counts},
        "pareto": pareto(trials),
        "heats": heats(study.file, trials),
        "no_numbers": no_numbers(trials),
        "spent": {name: seconds for name, seconds in held_s(starts).items() if seconds},
    }


def no_numbers(trials: Sequence[Trial]) -> list[NoNumber]:
    """Of a study: the most frequent reason first. A trial that breaks several rules counts under each of them."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for trial in trials:
        match trial.outcome:
            case Rejected(reasons=reasons):
                for reason in reasons:
                    found.setdefault(("rejected", reason.rule), []).append((trial.number, reason.sentence))
            case Failed(kind=kind, sentence=sentence):
                found.setdefault(("failed", kind), []).append((trial.number, sentence))
    groups = [NoNumber(outcome, name, len(of), *of[0]) for (outcome, name), of in found.items()]
    return sorted(groups, key=lambda group: (-group.trials, group.first))


def told(ports: Ports, study_id: str) -> list[Told]:
    found = []
    for _, data in ports.readings.told(study_id, "trial_finished"):
        trial, gpus, ratio = data.get("trial"), data.get("gpus"), data.get("ratio")
        if isinstance(trial, int) and isinstance(gpus, int) and isinstance(ratio, int | float):
            found.append(Told(trial, gpus, float(ratio), bool(data.get("feasible"))))
    return found


def progress(of: Sequence[Told], gpus: int, band: tuple[float, float] | None) -> Progress | None:
    mine = sorted((t for t in of if t.gpus == gpus), key=lambda t: t.trial)
    best = stairs([(t.trial, t.ratio) for t in mine if t.feasible])
    heights = {trial for trial, _ in best}
    points = [
        Point(
            t.trial,
            t.ratio,
            "missed" if not t.feasible else "best" if t.trial in heights else "seen",
            f"trial {t.trial}: {t.ratio:.4f}{'' if t.feasible else ', misses a limit'}",
        )
        for t in mine
    ]
    drawn = chart(points, line=1.0, band=band, path=best, keep=frozenset({"best"}))
    return None if drawn is None else Progress(drawn, mine[::-1][:100])


def band(baseline_runs: Sequence[Measurement], objective: str) -> tuple[float, float] | None:
    """How far the baseline's own starts lie from their mean; None with fewer than two."""
    starts: dict[str, dict[str, list[float]]] = {}
    for run in baseline_runs:
        value = run.metrics.get(objective)
        if value:
            starts.setdefault(run.workload_key, {}).setdefault(run.start_id, []).append(value)
    ratios = []
    for values in starts.values():
        levels = [sum(v) / len(v) for v in values.values()]
        if len(levels) > 1:
            mean = sum(levels) / len(levels)
            ratios += [level / mean for level in levels]
    return (min(ratios), max(ratios)) if ratios else None


def baseline_runs(ports: Ports, study_id: str, starts: Sequence[Start]) -> dict[int, list[Measurement]]:
    """By GPU count: of the starts, all of the study's, that are made of the baseline only."""
    counts = {start.id: start.gpus for start in starts}
    found: dict[int, list[Measurement]] = {}
    for purpose in (Purpose.DRIFT, Purpose.NOISE):
        for run in ports.studies.measurements(study_id, purpose=purpose):
            found.setdefault(counts.get(run.start_id, 0), []).append(run)
    return found


def pareto(trials: Sequence[Trial]) -> list[Pareto]:
    """Per-user decode speed against per-GPU throughput, for each workload."""
    by_workload: dict[str, list[tuple[float, float, int, int]]] = {}
    for trial in measured(trials):
        for key, metrics in means(trial).items():
            user, gpu = metrics.get(PER_USER), metrics.get(PER_GPU)
            if user is not None and gpu is not None and math.isfinite(user) and math.isfinite(gpu):
                by_workload.setdefault(key, []).append((user, gpu, trial.number, trial.gpus))
    found = []
    for key, rows in by_workload.items():
        best = front([(user, gpu) for user, gpu, _, _ in rows])
        ends = set(best)
        points = [
            Point(
                user,
                gpu,
                "best" if (user, gpu) in ends else "seen",
                f"trial {number} on {gpus} GPUs: {user:.4g} a user, {gpu:.4g} a GPU",
            )
            for user, gpu, number, gpus in rows
        ]
        drawn = chart(points, path=best, keep=frozenset({"best"}))
        if drawn is not None:
            found.append(Pareto(key, drawn, sorted({row[:2]: row for row in rows if row[:2] in ends}.values())))
    return found


def effects(trials: Sequence[Trial], of: Sequence[Told], gpus: int) -> list[Bar]:
    """The largest of one GPU count."""
    mine = {t.number: t for t in trials if t.gpus == gpus}
    baseline = next((t for t in mine.values() if t.baseline), None)
    if baseline is None:
        return []
    points: list[tuple[Mapping[str, object], float]] = [
        (mine[t.trial].candidate.values(), t.ratio) for t in of if t.trial in mine and not mine[t.trial].baseline
    ]
    points.append((baseline.candidate.values(), 1.0))
    found = main_effects(points, baseline.candidate.values())[:EFFECTS_AT_MOST]  # type: ignore[arg-type]
    ends = [0.0, *(v for e in found for v in (e.change, e.lower, e.upper) if v is not None)]
    low, high = max(min(ends), -1.0), min(max(ends), 3.0)
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / width, 2)

    return [
        Bar(
            e,
            place(e.change if e.lower is None else e.lower),
            place(e.change),
            place(e.change if e.upper is None else e.upper),
            place(0.0),
        )
        for e in found
    ]
