"""The metrics that a study may name: unit, better direction, meaning. Knows no measurement.

The names are never mixed: the same word always means the same figure, whoever measured it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class UnknownMetricError(ValueError):
    """No metric has that name, or it cannot be asked for in that way; the message says what is meant instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """larger_is_better: None where neither direction is better in itself.   may_be_zero: whether zero is a value;
    elsewhere it means that nothing was measured (a TPOT of 0 ms would pass any upper bound)."""

    unit: str
    larger_is_better: bool | None
    meaning: str
    may_be_zero: bool = False


_LATENCIES = {
    "ttft": "from sending a request to its first token",
    "tpot": "per output token after the first, over a request",
    "e2e": "from sending a request to its last token",
}
_SESSION_RATES = {
    "session_tokens_per_s": "output tokens over the time in which the session's user waited for them, TTFT included",
    "session_decode_tokens_per_s": "output tokens after each answer's first over the time in which they came",
}
_SUMMARIES = {
    "mean": "mean",
    "p50": "50th percentile",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}


def _table() -> dict[str, Metric]:
    table = {
        "decode_tokens_per_s": Metric(
            unit="tokens/s",
            larger_is_better=True,
            meaning="output tokens in the steady window over its seconds, prefill excluded",
        ),
        "decode_tokens_per_s_per_user": Metric(
            unit="tokens/s", larger_is_better=True, meaning="1000 / mean TPOT in ms: what one user sees"
        ),
        "decode_tokens_per_s_per_gpu": Metric(
            unit="tokens/s", larger_is_better=True, meaning="decode_tokens_per_s over the GPUs that the engine holds"
        ),
        "output_tokens_per_s": Metric(
            unit="tokens/s", larger_is_better=True, meaning="output tokens of the whole run over its seconds"
        ),
        "total_tokens_per_s": Metric(
            unit="tokens/s", larger_is_better=True, meaning="input and output tokens of the whole run over its seconds"
        ),
        "requests_per_s": Metric(
            unit="requests/s", larger_is_better=True, meaning="completed requests of the whole run over its seconds"
        ),
        "mean_running_requests": Metric(
            unit="requests",
            larger_is_better=None,
            meaning="requests decoding at once; below the concurrency, the rest wait and TTFT grows",
        ),
        "acceptance_length": Metric(
            unit="tokens", larger_is_better=True, meaning="tokens per step: 1 + accepted / drafts"
        ),
        "prefix_cache_hit_share": Metric(
            unit="share",
            larger_is_better=None,
            may_be_zero=True,
            meaning="prompt tokens found in the prefix cache; a warm cache inflates every latency",
        ),
        "repeated_prompt_share": Metric(
            unit="share",
            larger_is_better=None,
            may_be_zero=True,
            meaning="prompt tokens of a trace that repeat what was said before: the most that a prefix cache can find",
        ),
        "gpu_clock_mean_mhz": Metric(unit="MHz", larger_is_better=None, meaning="SM clock during the run, mean"),
        "gpu_clock_min_mhz": Metric(unit="MHz", larger_is_better=None, meaning="SM clock during the run, lowest"),
        "gpu_power_mean_w": Metric(unit="W", larger_is_better=False, meaning="power drawn by a GPU, mean"),
        "gpu_temperature_max_c": Metric(unit="C", larger_is_better=False, meaning="hottest reading of a GPU"),
        "gpu_throttled_share": Metric(
            unit="share",
            larger_is_better=False,
            may_be_zero=True,
            meaning="readings in which heat or power held a GPU's clock down",
        ),
        "specialized_share": Metric(
            unit="share",
            larger_is_better=True,
            may_be_zero=True,
            meaning="uniform decode steps that ran the specialised kernels",
        ),
        "step_time_ms": Metric(unit="ms", larger_is_better=False, meaning="one decode step of the engine"),
        "ready_s": Metric(
            unit="s", larger_is_better=False, meaning="from the start of the engine to its first healthy answer"
        ),
        "memory_bytes": Metric(unit="bytes", larger_is_better=False, meaning="device memory held, per GPU"),
        "kernel_us": Metric(unit="us", larger_is_better=False, meaning="one call of a kernel, median of its timings"),
    }
    for name, words in _SESSION_RATES.items():
        for share in (5, 50, 95):
            table[f"{name}_p{share}"] = Metric(
                unit="tokens/s", larger_is_better=True, meaning=f"{share}th percentile over the sessions of {words}"
            )
    for share in (50, 95):
        table[f"session_ttft_p{share}_ms"] = Metric(
            unit="ms", larger_is_better=False, meaning=f"{share}th percentile over the sessions of their mean TTFT"
        )
    for name, span in _LATENCIES.items():
        for summary, words in _SUMMARIES.items():
            table[f"{name}_{summary}_ms"] = Metric(
                unit="ms", larger_is_better=False, meaning=f"{words} of the time {span}"
            )
    return table


METRICS: Mapping[str, Metric] = MappingProxyType(_table())


def metric(name: str) -> Metric:
    """Raises UnknownMetricError, with the nearest known name."""
    if name in METRICS:
        return METRICS[name]
    close = difflib.get_close_matches(name, METRICS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(METRICS)}"
    raise UnknownMetricError(f"no metric is named {name!r}; {hint}")


def check_objective(name: str, *, larger_is_better: bool) -> None:
    """Raises UnknownMetricError where the metric is unknown, or is asked for in the direction that is worse."""
    better = metric(name).larger_is_better
    if better is None:
        raise UnknownMetricError(f"{name}: neither more nor less of it is better, so it cannot be an objective")
    if better != larger_is_better:
        wrong, right = ("maximize", "minimize") if larger_is_better else ("minimize", "maximize")
        raise UnknownMetricError(f"{wrong}: {name} is better {'larger' if better else 'smaller'}; use {right}")
