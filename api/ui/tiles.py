"""A kernel study's pictures: tiles side by side, the fastest against the roofline, and a group's answers over shapes.

Knows nouns; no HTTP, no templates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.schemas import StudySummary
from tuner.core.recorded import METRIC
from tuner.core.roofline import GPUS, floor_us
from tuner.core.side_by_side import means
from tuner.core.study_file import StudyFile
from tuner.core.trial import Trial, measured
from tuner.core.workload import GemmProblem

SHADES = 8  # of a heat map: 8 is the fastest
SLOW = 1.5  # times slower than the fastest, and more, is shade 0: one very slow tile would make all others alike
AXES = {"skinny_gemm": ("block_size", "outputs_per_block"), "decode_gemm": ("warps", "rows")}


@dataclass(frozen=True, slots=True)
class Cell:
    """The fastest tile of those that share both values. shade: 0 to SHADES, by the logarithm of
    the time."""

    us: float
    trial: int
    tiles: int
    shade: int
    best: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """times: the floor, or the fastest of the bars where no floor is known.   width: of the longest, from 0 to 100."""

    name: str
    us: float
    times: float
    width: float
    trial: int | None


@dataclass(frozen=True, slots=True)
class Heat:
    """cells: one list a row, None where no tile was measured."""

    problem: GemmProblem
    gpu: str
    row_axis: str
    column_axis: str
    columns: Sequence[int]
    rows: Sequence[tuple[int, Sequence[Cell | None]]]
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Member:
    """A study of a group: its problem's best tile so far against the baseline, and what was decided."""

    study: StudySummary
    problem: GemmProblem


@dataclass(frozen=True, slots=True)
class Group:
    """by_shape: name, n and k of a shape, and its study for each M of ms, None where there is none."""

    ms: Sequence[int]
    by_shape: Sequence[tuple[str, Sequence[Member | None]]]


def heats(file: StudyFile, trials: Sequence[Trial]) -> list[Heat]:
    """One a problem; none for a study that serves."""
    problems = [workload for workload in file.workloads if isinstance(workload, GemmProblem)]
    found = (heat(problem, file.hardware.gpu, trials) for problem in problems)
    return [one for one in found if one is not None]


def heat(problem: GemmProblem, gpu: str, trials: Sequence[Trial]) -> Heat | None:
    """None where no tile was measured."""
    us = {
        t.number: value for t in measured(trials) if (value := means(t).get(problem.key, {}).get(METRIC, math.nan)) > 0
    }
    by_number = {trial.number: trial for trial in trials if trial.number in us}
    tiles = {number: trial for number, trial in by_number.items() if trial.candidate.kind in AXES}
    if not tiles:
        return None
    row_axis, column_axis = AXES[next(iter(tiles.values())).candidate.kind]
    places: dict[tuple[int, int], list[int]] = {}
    for number, trial in tiles.items():
        values = trial.candidate.values()
        places.setdefault((int(values[row_axis] or 0), int(values[column_axis] or 0)), []).append(number)
    fastest = {place: min(numbers, key=us.__getitem__) for place, numbers in places.items()}
    best, worst = min(us[n] for n in fastest.values()), max(us[n] for n in fastest.values())
    span = math.log(min(worst / best, SLOW)) or 1.0

    def cell(place: tuple[int, int]) -> Cell | None:
        if place not in fastest:
            return None
        number = fastest[place]
        shade = max(0, round(SHADES * (1 - math.log(us[number] / best) / span)))
        return Cell(us[number], number, len(places[place]), shade, us[number] == best)

    columns = sorted({column for _, column in places})
    rows = [(row, [cell((row, column)) for column in columns]) for row in sorted({row for row, _ in places})]
    return Heat(problem, gpu, row_axis, column_axis, columns, rows, bars(problem, gpu, us, by_number))


def bars(problem: GemmProblem, gpu: str, us: Mapping[int, float], trials: Mapping[int, Trial]) -> list[Bar]:
    """The least that the GPU could need, what runs the problem today, and the fastest that was measured."""
    named: list[tuple[str, float, int | None]] = []
    if gpu in GPUS:
        named.append(("weights read once, and a launch", floor_us(problem, GPUS[gpu]), None))
    baseline = next((number for number, trial in trials.items() if trial.baseline), None)
    if baseline is not None:
        named.append(("what runs it today", us[baseline], baseline))
    best = min(trials, key=us.__getitem__)
    named.append(("the fastest of the search", us[best], best))
    least, most = named[0][1] if gpu in GPUS else min(one[1] for one in named), max(one[1] for one in named)
    return [Bar(name, value, value / least, round(100 * value / most, 1), trial) for name, value, trial in named]


def group(members: Sequence[tuple[StudySummary, StudyFile]]) -> Group | None:
    """Of the studies of a group, each of one problem; None for fewer than two."""
    found: dict[tuple[int, int, str], dict[int, Member]] = {}
    for summary, file in members:
        for problem in file.workloads:
            if isinstance(problem, GemmProblem):
                found.setdefault((problem.n, problem.k, problem.name), {})[problem.m] = Member(summary, problem)
    if sum(map(len, found.values())) < 2:
        return None
    ms = sorted({m for by_m in found.values() for m in by_m})
    shapes = sorted(found.items())
    return Group(ms, [(f"{name} {n} x {k}".strip(), [by_m.get(m) for m in ms]) for (n, k, name), by_m in shapes])
