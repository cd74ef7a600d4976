"""A reason why a configuration cannot be right, with its source. Knows nothing of how candidates are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a candidate was refused: the rule's name, the sentence a user reads, and who says so."""

    rule: str
    sentence: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition that every candidate must satisfy.

    name: stable identifier, kebab-case; counted in `tuner check`.
    sentence: what a user reads when the rule refuses.
    source: where the rule was read: a file of vLLM, a data sheet, arithmetic, or the study file.
    holds: True where the candidate satisfies the rule. It receives the candidate; what else it needs it closes over.
    versions: the vLLM versions that the rule was read from; others are not bound by it.
    """

    name: str
    sentence: str
    source: str
    holds: Callable[[Any], bool]
    versions: str = ""

    def applies_to(self, version: str) -> bool:
        return not self.versions or SpecifierSet(self.versions).contains(version, prereleases=True)

    def reason(self) -> Reason:
        return Reason(rule=self.name, sentence=self.sentence, source=self.source)


def broken(rules: Sequence[Rule], candidate: object) -> list[Reason]:
    """The reasons against `candidate`, in the order of the rules; empty where all hold."""
    return [rule.reason() for rule in rules if not rule.holds(candidate)]
