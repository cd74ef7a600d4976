"""Judge generated text on the decode path: does it agree with the prefill path, and is it no worse than the baseline's?

Prefill never runs the specialised decode, so scoring a given text proves nothing about it. Outputs are generated with
log probabilities (decode path), and the same tokens are scored as a prompt by the same engine and by the baseline's.
Exact equality is no gate: 2 of 8 greedy outputs diverged with n-gram speculation and all 8 between TP1 and TP2, with
log probabilities before the divergence within 0.008 and 0.23 (vLLM 0.32.0, CPU, bfloat16, 2026-12-01). Knows no engine.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.serving import ServingConfig
from tuner.core.decision import QualityResult
from tuner.core.ports import Generated, Scored

HIGH_QUANTILE = 0.99
FACTOR = 3.0  # a candidate's numerics may differ from the baseline's by as much again, and by chance between prompts
# Floors, in nats, where the baseline agrees with itself better than arithmetic can promise of another configuration.
# Same engine, decode against prefill: 99 % within 0.0001, the largest 0.0078 on a CPU; a bfloat16 logit of 16 to 32 has
# steps of 0.125. Across engines: TP1 against TP2 in bfloat16 within 0.23 before they diverge.
FLOORS = {"own": {"typical": 0.05, "worst": 0.5}, "by_baseline": {"typical": 0.25, "worst": 1.0}}
EMPTY = "empty_outputs"  # the check whose limit is the baseline's own share of them
MOSTLY_EMPTY = 0.5  # share of the baseline's outputs from which on a comparison with them says little
REPETITION_ROOM = 0.1  # share of an output; between two runs of one model on other prompts it moves by this much


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest gap in nats: at 99 % of the tokens (`typical`), and at every token (`worst`)."""

    typical: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One engine's outputs at one graph size.

    own: the same engine's prefill scores of them.   by_baseline: the baseline's, in a start of its own.
    """

    outputs: Sequence[Generated]
    own: Sequence[Scored]
    by_baseline: Sequence[Scored]


def prompts(count: int, length: int, vocabulary_size: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Random token ids. From the middle of the vocabulary: its ends hold control and image tokens, which an engine may
    refuse in a prompt or end the output for."""
    draw = random.Random(seed)
    low, high = vocabulary_size // 10, vocabulary_size - vocabulary_size // 10
    return tuple(tuple(draw.randrange(low, high) for _ in range(length)) for _ in range(count))


def graph_sizes(config: ServingConfig, concurrency: int) -> tuple[int, ...]:
    """Numbers of requests in flight at which each captured size is run, up to the concurrency, ascending.

    A decode step has M = requests x (drafts + 1) tokens and runs the next larger captured size. Where the sizes are
    left to the engine: powers of two, each of which vLLM captures.
    """
    most = min(concurrency, config.max_num_seqs or concurrency)
    captured = config.cudagraph_capture_sizes
    if captured is None:
        counts = {2**power for power in range(most.bit_length()) if 2**power <= most}
    else:
        counts = {-(-size // config.tokens_per_request) for size in captured}
    return tuple(sorted({count for count in counts if 0 < count <= most} | {most}))


def decode_against_prefill(outputs: Sequence[Generated], scores: Sequence[Scored]) -> tuple[float, ...]:
    """|log p on the decode path - log p on the prefill path| of every generated token, in nats.

    Infinite where either is not a number. An output whose scores are not one for each token counts as infinite once.
    """
    return tuple(gap for output, score in _pairs(outputs, scores) for gap in _gaps(output.logprobs, score.logprobs))


def regret(outputs: Sequence[Generated], scores: Sequence[Scored]) -> tuple[float, ...]:
    """How much likelier the scorer's own choice was than each generated token, in nats; 0 where they agree."""
    return tuple(
        max(0.0, gap) if math.isfinite(gap) else math.inf
        for _, score in _pairs(outputs, scores)
        for gap in _differences(score.best, score.logprobs)
    )


def tolerance(*baseline_gaps: Sequence[float], floor: Mapping[str, float]) -> Tolerance:
    """From the baseline against itself, every set of gaps that it gave: three times the largest of them, at 99 % of the
    tokens and at the worst one, and never less than the floor."""
    return Tolerance(
        typical=max(floor["typical"], FACTOR * max(quantile(gaps) for gaps in baseline_gaps)),
        worst=max(floor["worst"], FACTOR * max(max(gaps, default=0.0) for gaps in baseline_gaps)),
    )


def quantile(values: Sequence[float], share: float = HIGH_QUANTILE) -> float:
    """The least value that a share of all values does not exceed; 0 of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def repetition(token_ids: Sequence[int]) -> float:
    """Length of the longest run of tokens that occurs twice (overlaps count), over the length of the output."""
    low, high = 0, max(0, len(token_ids) - 1)
    while low < high:  # a run of n that occurs twice contains one of n - 1 that does
        middle = (low + high + 1) // 2
        seen = {tuple(token_ids[i : i + middle]) for i in range(len(token_ids) - middle + 1)}
        low, high = (middle, high) if len(seen) < len(token_ids) - middle + 1 else (low, middle - 1)
    return low / len(token_ids) if token_ids else 0.0


def evaluate(
    candidate_key: str, candidate: Reading, first: Reading, second: Reading, *, at: str = ""
) -> tuple[QualityResult, ...]:
    """Every check of a candidate's outputs at one graph size.

    first, second: the baseline twice on the same prompts, in two starts, each scored by the other one (`by_baseline`);
    what differs between them is the tolerance.   at: the graph size, for the evidence.

    Raises:
        ValueError: a baseline that generated nothing, or whose values are no numbers, calibrates nothing.
    """
    if not all(any(output.token_ids for output in reading.outputs) for reading in (first, second)):
        raise ValueError("the baseline generated nothing, so there is nothing to compare with")
    count = f"{sum(len(output.token_ids) for output in candidate.outputs)} tokens in {len(candidate.outputs)} outputs"

    def check(name: str, value: float, limit: float, unit: str) -> QualityResult:
        return QualityResult(
            name=name,
            candidate_key=candidate_key,
            value=value if math.isfinite(value) else NO_NUMBER,
            limit=limit,
            unit=unit,
            passed=value <= limit,
            at=at,
            detail=count,
        )

    results = []
    for name, measure, scorer in _CHECKS:
        gaps = measure(candidate.outputs, getattr(candidate, scorer))
        allowed = tolerance(*(measure(r.outputs, getattr(r, scorer)) for r in (first, second)), floor=FLOORS[scorer])
        if not math.isfinite(allowed.worst):
            raise ValueError(f"{name}: the baseline's own values are not numbers, so they calibrate nothing")
        results.append(check(name, quantile(gaps), allowed.typical, f"nats at {HIGH_QUANTILE:.0%} of the tokens"))
        results.append(check(f"{name}_worst", max(gaps, default=math.inf), allowed.worst, "nats at the worst token"))
    for name, share, room, unit in (
        (EMPTY, _share_empty, 0.0, "share of the outputs"),
        ("repetition", _mean_repetition, REPETITION_ROOM, "share of an output that is one repeated run, mean"),
    ):
        allowed_share = min(1.0, max(share(first.outputs), share(second.outputs)) + room)
        results.append(check(name, share(candidate.outputs), allowed_share, unit))
    return tuple(results)


NO_NUMBER = 1e9  # stands for a gap that is no number, in evidence that is stored as strict JSON
_CHECKS: tuple[tuple[str, Callable[[Sequence[Generated], Sequence[Scored]], tuple[float, ...]], str], ...] = (
    ("decode_against_prefill", decode_against_prefill, "own"),
    ("regret", regret, "own"),
    ("decode_against_baseline", decode_against_prefill, "by_baseline"),
    ("regret_by_baseline", regret, "by_baseline"),
)


def _pairs(outputs: Sequence[Generated], scores: Sequence[Scored]) -> list[tuple[Generated, Scored]]:
    if len(outputs) != len(scores):
        raise ValueError(f"{len(outputs)} outputs and {len(scores)} scores")
    return list(zip(outputs, scores, strict=True))


def _gaps(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [abs(gap) if math.isfinite(gap) else math.inf for gap in _differences(a, b)]


def _differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    if len(a) != len(b):
        return [math.inf]
    return [x - y if math.isfinite(x) and math.isfinite(y) else math.inf for x, y in zip(a, b, strict=True)]


def _share_empty(outputs: Sequence[Generated]) -> float:
    """Outputs without a token, or of white space alone."""
    return sum(not o.token_ids or not o.text.strip() for o in outputs) / len(outputs) if outputs else 1.0


def _mean_repetition(outputs: Sequence[Generated]) -> float:
    return math.fsum(repetition(o.token_ids) for o in outputs) / len(outputs) if outputs else 0.0
