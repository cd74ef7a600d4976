"""Judge a measurement against an objective. Knows nothing of HTTP, SQL, or GPUs, and nothing of chance.

A verdict compares numbers as they are; whether a difference can be believed is the confirmation's question.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tuner.core.measurement import Measurement
from tuner.core.metrics import METRICS, check_objective, metric
from tuner.core.study_file import LimitSection, ObjectiveSection

__all__ = ["METRICS", "Verdict", "check_metrics", "drift_corrected", "judge", "margin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One candidate against the baseline and the limits.

    value: geometric mean of `ratios`; None where any workload has no usable number.
    ratios: by workload, candidate over baseline, inverted where less is better: above 1 is better than the baseline.
    margins: by `metric @ workload`, relative to the bound; 0 and more is kept, negative a miss.
    worst_margin: the least of them; infinite without limits, minus infinite where a limited metric has no value.
    reasons: why there is no value, and which limits are missed by how much.
    """

    value: float | None
    ratios: Mapping[str, float]
    margins: Mapping[str, float]
    worst_margin: float
    feasible: bool
    reasons: tuple[str, ...] = ()


def judge(
    measurements: Sequence[Measurement],
    baseline: Sequence[Measurement],
    objective: ObjectiveSection,
    limits: Sequence[LimitSection] = (),
) -> Verdict:
    """Repeats within a start are averaged, then starts. Pure.

    measurements, baseline: of one candidate each, over the same workloads; one that only one of them has leaves the
    verdict without a value.
    """
    return _judge(measurements, _levels(baseline, objective.metric), objective, limits)


def drift_corrected(
    measurements: Sequence[Measurement],
    order: float,
    baseline_runs: Sequence[tuple[float, Sequence[Measurement]]],
    objective: ObjectiveSection,
    limits: Sequence[LimitSection] = (),
) -> Verdict:
    """Judge against the baseline as it was when the candidate ran.

    order: the candidate's place in the sequence of starts.   baseline_runs: the same for each start of the baseline,
    ascending. The value at `order` is interpolated in log between the runs before and after it; before the first and
    after the last, that run's own value holds.

    Raises:
        ValueError: no baseline run.
    """
    if not baseline_runs:
        raise ValueError("no run of the baseline to compare with")
    before = max((run for run in baseline_runs if run[0] <= order), key=lambda run: run[0], default=None)
    after = min((run for run in baseline_runs if run[0] > order), key=lambda run: run[0], default=None)
    if before is None or after is None:
        only = before or after
        assert only is not None
        return judge(measurements, only[1], objective, limits)
    share = (order - before[0]) / (after[0] - before[0])
    first, second = _levels(before[1], objective.metric), _levels(after[1], objective.metric)
    levels: dict[str, float | str] = {}
    for workload in first | second:
        early, late = first.get(workload, "not run"), second.get(workload, "not run")
        if isinstance(early, str) or isinstance(late, str):
            levels[workload] = early if isinstance(early, str) else str(late)
        else:
            levels[workload] = math.exp((1 - share) * math.log(early) + share * math.log(late))
    return _judge(measurements, levels, objective, limits)


def margin(limit: LimitSection, value: float) -> float:
    """How far a value keeps within a limit, relative to the bound (absolute where the bound is 0); negative misses."""
    if limit.at_most is not None:
        return (limit.at_most - value) / (abs(limit.at_most) or 1.0)
    assert limit.at_least is not None
    return (value - limit.at_least) / (abs(limit.at_least) or 1.0)


def check_metrics(objective: ObjectiveSection, limits: Sequence[LimitSection]) -> None:
    """Raises UnknownMetricError where a study names a metric that nothing measures, or wants the worse of it."""
    check_objective(objective.metric, larger_is_better=objective.larger_is_better)
    for limit in limits:
        metric(limit.metric)


def _judge(
    measurements: Sequence[Measurement],
    baseline: Mapping[str, float | str],
    objective: ObjectiveSection,
    limits: Sequence[LimitSection],
) -> Verdict:
    name = objective.metric
    mine = _levels(measurements, name)
    workloads = tuple({**baseline, **mine})
    reasons: list[str] = []
    ratios: dict[str, float] = {}
    for workload in workloads:
        level, reference = mine.get(workload, "not run"), baseline.get(workload, "not run")
        if isinstance(level, str) or level == 0:
            reasons.append(f"{name} @ {workload}: {level or 'was 0'}")
        elif isinstance(reference, str) or reference == 0:
            reasons.append(f"{name} @ {workload}, baseline: {reference or 'was 0'}")
        else:
            ratios[workload] = level / reference if objective.larger_is_better else reference / level
    value = None
    if ratios and not reasons:
        value = math.exp(fmean(map(math.log, ratios.values()))) if len(ratios) > 1 else next(iter(ratios.values()))
    elif not reasons:
        reasons.append(f"{name}: nothing was measured")
    margins, worst, missed = _margins(measurements, limits, workloads=workloads)
    return Verdict(
        value=value,
        ratios=ratios,
        margins=margins,
        worst_margin=worst,
        feasible=worst >= 0,
        reasons=(*reasons, *missed),
    )


def _margins(
    measurements: Sequence[Measurement], limits: Sequence[LimitSection], *, workloads: Sequence[str]
) -> tuple[dict[str, float], float, list[str]]:
    margins: dict[str, float] = {}
    worst, missed = math.inf, []
    for limit in limits:
        levels = _levels(measurements, limit.metric)
        for workload in workloads:
            value, key = levels.get(workload, "not run"), f"{limit.metric} @ {workload}"
            if isinstance(value, str):
                worst = -math.inf
                missed.append(f"limit on {key}: {value}")
                continue
            # Two limits on one metric are a range; the nearer bound counts.
            margins[key] = min(margins.get(key, math.inf), margin(limit, value))
            worst = min(worst, margins[key])
            if margin(limit, value) < 0:
                bound = f"at most {limit.at_most:g}" if limit.at_most is not None else f"at least {limit.at_least:g}"
                missed.append(f"limit on {key}: {value:.4g}, {bound} was asked ({-margins[key]:.1%} off)")
    return margins, worst, missed


def _levels(measurements: Sequence[Measurement], name: str) -> dict[str, float | str]:
    """By workload: the metric's level, or why it has none. One run without a usable value leaves none: an average
    over the runs that happened to work would favour what fails."""
    may_be_zero = name in METRICS and METRICS[name].may_be_zero
    by_start: dict[str, dict[str, list[float]]] = {}
    unusable: dict[str, float | str] = {}
    for m in measurements:
        value = m.metrics.get(name)
        if value is None:
            unusable[m.workload_key] = m.missing.get(name, "not reported")
        elif not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            unusable[m.workload_key] = f"was {value:g}"
        else:
            by_start.setdefault(m.workload_key, {}).setdefault(m.start_id, []).append(value)
    means = {w: fmean(fmean(runs) for runs in starts.values()) for w, starts in by_start.items()}
    return {**means, **unusable}
