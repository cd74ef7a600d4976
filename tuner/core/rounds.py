"""The rounds of a confirmation: which fresh starts, in which order, and what each pair of them says. Runs nothing.

The unit is the start: an engine's start can draw other kernels, clocks and memory for as long as it lives, so runs
within a start are averaged and starts are compared, each finalist's with the baseline's of the same round.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.core.comparability import fingerprint_differences
from tuner.core.decision import Confirmation
from tuner.core.measurement import Measurement, Origin, Purpose, Start
from tuner.core.objective import Verdict, judge
from tuner.core.study_file import LimitSection, ObjectiveSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place of the schedule, to be filled by one fresh start.

    round: from 0; None for the baseline's own starts that come first.   purpose: `noise` or `confirm`.
    """

    index: int
    round: int | None
    candidate_key: str
    purpose: Purpose

    @property
    def place(self) -> str:
        return "noise start" if self.round is None else f"round {self.round + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What the starts of a confirmation said.

    baseline: measurements of its usable starts, in order of the schedule.
    pairs: by finalist, the verdict of its start on the baseline's in each round that has both, each with a value.
    holes: by candidate, why one of its places has no usable start.
    excluded: by candidate, how many starts were left out for a recorded cause.
    """

    baseline: Sequence[Sequence[Measurement]]
    pairs: Mapping[str, Sequence[Verdict]]
    holes: Mapping[str, str]
    excluded: Mapping[str, int]
    origins: frozenset[Origin]


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


def read_rounds(
    confirmation: Confirmation,
    starts: Sequence[Start],
    measurements: Sequence[Measurement],
    objective: ObjectiveSection,
    limits: Sequence[LimitSection],
) -> Rounds:
    """Raises ValueError where two starts fill one place, or one is of another candidate."""
    filled = _filled(confirmation, starts)
    runs: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        runs.setdefault(measurement.start_id, []).append(measurement)
    usable: dict[int, list[Measurement]] = {}
    holes: dict[str, str] = {}
    firsts: dict[str, Start] = {}
    for slot in schedule(confirmation):
        start = filled.get(slot.index)
        if start is None:
            fault = _why_open(slot, starts, confirmation.gpus)
        else:
            own = runs.get(start.id, [])
            fault = _no_number(own, objective) or _other_conditions(start, firsts, confirmation.baseline_key)
            if not fault:
                usable[slot.index] = own
                firsts.setdefault(slot.candidate_key, start)
        if fault:
            holes.setdefault(slot.candidate_key, f"{slot.place}: {fault}")
    places = {(slot.round, slot.candidate_key): slot for slot in schedule(confirmation) if slot.round is not None}
    pairs: dict[str, list[Verdict]] = {key: [] for key in confirmation.finalists}
    for (number, key), slot in places.items():
        other = places[number, confirmation.baseline_key]
        if key == other.candidate_key or slot.index not in usable or other.index not in usable:
            continue
        verdict = judge(usable[slot.index], usable[other.index], objective, limits)
        if verdict.value is None:
            holes.setdefault(key, f"{slot.place}: {verdict.reasons[0]}")
        else:
            pairs[key].append(verdict)
    here = [start for start in starts if start.slot is not None and start.gpus == confirmation.gpus]
    return Rounds(
        baseline=[
            usable[slot.index]
            for slot in schedule(confirmation)
            if slot.candidate_key == confirmation.baseline_key and slot.index in usable
        ],
        pairs=pairs,
        holes=holes,
        excluded=Counter(start.candidate_key for start in here if start.excluded),
        origins=frozenset(m.origin for start in filled.values() for m in runs.get(start.id, ())),
    )


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


def _why_open(slot: Slot, starts: Sequence[Start], gpus: int) -> str:
    causes = [start.excluded for start in starts if start.slot == slot.index and start.gpus == gpus and start.excluded]
    return f"no start is left; the last was excluded: {causes[-1]}" if causes else "it was never started"


def _no_number(runs: Sequence[Measurement], objective: ObjectiveSection) -> str:
    """Why a start has no number; compared with itself, only its own faults can be named."""
    own = judge(runs, runs, objective)
    return own.reasons[0] if own.value is None else ""


def _other_conditions(start: Start, firsts: Mapping[str, Start], baseline_key: str) -> str:
    """How a start's environment differs from that of the first of its candidate, of the baseline, or of any."""
    for first in (firsts.get(start.candidate_key), firsts.get(baseline_key), next(iter(firsts.values()), None)):
        if first is not None:
            same = first.candidate_key == start.candidate_key
            differences = fingerprint_differences(first.fingerprint, start.fingerprint, same_candidate=same)
            if differences:
                return f"not comparable: {differences[0]}"
    return ""
