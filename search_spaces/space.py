"""Knobs times rules: the points of a space, the feasible ones, and why the others are not. Knows no engine."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.rule import Reason, Rule, broken


class SpaceError(ValueError):
    """A space, or a narrowing of one, that cannot be right; the message names the knob and the reason."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """What is left of a space once the rules have spoken.

    points: how many distinct candidates the knobs make.
    candidates: those that satisfy every rule, in the order of the knobs.
    rejected: rule name to how many candidates it refused; one candidate may be refused by several rules.
    """

    points: int
    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Knobs, rules, and how a candidate is made of one choice for each knob.

    make: knob values to candidate. Equal candidates are one point.
    baselines: GPU count to the configuration that a user runs today; every gain is measured against it.
    gpus: how many GPUs a candidate needs.
    seeds: known-good configurations worth trying first.
    version: changes when knobs or rules change, so that stored studies can tell.
    """

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[Rule, ...]
    make: Callable[[Values], Candidate]
    baselines: Mapping[int, Candidate]
    gpus: Callable[[Candidate], int] = lambda _: 1
    seeds: tuple[Candidate, ...] = ()
    version: str = "1"
    _index: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise SpaceError(f"space {self.name!r} has two knobs named {repeated[0]!r}")
        self._index.update({name: position for position, name in enumerate(names)})

    def knob(self, name: str) -> Knob:
        """Raises SpaceError where no knob has that name; the message lists those there are."""
        if name not in self._index:
            raise SpaceError(f"space {self.name!r} has no knob {name!r}; it has {', '.join(self._index)}")
        return self.knobs[self._index[name]]

    def points(self) -> Iterator[Candidate]:
        """Every distinct candidate of the knobs, rules not asked."""
        seen: set[Candidate] = set()
        for values in assignments(self.knobs):
            candidate = self.make(values)
            if candidate not in seen:
                seen.add(candidate)
                yield candidate

    def reasons(self, candidate: Candidate) -> list[Reason]:
        return broken(self.rules, candidate)

    def feasible(self) -> Feasible:
        points = 0
        candidates: list[Candidate] = []
        rejected: Counter[str] = Counter()
        for candidate in self.points():
            points += 1
            names = [rule.name for rule in self.rules if not rule.holds(candidate)]
            if names:
                rejected.update(names)
            else:
                candidates.append(candidate)
        return Feasible(points, tuple(candidates), dict(rejected))

    def narrowed(self, *, fix: Mapping[str, Scalar], only: Mapping[str, Sequence[Scalar]]) -> "Space":
        """The same space with some knobs pinned or narrowed to a subset of their choices.

        A pinned or narrowed knob keeps its condition: where it is inactive it still takes its inert value.

        Raises:
            SpaceError: a knob or a choice that the space does not have.
        """
        wanted = {**{name: tuple(choices) for name, choices in only.items()}, **{n: (v,) for n, v in fix.items()}}
        for name, choices in wanted.items():
            knob = self.knob(name)
            for choice in choices:
                if not any(choice == known and type(choice) is type(known) for known in knob.choices):
                    raise SpaceError(f"knob {name!r} has no choice {choice!r}; it has {list(knob.choices)}")
        knobs = tuple(replace(k, choices=wanted[k.name]) if k.name in wanted else k for k in self.knobs)
        return replace(self, knobs=knobs, _index={})

    def extended(self, *, knobs: Sequence[Knob], rules: Sequence[Rule]) -> "Space":
        """The same space with further knobs and rules behind its own."""
        return replace(self, knobs=(*self.knobs, *knobs), rules=(*self.rules, *rules), _index={})

    def for_version(self, vllm_version: str) -> "Space":
        """The same space without the rules that were not read from `vllm_version`."""
        return replace(self, rules=tuple(r for r in self.rules if r.applies_to(vllm_version)), _index={})

    def find(self, key: str) -> Candidate:
        """Raises KeyError where no point has that key."""
        for candidate in self.points():
            if candidate_key(candidate) == key:
                return candidate
        raise KeyError(key)


def assignments(knobs: Sequence[Knob], chosen: dict[str, Scalar] | None = None) -> Iterator[dict[str, Scalar]]:
    """Every choice of every knob in order; an inactive knob contributes its inert value only."""
    chosen = {} if chosen is None else chosen
    if not knobs:
        yield dict(chosen)
        return
    first, rest = knobs[0], knobs[1:]
    for choice in first.choices_given(chosen):
        chosen[first.name] = choice
        yield from assignments(rest, chosen)
    chosen.pop(first.name, None)
