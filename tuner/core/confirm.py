"""Confirm finalists against the baseline: what fresh starts prove, and what is decided. Pure; runs nothing.

docs/decisions/confirmation.md gives the reasons for every rule here, and docs/guide/proof.md what they cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.core.decision import Comparison, Confirmation, Decision, DecisionKind, QualityResult
from tuner.core.measurement import Measurement, Origin, Start
from tuner.core.objective import Verdict, judge
from tuner.core.paired import Estimate, best_lower_bound, critical_rank, estimate, holm, smallest_gain
from tuner.core.rounds import Rounds, Slot, open_slots, read_rounds, schedule
from tuner.core.study_file import ConfirmSection, LimitSection, ObjectiveSection, StudyFile
from tuner.core.workload import ServingWorkload

__all__ = [
    "ALPHA",
    "Slot",
    "Terms",
    "compare",
    "decide",
    "open_slots",
    "passing",
    "plan",
    "qualifier",
    "schedule",
    "slots_left",
]

ALPHA = 0.05  # of one decision, over all its finalists


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
    if any(isinstance(workload, ServingWorkload) and workload.synthetic_kv for workload in file.workloads):
        causes.append("synthetic KV cache")
    if file.engine.dummy_weights:
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


def slots_left(
    confirmation: Confirmation, starts: Sequence[Start], measurements: Sequence[Measurement], terms: Terms
) -> tuple[Slot, ...]:
    """The open places that can still change the decision, in order: none of a finalist that is lost already, and none
    at all once every finalist is. Leaving the others out changes no decision, so it costs no power and no level."""
    rounds = read_rounds(confirmation, starts, measurements, terms.objective, terms.limits)
    lost = {key for key in confirmation.finalists if _lost(confirmation, rounds.pairs[key], terms)}
    if len(lost) == len(confirmation.finalists):
        return ()
    return tuple(slot for slot in open_slots(confirmation, starts) if slot.candidate_key not in lost)


def _lost(confirmation: Confirmation, verdicts: Sequence[Verdict], terms: Terms) -> str:
    """Why a finalist cannot be validated whatever its other rounds bring; empty where it still can."""
    if any(not verdict.feasible for verdict in verdicts):
        return "one of its starts missed a limit"
    ratios = [verdict.value for verdict in verdicts if verdict.value is not None]
    best = best_lower_bound(ratios, confirmation.starts, alpha=ALPHA / len(confirmation.finalists))
    return (
        "" if best > terms.min_gain else f"its bound could not have come above {best:+.2%} whatever the others brought"
    )


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
        missing = [r for v in pairs[key] if v.worst_margin == -math.inf for r in v.reasons]
        limits = _worst_margins(pairs[key])
        comparisons.append(
            Comparison(
                candidate_key=key,
                ratios=ratios[key],
                gain=seen.gain,
                lower=seen.lower,
                upper=seen.upper,
                p=p,
                limits=limits,
                reasons=(*_doubts(seen, p, min_gain, level), *dict.fromkeys(missing), *_misses(limits)),
            )
        )
    return tuple(comparisons)


def passing(
    confirmation: Confirmation, starts: Sequence[Start], measurements: Sequence[Measurement], terms: Terms
) -> tuple[str, ...]:
    """Finalists that the starts alone would validate, best first: those whose output is worth checking."""
    rounds = read_rounds(confirmation, starts, measurements, terms.objective, terms.limits)
    return tuple(c.candidate_key for c in _best_first(_compared(confirmation, rounds, terms)) if not c.reasons)


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
        ValueError: the starts do not fit the schedule, or nothing was planned to be confirmed.
    """
    if not confirmation.finalists:
        raise ValueError("nothing was planned to be confirmed, so there is nothing to decide")
    rounds = read_rounds(confirmation, starts, measurements, terms.objective, terms.limits)
    compared = tuple(
        replace(c, reasons=(*c.reasons, *_quality_reasons(c.candidate_key, quality)))
        for c in _compared(confirmation, rounds, terms)
    )
    kind, winner, sentence = _conclusion(confirmation, rounds, compared, terms)
    shown = _shown(confirmation, rounds, terms)
    gain = next((c.gain for c in compared if c.candidate_key == winner), math.inf)
    if kind is DecisionKind.VALIDATED and shown is not None and gain < shown:
        # Of gains so close to what can be shown, those that are shown are the lucky ones: benchmarks/false_winners.py.
        sentence += f". Starts as noisy as these reliably show {shown:.1%} and more, so the estimate is likely high"
    return Decision(
        kind=kind,
        gpus=confirmation.gpus,
        baseline_key=confirmation.baseline_key,
        winner_key=winner,
        sentence=sentence,
        comparisons=compared,
        quality=tuple(quality),
        smallest_gain=shown,
        qualifier=terms.qualifier if kind is DecisionKind.VALIDATED else "",
    )


def _shown(confirmation: Confirmation, rounds: Rounds, terms: Terms) -> float | None:
    """The smallest gain that these starts could show, from those of the baseline alone."""
    levels = [judge(own, rounds.baseline[0], terms.objective).value for own in rounds.baseline]
    return smallest_gain(
        [level for level in levels if level is not None],
        confirmation.starts,
        min_gain=terms.min_gain,
        alpha=ALPHA / len(confirmation.finalists),
    )


def _compared(confirmation: Confirmation, rounds: Rounds, terms: Terms) -> tuple[Comparison, ...]:
    """Only finalists all of whose places, and all of the baseline's, have a usable start."""
    whole = {k: v for k, v in rounds.pairs.items() if not rounds.holes.keys() & {k, confirmation.baseline_key}}
    return compare(whole, family=len(confirmation.finalists), min_gain=terms.min_gain)


def _conclusion(
    confirmation: Confirmation, rounds: Rounds, compared: Sequence[Comparison], terms: Terms
) -> tuple[DecisionKind, str | None, str]:
    """Kind, winner, sentence."""
    ranked = _best_first(compared)
    passed = [c for c in ranked if not c.reasons]
    if rounds.origins - {Origin.MEASURED}:
        best = ranked[0].candidate_key if ranked and ranked[0].gain > 0 else confirmation.baseline_key
        return DecisionKind.NOT_MEASURED, best, f"nothing was measured: the numbers are {_names(rounds.origins)}"
    if passed:
        sentence = (
            f"validated{f' {terms.qualifier}' if terms.qualifier else ''}: {passed[0].gain:+.2%} over the baseline, "
            f"more than {passed[0].lower:+.2%} at {1 - ALPHA / len(confirmation.finalists):.1%} confidence, "
            f"p = {passed[0].p:.3g}, {len(passed[0].ratios)} paired fresh starts"
        )
        return DecisionKind.VALIDATED, passed[0].candidate_key, sentence + _left_out(rounds)
    nearest = _nearest(confirmation, rounds, terms)
    if nearest is not None:
        key, missed = nearest
        sentence = (
            f"no confirmed candidate keeps every limit, the baseline included; the nearest is "
            f"{_who(key, confirmation)}: {missed}"
        )
        return DecisionKind.INFEASIBLE, key, sentence
    why = [f"candidate {c.candidate_key}: {'; '.join(c.reasons)}" for c in ranked]
    why += _incomplete(confirmation, rounds, terms)
    sentence = "no validated improvement: " + ". ".join(why)
    return DecisionKind.NO_VALIDATED_IMPROVEMENT, None, sentence + _left_out(rounds)


def _incomplete(confirmation: Confirmation, rounds: Rounds, terms: Terms) -> list[str]:
    """Why a side of the schedule shows nothing: stopped because it was lost, or a place without a usable start."""
    lost = {key: _lost(confirmation, rounds.pairs[key], terms) for key in confirmation.finalists}
    if all(lost.values()):
        sides = [key for key in confirmation.finalists if rounds.holes.keys() & {key, confirmation.baseline_key}]
    else:
        sides = [key for key in (confirmation.baseline_key, *confirmation.finalists) if key in rounds.holes]
    sentences = []
    for key in sides:
        if lost.get(key):
            sentences.append(
                f"candidate {key}: stopped after {len(rounds.pairs[key])} of {confirmation.starts} rounds, "
                f"since {lost[key]}"
            )
        else:
            who = _who(key, confirmation)
            sentences.append(f"{who} has a place in the schedule without a usable start ({rounds.holes[key]})")
    return sentences


def _who(key: str, confirmation: Confirmation) -> str:
    return "the baseline" if key == confirmation.baseline_key else f"candidate {key}"


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


def _worst_margins(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """By `metric @ workload`, in the worst start."""
    worst: dict[str, float] = {}
    for verdict in verdicts:
        for name, value in verdict.margins.items():
            worst[name] = min(worst.get(name, math.inf), value)
    return worst


def _misses(limits: Mapping[str, float]) -> list[str]:
    return [
        f"{name} misses its limit by {-value:.1%} in the worst start" for name, value in limits.items() if value < 0
    ]


def _nearest(confirmation: Confirmation, rounds: Rounds, terms: Terms) -> tuple[str, str] | None:
    """The candidate that misses its limits by least, and which; None where one keeps them, or one is not known.

    One start that misses is enough to know, so a finalist that was stopped for it counts.
    """
    if not terms.limits:
        return None
    own = [judge(runs, runs, terms.objective, terms.limits) for runs in rounds.baseline]
    sides = {confirmation.baseline_key: own, **rounds.pairs}
    least = {key: min((v.worst_margin for v in verdicts), default=0.0) for key, verdicts in sides.items()}
    if max(least.values()) >= 0:
        return None
    key = max(sorted(least), key=least.__getitem__)
    return key, ", ".join(_misses(_worst_margins(sides[key]))) or "a limited metric has no value"


def _left_out(rounds: Rounds) -> str:
    if not rounds.excluded:
        return ""
    counts = ", ".join(f"{count} of {key}" for key, count in sorted(rounds.excluded.items()))
    return f" (starts excluded for a recorded cause: {counts})"


def _names(origins: frozenset[Origin]) -> str:
    return " and ".join(sorted(origins))
