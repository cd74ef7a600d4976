"""One prediction in full: every term, how far it may be off, what it rests on and where it leaves that. Prints nothing.

`tuner predict` shows it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.serving import ServingConfig
from tuner.core.workload import ServingWorkload
from tuner.predict import memory
from tuner.predict.constants import GPU, VLLM, Calibration, calibration
from tuner.predict.published import fitted_rows
from tuner.predict.step_time import Setup, step_ms, terms
from tuner.predict.traffic import metrics, traffic
from tuner.predict.uncertainty import Z90, extrapolations, step_log_sd

NEAREST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A published setting like the one predicted. differs: in what, in words; empty where in nothing."""

    setting: str
    source: str
    published_ms: float
    predicted_ms: float
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """terms: milliseconds of one step by name, summing to `step_ms`.   tpot_ms: step_ms / acceptance_length + stall_ms,
    where `stall_ms` is what other requests' prefills add.   low_ms, high_ms: a 90 % interval of `tpot_ms`.
    asked, path: the decode backend that the configuration names, and the one whose kernels run at this many requests.
    rests_on: published settings that the constants were fitted on.   extrapolates: what nobody has published.
    largest_context, most_requests: what fits into memory at this many requests, and at this context.
    """

    workload: str
    asked: str
    path: str
    terms: Mapping[str, float]
    step_ms: float
    acceptance_length: float
    stall_ms: float
    tpot_ms: float
    low_ms: float
    high_ms: float
    metrics: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    largest_context: int
    most_requests: int
    nearest: tuple[Near, ...]
    extrapolates: tuple[str, ...]
    rests_on: tuple[str, ...]
    calibration: str
    vllm: str = VLLM


def explain(
    config: ServingConfig, workload: ServingWorkload, *, vllm: str | None = None, using: Calibration | None = None
) -> Prediction:
    """vllm: the version that is to run, where it is known.   using: the shipped calibration where absent.

    Raises:
        PredictError: a step that is not predicted, or acceptance that is left to the text.
        AcceptanceError: the workload's curve has no value for the draft length.
    """
    known = using or calibration()
    seen = traffic(config, workload, known.constants)
    what, running = seen.setup, seen.running
    spread = math.exp(Z90 * step_log_sd(what, known))
    decode_ms = seen.step_ms / seen.acceptance
    return Prediction(
        workload=workload.key,
        asked=config.decode_backend or "auto",
        path=what.path,
        terms=terms(what, known.constants),
        step_ms=seen.step_ms,
        acceptance_length=seen.acceptance,
        stall_ms=seen.stall_ms,
        tpot_ms=seen.tpot_ms,
        low_ms=decode_ms / spread + seen.stall_ms,
        high_ms=decode_ms * spread + seen.stall_ms,
        metrics=metrics(config, workload, seen),
        memory_bytes=memory.bytes_needed(config, requests=running, context=workload.max_model_len),
        largest_context=memory.largest_context(config, GPU, requests=running),
        most_requests=memory.most_requests(config, GPU, context=workload.max_model_len),
        nearest=nearest(what, known),
        extrapolates=(*(e.sentence for e in extrapolations(what)), *_not_modelled(config, vllm or VLLM)),
        rests_on=known.settings,
        calibration=known.key,
    )


def nearest(what: Setup, using: Calibration) -> tuple[Near, ...]:
    """The published settings that differ least, first those that the model was fitted on."""
    found: dict[str, tuple[float, Near]] = {}
    for row in fitted_rows():
        theirs = row.setup
        found.setdefault(
            row.setting,
            (
                _distance(what, theirs),
                Near(
                    setting=row.setting,
                    source=row.source,
                    published_ms=row.step_ms,
                    predicted_ms=step_ms(theirs, using.constants),
                    differs=_differences(what, theirs),
                ),
            ),
        )
    return tuple(near for _, near in sorted(found.values(), key=lambda pair: pair[0])[:NEAREST])


def _distance(what: Setup, other: Setup) -> float:
    """Doublings apart, a change of kernels or of speculation counting as two."""
    return (
        2.0 * (what.path != other.path)
        + 2.0 * ((what.drafts > 0) != (other.drafts > 0))
        + abs(math.log2(what.tensor_parallel / other.tensor_parallel))
        + abs(math.log2(what.tokens / other.tokens))
        + abs(math.log2(what.requests / other.requests)) / 2
        + abs(math.log2((what.context + 1024) / (other.context + 1024))) / 4
        + abs(what.months - other.months) / 2
    )


def _differences(what: Setup, other: Setup) -> tuple[str, ...]:
    pairs = (
        ("decode path", what.path, other.path),
        ("tensor parallel", what.tensor_parallel, other.tensor_parallel),
        ("drafts", what.drafts, other.drafts),
        ("requests", what.requests, other.requests),
        ("context", what.context, other.context),
        ("decode context parallel", what.dcp, other.dcp),
        ("date", "", "" if not other.months else f"{other.months:.1f} months before vLLM {VLLM}'s"),
    )
    return tuple(f"{name} {theirs}" for name, mine, theirs in pairs if mine != theirs)


def _not_modelled(config: ServingConfig, vllm: str) -> tuple[str, ...]:
    cases = (
        (vllm != VLLM, f"vLLM {vllm}: predicted as {VLLM}"),
        (config.kernel_table not in (None, "stock"), "a tuned tile table: predicted as the stock one"),
        (config.mla_core not in (None, "auto"), f"mla_core {config.mla_core}: predicted as auto"),
    )
    return tuple(sentence for holds, sentence in cases if holds)
