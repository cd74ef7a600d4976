"""Which candidate to try next: Optuna's ask and tell over a finite feasible set. Knows no engine and no table.

Optuna proposes a point; the nearest untried feasible candidate is tried, and Optuna is told of that one. So no
candidate is tried twice, no infeasible one is ever proposed, and what is learnt is learnt of what was run.
"""

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial
from scipy.stats import spearmanr

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.knob import Scalar
from tuner.core.ports import Belief
from tuner.core.stopping import Known
from tuner.core.tpe import GridTpe, is_compared

GP_TRIALS_AT_MOST = 300  # a Gaussian process is refitted on every ask, in time cubic in the trials
TRUST_BEFORE_EVIDENCE = 0.75  # share of choices left to the beliefs until five trials can speak for or against them
TRUST_NEEDS = 5
LARGEST = 1e9  # stands for infinity, which Optuna's samplers cannot use


@dataclass(frozen=True, slots=True)
class Choice:
    """why: `every point`, `seed`, `belief`, or the Optuna sampler's name."""

    candidate: Candidate
    why: str


class Search:
    """The order in which one contest's candidates are tried.

    candidates: the feasible set.   trials: how many will be tried; where that covers the set, all of it is tried.
    seeds: known-good ones, tried first.   beliefs: candidate key to what is thought of it; they order the first
    trials, and are followed later only as far as their ranks have agreed with what was measured.
    """

    def __init__(
        self,
        *,
        candidates: Sequence[Candidate],
        trials: int,
        seed: int,
        seeds: Sequence[Candidate] = (),
        beliefs: Mapping[str, Belief] | None = None,
    ) -> None:
        self._candidates = {candidate_key(candidate): candidate for candidate in candidates}
        self._keys = list(self._candidates)
        self._rows = {key: row for row, key in enumerate(self._keys)}
        self._untried = np.ones(len(self._keys), dtype=bool)
        self._values: dict[str, float] = {}
        self._seeds = [key for key in map(candidate_key, seeds) if key in self._candidates]
        self._beliefs = {key: belief for key, belief in (beliefs or {}).items() if key in self._candidates}
        self._ranked = sorted(self._beliefs, key=lambda key: -self._beliefs[key].mean)
        self._exhaustive = trials >= len(self._keys)
        self._random = np.random.default_rng(seed)
        self._grid = _Grid([candidate.values() for candidate in candidates])
        with _quiet():
            own = sampler(trials, seed)
            self._name = type(own).__name__
            if type(own) is TPESampler and is_compared():
                own = GridTpe(self._grid.distributions, seed)
            self._optuna = optuna.create_study(direction="maximize", sampler=own)

    @property
    def left(self) -> int:
        return int(self._untried.sum())

    @property
    def sampler_name(self) -> str:
        return "every point" if self._exhaustive else self._name

    def ask(self) -> Choice | None:
        """An untried candidate, which counts as tried from now on; None where none is left."""
        for key, why in self._proposals():
            row = self._rows[key]
            if self._untried[row]:
                self._untried[row] = False
                return Choice(self._candidates[key], why)
        return None

    def skip(self, key: str) -> None:
        """This candidate is tried elsewhere, as the baseline or in an earlier life of the study."""
        if key in self._rows:
            self._untried[self._rows[key]] = False

    def tell(self, key: str, value: float | None, *, worst_margin: float = 0.0) -> None:
        """What became of a candidate.

        value: log of the ratio to the baseline, larger is better; None where there is no number, from which
        nothing is learnt but that it was tried.   worst_margin: of the limits; negative is a miss.
        """
        self.skip(key)
        if value is None or key not in self._rows:
            return
        self._values[key] = value
        params, missed = self._grid.params(self._rows[key]), min(max(-worst_margin, -LARGEST), LARGEST)
        if isinstance(self._optuna.sampler, GridTpe):
            self._optuna.sampler.observe(params, value, max(0.0, missed))
            return
        self._optuna.add_trial(
            create_trial(
                value=value,
                params=params,
                distributions=self._grid.distributions,
                constraints={"limits": missed},
            )
        )

    def known(
        self, told: Mapping[str, tuple[float, bool]], *, baseline_feasible: bool, trials: int, noise: float
    ) -> Known:
        """What `stopping` weighs. told: candidate key to log ratio and whether it kept its limits."""
        tried = [key for key in told if key in self._rows]
        believed = np.zeros(len(self._keys))
        for key, belief in self._beliefs.items():
            believed[self._rows[key]] = belief.mean
        return Known(
            points=self._grid.points,
            believed=believed,
            tried=np.array([self._rows[key] for key in tried], dtype=np.intp),
            values=np.array([told[key][0] for key in tried], dtype=np.float64),
            feasible=np.array([told[key][1] for key in tried], dtype=np.bool_),
            baseline_feasible=baseline_feasible,
            left=np.flatnonzero(self._untried),
            trials=trials,
            noise=noise,
        )

    def trust(self) -> float:
        """How far the beliefs are followed: their rank correlation with what was measured, none below zero."""
        known = [key for key in self._values if key in self._beliefs]
        if len(known) < TRUST_NEEDS:
            return TRUST_BEFORE_EVIDENCE
        believed = [self._beliefs[key].mean for key in known]
        measured = [self._values[key] for key in known]
        if len(set(believed)) == 1 or len(set(measured)) == 1:
            return 0.0
        return max(0.0, float(spearmanr(believed, measured).statistic))

    def _proposals(self) -> Iterator[tuple[str, str]]:
        yield from ((key, "seed") for key in self._seeds)
        if self._exhaustive:
            yield from ((key, "every point") for key in self._ranked)
            yield from ((key, "every point") for key in self._keys)
            return
        if self._ranked and self._random.random() < self.trust():
            yield from ((key, "belief") for key in self._ranked)
        if self.left:
            yield self._keys[self._ask_optuna()], self.sampler_name

    def _ask_optuna(self) -> int:
        with _quiet():
            asked = self._optuna.ask(self._grid.distributions)
            self._optuna.tell(asked, state=TrialState.FAIL)
        return self._grid.nearest(asked.params, self._untried)


def sampler(trials: int, seed: int) -> BaseSampler:
    """A Gaussian process where it can be afforded and torch is installed, else TPE."""
    with _quiet():
        if trials < GP_TRIALS_AT_MOST and importlib.util.find_spec("torch") is not None:
            return GPSampler(seed=seed)
        return TPESampler(seed=seed)


class _Grid:
    """Candidates as points on axes that Optuna can sample: one axis an option, without those that say nothing new."""

    def __init__(self, options: Sequence[Mapping[str, Scalar]]) -> None:
        names = sorted({name for values in options for name in values})
        columns = {name: [values.get(name) for values in options] for name in names}
        levels = {name: _levels(column) for name, column in columns.items()}
        self._levels = {name: found for name, found in levels.items() if len(found) > 1}
        self._drop_redundant(columns, len(options))
        self._names = list(self._levels)
        index = {name: {_typed(level): i for i, level in enumerate(found)} for name, found in self._levels.items()}
        self.points = np.array(
            [[index[name][_typed(columns[name][row])] for name in self._names] for row in range(len(options))],
            dtype=np.int32,
        ).reshape(len(options), len(self._names))
        self._ordered = np.array([_is_ordered(self._levels[name]) for name in self._names], dtype=bool)
        self._spans = np.array([max(1, len(self._levels[name]) - 1) for name in self._names], dtype=float)
        self.distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(self._levels[name]) - 1)
            if _is_ordered(self._levels[name])
            else CategoricalDistribution(list(range(len(self._levels[name]))))
            for name in self._names
        }

    def _drop_redundant(self, columns: Mapping[str, Sequence[Scalar]], size: int) -> None:
        """An option that follows from the others (capture sizes, one of a pair) is no axis of its own."""
        for name in sorted(self._levels, key=lambda n: (-len(self._levels[n]), n)):
            rest = [columns[other] for other in self._levels if other != name]
            if rest and len(set(zip(*rest, strict=True))) == size:
                del self._levels[name]

    def params(self, row: int) -> dict[str, int]:
        return {name: int(level) for name, level in zip(self._names, self.points[row], strict=True)}

    def nearest(self, params: Mapping[str, object], untried: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> int:
        """The untried row with the fewest differing options, ordered ones counted by their distance."""
        rows = np.flatnonzero(untried)
        point = np.array([int(str(params[name])) for name in self._names], dtype=np.int32)
        apart = np.abs(self.points[rows] - point)
        distance = np.where(self._ordered, apart / self._spans, apart != 0).sum(axis=1)
        return int(rows[int(np.argmin(distance))])


def _typed(value: Scalar) -> tuple[str, Scalar]:
    return type(value).__name__, value


def _levels(column: Sequence[Scalar]) -> list[Scalar]:
    """Distinct values: absent first, numbers by size, everything else by first appearance."""
    distinct: list[Scalar] = list({_typed(value): value for value in column}.values())
    present: list[Scalar] = [value for value in distinct if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        present.sort(key=lambda value: float(value or 0))
    return [None, *present] if None in distinct else present


def _is_ordered(levels: Sequence[Scalar]) -> bool:
    """Numbers have an order; an absent one stands at the low end (no drafts, no limit set)."""
    return all(level is None or (isinstance(level, int | float) and not isinstance(level, bool)) for level in levels)


class _quiet:
    """Optuna without its log lines and its warnings about what is experimental."""

    def __enter__(self) -> None:
        self._verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def __exit__(self, *_: object) -> None:
        optuna.logging.set_verbosity(self._verbosity)


def log_ratio(ratio: float) -> float:
    """What the search is told of a verdict's ratio to the baseline."""
    return math.log(ratio)
