"""One thing that may be turned, and its choices. Knows nothing of rules or of vLLM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Scalar = bool | int | float | str | None
Values = Mapping[str, Scalar]


def always(_: Values) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A named option with finitely many choices.

    name: the option's field in the candidate, in vLLM's (or the kernel's) own words.
    choices: distinct values; the order is the natural one where there is one.
    active: whether the knob means anything, given the knobs *before* it in the space. An inactive knob takes
        `inert`, so two points that the engine cannot tell apart are one candidate.
    """

    name: str
    choices: tuple[Scalar, ...]
    active: Callable[[Values], bool] = always
    inert: Scalar = None

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError(f"knob {self.name!r} has no choices")
        if len({(type(choice), choice) for choice in self.choices}) != len(self.choices):
            raise ValueError(f"knob {self.name!r} repeats a choice: {list(self.choices)}")

    def choices_given(self, values: Values) -> tuple[Scalar, ...]:
        return self.choices if self.active(values) else (self.inert,)
