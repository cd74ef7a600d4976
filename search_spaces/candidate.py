"""The identity of a configuration. Knows nothing of what the values mean."""

import hashlib
import json
from typing import Protocol

from search_spaces.knob import Scalar


class Candidate(Protocol):
    """A frozen, hashable configuration: a `ServingConfig` or a kernel tile."""

    @property
    def kind(self) -> str:
        """`serving`, or the kernel target's name."""
        ...

    def values(self) -> dict[str, Scalar]:
        """The options that were set, by name; an option left to the engine's default is absent."""
        ...


def candidate_key(candidate: Candidate) -> str:
    """Sixteen hex digits that name a candidate in every table and file; equal configurations share it."""
    text = json.dumps([candidate.kind, candidate.values()], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(candidate: Candidate, other: Candidate) -> dict[str, tuple[Scalar, Scalar]]:
    """Option to (value in `candidate`, value in `other`), for the options in which they differ."""
    mine, theirs = candidate.values(), other.values()
    names = [*mine, *(name for name in theirs if name not in mine)]
    return {name: (mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)}
