"""What a study concluded for one GPU count, and the evidence's outline. Values only; `confirm` computes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CardError(ValueError):
    """A file that is no evidence card; the message says why."""


class DecisionKind(StrEnum):
    VALIDATED = "validated"
    NO_VALIDATED_IMPROVEMENT = "no_validated_improvement"
    INFEASIBLE = "infeasible"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """One check of a candidate's output against a tolerance.

    name: e.g. `decode_against_prefill`.   value, limit: in `unit`; passes where value <= limit.
    at: the graph size, context or prompt set that it was made at.
    """

    name: str
    candidate_key: str
    value: float
    limit: float
    unit: str
    passed: bool
    at: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One finalist against the baseline, from fresh starts only.

    ratios: paired start ratios, candidate over baseline, better above 1, geometric mean over the workloads.
    gain: Hodges-Lehmann estimate of the ratio, minus 1.   lower, upper: confidence bounds of the same.
    p: one-sided exact Wilcoxon, Holm-adjusted over the finalists.   limits: margin by `metric @ workload`, worst
    start; negative is a miss.   reasons: why it is not validated; empty where it is.
    """

    candidate_key: str
    ratios: tuple[float, ...]
    gain: float
    lower: float
    upper: float
    p: float
    limits: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """For one GPU count.

    winner_key: the validated candidate; for a study that is not measured, the best candidate seen; for an infeasible
    one, the nearest point.   smallest_gain: the least gain that these starts could have shown.   estimate: best gain
    seen in the search where nothing was confirmed; never a proof.   qualifier: such as "for this synthetic benchmark
    only".
    """

    kind: DecisionKind
    gpus: int
    baseline_key: str
    winner_key: str | None
    sentence: str
    comparisons: tuple[Comparison, ...] = ()
    quality: tuple[QualityResult, ...] = ()
    smallest_gain: float | None = None
    estimate: float | None = None
    qualifier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What will be started to confirm, fixed before the first start so that it can be resumed.

    finalists: candidate keys.   starts: a side.   noise_starts: starts of the baseline that come first (A/A).
    seed: draws the order.   decision: None until every slot is filled or excluded.
    """

    gpus: int
    baseline_key: str
    finalists: tuple[str, ...]
    starts: int
    noise_starts: int
    seed: int
    quality: tuple[QualityResult, ...] = ()
    decision: Decision | None = None
