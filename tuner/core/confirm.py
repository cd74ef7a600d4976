"""Confirm finalists against the baseline: which fresh starts to make, and what they prove. Pure; runs nothing.

The unit is the start: an engine's start can draw other kernels, clocks and memory for as long as it lives, so runs
within a start are averaged and starts are compared, each finalist's with the baseline's of the same round.
docs/decisions/confirmation.md gives the reasons and what they cost.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.core.comparability import fingerprint_differences
from tuner.core.decision import Comparison, Confirmation, Decision, DecisionKind, QualityResult
from tuner.core.measurement import Measurement, Origin, Purpose, Start
from tuner.core.objective import Verdict, judge
from tuner.core.paired import Estimate, critical_rank, estimate, holm, smallest_gain
from tuner.core.study_file import ConfirmSection, LimitSection, ObjectiveSection, StudyFile

ALPHA = 0.05  # of one decision, over all its finalists


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place of the schedule, to be filled by one fresh start.

    round: from 0; None for the baseline's own starts that come first.   purpose: `noise` or `confirm`.
    """

    index: int
    round: int | None
    candidate_key: str
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a winner must satisfy. min_gain: 0.01 is 1 %.   qualifier: what a validated result is limited to."""

    objective: ObjectiveSection
    limits: tuple[LimitSection, ...] = ()
    min_gain: float = 0.01
    qualifier: str = ""

    @classmethod
    def of(cls, file: StudyFile) -> "Terms":
        return cls(
            objective=file.objective,
            limits=file.limits,
            min_gain=file.confirm.min_gain,
            qualifier=qualifier(file),
        )


def qualifier(file: StudyFile) -> str:
    """Why a validated winner of that study is validated for its benchmark only; empty where it is not."""
    causes = []
    if file.workload is not None and file.workload.acceptance != "real":
        causes.append("synthetic acceptance")
    if str(file.engine.options.get("load-format", file.engine.options.get("load_format", ""))) == "dummy":
        causes.append("dummy weights")
    return f"for this synthetic benchmark only ({' and '.join(causes)})" if causes else ""


def plan(section: ConfirmSection, *, gpus: int, baseline_key: str, finalists: Sequence[str], seed: int) -> Confirmation:
    """Fix what will be started, before the first start.

    finalists: candidate keys, best first; at most `section.finalists` are taken.

    Raises:
        ValueError: no finalist, the baseline among them, or too few starts to reach the level at all.
    """
    chosen = tuple(dict.fromkeys(finalists))[: section.finalists]
    if not chosen or baseline_key in chosen:
        raise ValueError("a confirmation needs at least one finalist, none of them the baseline")
    if critical_rank(section.starts_a_side, ALPHA / len(chosen)) == 0:
        raise ValueError(f"{section.starts_a_side} starts a side cannot show anything for {len(chosen)} finalists")
    return Confirmation(
        gpus=gpus,
        baseline_key=baseline_key,
        finalists=chosen,
        starts=section.starts_a_side,
        noise_starts=section.noise_starts,
        seed=seed,
    )


def schedule(confirmation: Confirmation) -> tuple[Slot, ...]:
    """Every start in its order: the baseline's own first (A/A), then rounds of the baseline and each finalist.

    The order of an even round is drawn, the next round mirrors it (ABBA): a linear drift cancels over the two, and
    no side is first by habit. Depends on the set of finalists, not on their ranking.
    """
    draw = random.Random(f"{confirmation.seed} {confirmation.gpus} {confirmation.baseline_key}")
    places: list[tuple[int | None, str]] = [(None, confirmation.baseline_key)] * confirmation.noise_starts
    sides = [confirmation.baseline_key, *sorted(confirmation.finalists)]
    for number in range(confirmation.starts):
        if number % 2 == 0:
            draw.shuffle(sides)
        else:
            sides.reverse()
        places += [(number, key) for key in sides]
    return tuple(
        Slot(index=index, round=number, candidate_key=key, purpose=Purpose.NOISE if number is None else Purpose.CONFIRM)
        for index, (number, key) in enumerate(places)
    )


def open_slots(confirmation: Confirmation, starts: Sequence[Start]) -> tuple[Slot, ...]:
    """The places that no start fills yet: none was made, or each that was made is excluded for a recorded cause."""
    filled = _filled(confirmation, starts)
    return tuple(slot for slot in schedule(confirmation) if slot.index not in filled)


def _filled(confirmation: Confirmation, starts: Sequence[Start]) -> dict[int, Start]:
    """Raises ValueError where two starts fill one place, or one is of another candidate: a bug, never bad luck."""
    keys = {slot.index: slot.candidate_key for slot in schedule(confirmation)}
    found: dict[int, Start] = {}
    for start in starts:
        if start.slot is None or start.excluded or start.gpus != confirmation.gpus:
            continue
        if keys.get(start.slot) != start.candidate_key:
            raise ValueError(f"start {start.id} is not of the candidate that slot {start.slot} is for")
        if start.slot in found:
            raise ValueError(f"slot {start.slot} has two starts that count: {found[start.slot].id} and {start.id}")
        found[start.slot] = start
    return found


@dataclass(frozen=True, slots=True)
class _Evidence:
    """baseline: its starts' measurements in order of time, noise first.   pairs: by finalist, one verdict a round.
    holes: by candidate, why one of its places has no usable start.   excluded: starts left out, by candidate."""

    baseline: Sequence[Sequence[Measurement]]
    pairs: Mapping[str, Sequence[Verdict]]
    holes: Mapping[str, str]
    excluded: Mapping[str, int]
    origins: frozenset[Origin]


def _evidence(
    confirmation: Confirmation, starts: Sequence[Start], measurements: Sequence[Measurement], terms: Terms
) -> _Evidence:
    filled = _filled(confirmation, starts)
    runs: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        runs.setdefault(measurement.start_id, []).append(measurement)
    used: dict[tuple[str, int | None], list[Measurement]] = {}
    baseline: list[Sequence[Measurement]] = []
    holes: dict[str, str] = {}
    firsts: dict[str, Start] = {}
    for slot in schedule(confirmation):
        start, key = filled.get(slot.index), slot.candidate_key
        if start is None:
            reason = _why_open(slot, starts, confirmation.gpus)
        else:
            own = used[key, slot.round] = runs.get(start.id, [])
            reason = _fault(start, own, firsts, terms, confirmation.baseline_key)
            if key == confirmation.baseline_key and not reason:
                baseline.append(own)
        if reason:
            place = "noise start" if slot.round is None else f"round {slot.round + 1}"
            holes.setdefault(key, f"{place}: {reason}")
    pairs: dict[str, list[Verdict]] = {}
    for key in confirmation.finalists:
        if key in holes or confirmation.baseline_key in holes:
            continue
        pairs[key] = [
            judge(used[key, number], used[confirmation.baseline_key, number], terms.objective, terms.limits)
            for number in range(confirmation.starts)
        ]
        for number, verdict in enumerate(pairs[key]):
            if verdict.value is None:
                holes.setdefault(key, f"round {number + 1}: {verdict.reasons[0]}")
    left_out = Counter(
        s.candidate_key for s in starts if s.gpus == confirmation.gpus and s.slot is not None and s.excluded
    )
    origins = frozenset(m.origin for own in used.values() for m in own)
    return _Evidence(baseline, {k: v for k, v in pairs.items() if k not in holes}, holes, left_out, origins)


def _why_open(slot: Slot, starts: Sequence[Start], gpus: int) -> str:
    causes = [start.excluded for start in starts if start.slot == slot.index and start.gpus == gpus and start.excluded]
    return f"no start is left; the last was excluded: {causes[-1]}" if causes else "it was never started"


def _fault(start: Start, runs: Sequence[Measurement], firsts: dict[str, Start], terms: Terms, baseline_key: str) -> str:
    """Why a start cannot be used: no number, or made under other conditions than the first of its candidate or the
    first of the baseline."""
    own = judge(runs, runs, terms.objective)
    if own.value is None:
        return own.reasons[0]
    for first in (firsts.get(start.candidate_key), firsts.get(baseline_key), next(iter(firsts.values()), None)):
        if first is not None:
            same = first.candidate_key == start.candidate_key
            differences = fingerprint_differences(first.fingerprint, start.fingerprint, same_candidate=same)
            if differences:
                return f"not comparable: {differences[0]}"
    firsts.setdefault(start.candidate_key, start)
    return ""


def compare(pairs: Mapping[str, Sequence[Verdict]], *, family: int, min_gain: float) -> tuple[Comparison, ...]:
    """Each finalist against the baseline, in the order of `pairs`.

    pairs: by finalist, the verdict of each round's start on the baseline's start of that round, each with a value.
    family: how many finalists were planned; one that could not be measured still counts.
    """
    level = ALPHA / family
    ratios = {key: tuple(v.value for v in verdicts if v.value is not None) for key, verdicts in pairs.items()}
    found = {key: estimate(values, alpha=level) for key, values in ratios.items()}
    adjusted = holm([*(e.p for e in found.values()), *[1.0] * (family - len(found))])
    comparisons = []
    for (key, seen), p in zip(found.items(), adjusted, strict=False):
        limits: dict[str, float] = {}
        missing: list[str] = []
        for verdict in pairs[key]:
            for name, value in verdict.margins.items():
                limits[name] = min(limits.get(name, math.inf), value)
            if verdict.worst_margin == -math.inf:
                missing += [reason for reason in verdict.reasons if reason not in missing]
        reasons = (*_doubts(seen, p, min_gain, level), *missing, *_misses(limits))
        comparisons.append(
            Comparison(
                candidate_key=key,
                ratios=ratios[key],
                gain=seen.gain,
                lower=seen.lower,
                upper=seen.upper,
                p=p,
                limits=limits,
                reasons=reasons,
            )
        )
    return tuple(comparisons)


def _doubts(seen: Estimate, p: float, min_gain: float, level: float) -> list[str]:
    doubts = []
    if not p < ALPHA:
        doubts.append(f"p = {p:.3f} is not below {ALPHA:g}")
    if not seen.lower > min_gain:
        doubts.append(
            f"the gain is above {seen.lower:+.2%} at {1 - level:.1%} confidence, which does not exceed "
            f"the least gain asked for, {min_gain:.2%}"
        )
    return doubts


def _misses(limits: Mapping[str, float]) -> list[str]:
    return [
        f"{name} misses its limit by {-value:.1%} in the worst start" for name, value in limits.items() if value < 0
    ]


def passing(
    confirmation: Confirmation, starts: Sequence[Start], measurements: Sequence[Measurement], terms: Terms
) -> tuple[str, ...]:
    """Finalists that the starts alone would validate, best first: those whose output is worth checking."""
    evidence = _evidence(confirmation, starts, measurements, terms)
    compared = compare(evidence.pairs, family=len(confirmation.finalists), min_gain=terms.min_gain)
    return tuple(c.candidate_key for c in _best_first(compared) if not c.reasons)


def decide(
    confirmation: Confirmation,
    starts: Sequence[Start],
    measurements: Sequence[Measurement],
    terms: Terms,
    *,
    quality: Sequence[QualityResult] = (),
) -> Decision:
    """The decision for one GPU count. A pure function of its arguments: it can be recomputed from what is stored.

    starts, measurements: those of the study; only the confirmation's are read.
    quality: of the finalists; one without a result of its own is never validated.

    Raises:
        ValueError: the starts do not fit the schedule.
    """
    evidence = _evidence(confirmation, starts, measurements, terms)
    compared = tuple(
        replace(c, reasons=(*c.reasons, *_quality_reasons(c.candidate_key, quality)))
        for c in compare(evidence.pairs, family=len(confirmation.finalists), min_gain=terms.min_gain)
    )
    kind, winner, sentence = _verdict(confirmation, evidence, compared, terms)
    levels = [judge(own, evidence.baseline[0], terms.objective).value for own in evidence.baseline]
    return Decision(
        kind=kind,
        gpus=confirmation.gpus,
        baseline_key=confirmation.baseline_key,
        winner_key=winner,
        sentence=sentence,
        comparisons=compared,
        quality=tuple(quality),
        smallest_gain=smallest_gain(
            [level for level in levels if level is not None],
            confirmation.starts,
            min_gain=terms.min_gain,
            alpha=ALPHA / len(confirmation.finalists),
        ),
        qualifier=terms.qualifier if kind is DecisionKind.VALIDATED else "",
    )


def _verdict(
    confirmation: Confirmation, evidence: _Evidence, compared: Sequence[Comparison], terms: Terms
) -> tuple[DecisionKind, str | None, str]:
    """Kind, winner, sentence."""
    ranked = _best_first(compared)
    passed = [c for c in ranked if not c.reasons]
    if evidence.origins - {Origin.MEASURED}:
        best = ranked[0].candidate_key if ranked and ranked[0].gain > 0 else confirmation.baseline_key
        return DecisionKind.NOT_MEASURED, best, f"nothing was measured: the numbers are {_names(evidence.origins)}"
    if passed:
        best_passed = passed[0]
        sentence = (
            f"validated{f' {terms.qualifier}' if terms.qualifier else ''}: {best_passed.gain:+.2%} over the baseline, "
            f"more than {best_passed.lower:+.2%} at {1 - ALPHA / len(confirmation.finalists):.1%} confidence, "
            f"p = {best_passed.p:.4f}, {len(best_passed.ratios)} paired fresh starts"
        )
        return DecisionKind.VALIDATED, best_passed.candidate_key, sentence + _left_out(evidence)
    nearest = _nearest(confirmation, evidence, compared, terms)
    if nearest is not None:
        key, missed = nearest
        who = "the baseline" if key == confirmation.baseline_key else f"candidate {key}"
        sentence = f"no confirmed candidate keeps every limit, the baseline included; the nearest is {who}: {missed}"
        return DecisionKind.INFEASIBLE, key, sentence
    why = [f"{c.candidate_key}: {'; '.join(c.reasons)}" for c in ranked]
    for key, hole in evidence.holes.items():
        who = "the baseline" if key == confirmation.baseline_key else key
        why.append(f"{who} has a place in the schedule without a usable start ({hole}), so nothing is shown with it")
    sentence = "no validated improvement: " + ". ".join(why)
    return DecisionKind.NO_VALIDATED_IMPROVEMENT, None, sentence + _left_out(evidence)


def _best_first(compared: Sequence[Comparison]) -> list[Comparison]:
    return sorted(compared, key=lambda c: (-c.gain, -c.lower, c.candidate_key))


def _quality_reasons(key: str, quality: Sequence[QualityResult]) -> list[str]:
    own = [result for result in quality if result.candidate_key == key]
    if not own:
        return ["its output was not checked"]
    return [
        f"its output fails {r.name}{f' at {r.at}' if r.at else ''}: {r.value:.3g} {r.unit}, at most {r.limit:.3g}"
        for r in own
        if not r.passed
    ]


def _nearest(
    confirmation: Confirmation, evidence: _Evidence, compared: Sequence[Comparison], terms: Terms
) -> tuple[str, str] | None:
    """The candidate that misses its limits by least, and which; None where one keeps them, or not all are known."""
    if not terms.limits or len(compared) < len(confirmation.finalists):
        return None
    worst: dict[str, dict[str, float]] = {c.candidate_key: dict(c.limits) for c in compared}
    own = worst.setdefault(confirmation.baseline_key, {})
    for runs in evidence.baseline:
        for name, value in judge(runs, runs, terms.objective, terms.limits).margins.items():
            own[name] = min(own.get(name, math.inf), value)
    least = {key: min(margins.values(), default=-math.inf) for key, margins in worst.items()}
    if max(least.values()) >= 0:
        return None
    key = max(sorted(least), key=lambda k: least[k])
    return key, ", ".join(_misses(worst[key])) or "a limited metric has no value"


def _left_out(evidence: _Evidence) -> str:
    if not evidence.excluded:
        return ""
    counts = ", ".join(f"{count} of {key}" for key, count in sorted(evidence.excluded.items()))
    return f" (starts excluded for a recorded cause: {counts})"


def _names(origins: frozenset[Origin]) -> str:
    return " and ".join(sorted(origins))
