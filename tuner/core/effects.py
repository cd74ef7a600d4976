"""What each knob did: additive main effects on the log ratio, with intervals. Pure arithmetic on trials.

All knobs are fitted together, so that a value which the search tried mostly beside another good one is not given the
other's credit. Interactions are not in the model: they widen the intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from search_spaces.knob import Scalar

DEGREES_AT_LEAST = 3  # of freedom, below which an interval would say nothing
ESTIMABLE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One value of a knob against the baseline's value.

    change: ratio of the objective, minus 1; above 0 is better.   lower, upper: confidence bounds of the same; None
    where too few trials are left to tell.   trials: measured with that value.
    """

    knob: str
    value: str
    reference: str
    change: float
    lower: float | None
    upper: float | None
    trials: int


def main_effects(
    points: Sequence[tuple[Mapping[str, Scalar], float]], baseline: Mapping[str, Scalar], *, confidence: float = 0.95
) -> list[Effect]:
    """Largest change first. points: a candidate's values and its ratio to the baseline, better above 1; a ratio that
    is no positive finite number is left out. A value whose effect cannot be told from another's is left out too."""
    usable = [
        ({name: str(value) for name, value in values.items()}, math.log(ratio))
        for values, ratio in points
        if math.isfinite(ratio) and ratio > 0
    ]
    if len(usable) < 2:
        return []
    reference = {name: str(value) for name, value in baseline.items()}
    names = list(dict.fromkeys(name for values, _ in usable for name in values))
    levels = sorted(
        {
            (name, values.get(name, "None"))
            for name in names
            for values, _ in usable
            if values.get(name, "None") != reference.get(name, "None")
        }
    )
    if not levels:
        return []
    design = np.array(
        [[1.0, *(float(values.get(name, "None") == value) for name, value in levels)] for values, _ in usable]
    )
    y = np.array([ratio for _, ratio in usable])
    inverse = np.linalg.pinv(design)
    fitted = inverse @ y
    told_apart = np.abs(inverse @ design - np.eye(design.shape[1])).max(axis=1) < ESTIMABLE
    degrees = len(usable) - int(np.linalg.matrix_rank(design))
    residual = y - design @ fitted
    spread = math.sqrt(float(residual @ residual) / degrees) if degrees >= DEGREES_AT_LEAST else None
    quantile = float(t.ppf((1 + confidence) / 2, degrees)) if spread is not None else 0.0
    found = []
    for column, (name, value) in enumerate(levels, start=1):
        if not told_apart[column]:
            continue
        middle = float(fitted[column])
        half = quantile * spread * float(np.linalg.norm(inverse[column])) if spread is not None else None
        found.append(
            Effect(
                knob=name,
                value=value,
                reference=reference.get(name, "None"),
                change=math.expm1(middle),
                lower=None if half is None else math.expm1(middle - half),
                upper=None if half is None else _expm1(middle + half),
                trials=int(design[:, column].sum()),
            )
        )
    return sorted(found, key=lambda effect: -abs(effect.change))


def _expm1(value: float) -> float:
    return math.expm1(min(value, 50.0))
