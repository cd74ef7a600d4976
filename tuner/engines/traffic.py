"""From a workload to vLLM's benchmark and from its result to metrics. Pure, but for the question to the helper.

The metrics are computed here from every request's own times, not taken from the benchmark's summary: with speculation
its ITL counts chunks rather than tokens, and a summary cannot be checked again.
"""

import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.core.measurement import FailureKind, Measurement
from tuner.core.workload import ServingWorkload, Workload

PERCENTILES = (50, 90, 95, 99)
SESSION_RATES = (5, 50, 95)
SESSION_TIMES = (50, 95)
WARM_UP_TOKENS = 32
TPOT_LEAST_MS = 0.01  # 100,000 tokens/s for one user: no decoder is that fast, so below it the clock or the stream lies


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Why a run yields no numbers. again: whether the same run on the same server may well yield some."""

    kind: FailureKind
    sentence: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Requests:
    """Each request's times, in order of sending. start_s: on the benchmark's clock.   ttft_s, latency_s: from it.
    output_tokens: generated.   input_tokens: sent, where the requests differ.   session: of a trace, its number.
    late_s: of a trace, how long after its time it was sent."""

    start_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    output_tokens: tuple[int, ...]
    input_tokens: tuple[int, ...] = ()
    session: tuple[int, ...] = ()
    late_s: tuple[float, ...] = ()

    def samples(self) -> dict[str, list[float]]:
        first = min(self.start_s, default=0.0)
        return {
            "start_s": [start - first for start in self.start_s],
            "ttft_ms": [1000 * value for value in self.ttft_s],
            "latency_ms": [1000 * value for value in self.latency_s],
            "output_tokens": [float(count) for count in self.output_tokens],
            **({"input_tokens": [float(count) for count in self.input_tokens]} if self.input_tokens else {}),
            **({"session": [float(number) for number in self.session]} if self.session else {}),
            **({"late_ms": [1000 * value for value in self.late_s]} if self.late_s else {}),
        }


def recomputed(measurement: Measurement, workload: Workload, gpus: int) -> dict[str, float] | None:
    """The metrics of a run from its raw samples alone; None for samples of another kind."""
    samples = measurement.samples
    if not isinstance(workload, ServingWorkload) or not set(samples) >= _SAMPLES:
        return None
    requests = Requests(
        tuple(samples["start_s"]),
        tuple(value / 1000 for value in samples["ttft_ms"]),
        tuple(value / 1000 for value in samples["latency_ms"]),
        tuple(int(count) for count in samples["output_tokens"]),
        tuple(int(count) for count in samples.get("input_tokens", ())),
        tuple(int(number) for number in samples.get("session", ())),
    )
    found = metrics(requests, workload, gpus=gpus)
    if samples.get("drafts"):
        found["acceptance_length"] = 1 + samples["accepted_tokens"][0] / samples["drafts"][0]
    return {name: value for name, value in found.items() if value is not None}


_SAMPLES = {"start_s", "ttft_ms", "latency_ms", "output_tokens"}


def seed(workload: ServingWorkload, run: str) -> int:
    """Differs between workloads and runs, so that no prompt was seen before; the same in every start, so that
    candidates answer the same prompts."""
    return zlib.crc32(f"{workload.key} {workload.seed} {run}".encode())


def warm_up(workload: ServingWorkload) -> ServingWorkload:
    """Traffic of the same shape, to be thrown away: as many requests as run at once, of few tokens.

    The benchmark's own warm-up repeats its first prompt, which a prefix cache then holds when it is measured.
    """
    return replace(
        workload,
        requests=workload.concurrency if workload.dataset.is_random else min(workload.concurrency, workload.requests),
        output_tokens=min(WARM_UP_TOKENS, workload.output_tokens),
        request_rate=None,
    )


def arguments(
    workload: ServingWorkload,
    *,
    base_url: str,
    model: str,
    served: str,
    seed: int,
    dataset: Sequence[str] = (),
    trusted: bool = False,
) -> list[str]:
    """For `vllm bench serve`, without a warm-up of its own. dataset: the arguments that name the prompts; random ones
    where there are none.   trusted: whether code that comes with the tokenizer may run."""
    rate = "inf" if workload.request_rate is None else str(workload.request_rate)
    return [
        *("--backend", "openai", "--base-url", base_url, "--endpoint", "/v1/completions"),
        *("--model", model, "--served-model-name", served, "--tokenizer", model),
        *(dataset or _random(workload)),
        *("--num-prompts", str(workload.requests), "--max-concurrency", str(workload.concurrency)),
        *("--request-rate", rate, "--seed", str(seed), "--num-warmups", "0"),
        *("--temperature", "0", "--ignore-eos"),
        *(("--trust-remote-code",) if trusted else ()),
    ]


def _random(workload: ServingWorkload) -> list[str]:
    lengths = ("--random-input-len", str(workload.prompt_tokens), "--random-output-len", str(workload.output_tokens))
    return ["--dataset-name", "random", *lengths]


def requests_of(
    result: Mapping[str, Any], workload: ServingWorkload, *, dummy_weights: bool = False
) -> Requests | Incomplete:
    """The requests of a result, or why it must not be believed.

    dummy_weights: a model that may well say nothing but special tokens, which have no text.   result: may hold, beside
    what the benchmark says, `asked_output_lens`, where the requests differ, and `sessions`.
    """
    errors = [str(error) for error in result.get("errors", []) if error]
    completed, failed = int(result.get("completed") or 0), int(result.get("failed") or 0)
    if failed or completed < workload.requests:
        reason = f": {errors[0][:300]}" if errors else ""
        return Incomplete(
            FailureKind.INCOMPLETE, f"{completed} of {workload.requests} requests completed, {failed} failed{reason}"
        )
    tokens = tuple(int(count or 0) for count in result["output_lens"])
    if min(tokens, default=0) == 0:
        empty = sum(1 for count in tokens if count == 0)
        return Incomplete(FailureKind.WRONG_OUTPUT, f"{empty} of {len(tokens)} requests ended well without a token")
    if not dummy_weights and not any(result.get("generated_texts", ["?"])):
        return Incomplete(FailureKind.WRONG_OUTPUT, f"{len(tokens)} requests ended well, all with an empty text")
    # Streams that break off after the first chunk count as completed there. No request may end before its length;
    # where the server does not count its tokens, the benchmark encodes the text again, which may give a few less.
    asked = result.get("asked_output_lens") or [workload.output_tokens] * len(tokens)
    short = [(given, wanted) for given, wanted in zip(tokens, asked, strict=True) if given < 0.9 * wanted]
    if short:
        given, wanted = min(short)
        return Incomplete(
            FailureKind.WRONG_OUTPUT, f"a request gave {given} of {wanted} tokens although it may not end"
        )
    found = _times(result, workload, tokens)
    ttft, tpot = found.ttft_s, _tpot_ms(found)
    strange = [
        first <= 0 or (each is not None and each < TPOT_LEAST_MS) for first, each in zip(ttft, tpot, strict=True)
    ]
    impossible = sum(strange)
    if impossible:
        # A server that does not stream gives every answer so. Where some came as they should, the benchmark or the
        # server was not scheduled meanwhile, or is slower than the engine: no times, and no wrong output either.
        every = all([bad for bad, each in zip(strange, tpot, strict=True) if each is not None] or strange)
        least = f"TTFT {min(ttft):.6f} s, TPOT {min(tpot_ms(found), default=math.nan):.6f} ms"
        why = "the server does not stream" if every else "whoever read or sent them could not keep up with the engine"
        return Incomplete(
            FailureKind.WRONG_OUTPUT if every else FailureKind.INCOMPLETE,
            f"{impossible} of {len(tokens)} requests has times that cannot be: {why}; the least: {least}",
            again=True,
        )
    return found


def _times(result: Mapping[str, Any], workload: ServingWorkload, tokens: tuple[int, ...]) -> Requests:
    """At a given rate a request counts from its arrival: one that waits in the benchmark for a place under the
    concurrency waits as its user would, and leaving that out would flatter an engine that is too slow."""
    start = [float(value) for value in result["start_times"]]
    ttft = [float(value) for value in result["ttfts"]]
    gaps = [[float(gap or 0.0) for gap in request] for request in result["itls"]]
    if workload.request_rate is not None and result.get("queue_times"):
        waits = [max(0.0, float(wait or 0.0)) for wait in result["queue_times"]]
        start = [at - wait for at, wait in zip(start, waits, strict=True)]
        ttft = [first + wait if first > 0 else first for first, wait in zip(ttft, waits, strict=True)]
    return Requests(
        tuple(start),
        tuple(ttft),
        tuple(first + math.fsum(rest) for first, rest in zip(ttft, gaps, strict=True)),
        tokens,
        () if workload.dataset.is_random else tuple(int(count) for count in result["input_lens"]),
        tuple(int(number) for number in result.get("sessions", ())),
        tuple(float(value) for value in result.get("late_s", ())),
    )


def tpot_ms(requests: Requests) -> list[float]:
    """Milliseconds for each output token after the first, of every request that has one."""
    return [value for value in _tpot_ms(requests) if value is not None]


def _tpot_ms(requests: Requests) -> list[float | None]:
    """One for each request: None where it has a single token."""
    return [
        1000 * (latency - ttft) / (count - 1) if count > 1 else None
        for ttft, latency, count in zip(requests.ttft_s, requests.latency_s, requests.output_tokens, strict=True)
    ]


def metrics(requests: Requests, workload: ServingWorkload, *, gpus: int) -> dict[str, float | None]:
    """Every metric that the requests' own times give; None where there is none."""
    tpot = tpot_ms(requests)
    ends = [start + latency for start, latency in zip(requests.start_s, requests.latency_s, strict=True)]
    seconds = max(ends) - min(requests.start_s)
    output = sum(requests.output_tokens)
    given = sum(requests.input_tokens) if requests.input_tokens else len(ends) * workload.prompt_tokens
    # A trace has no full load: its window is the whole run.
    decode, running = steady(requests, 1 if workload.dataset.is_trace else workload.concurrency)
    return {
        "decode_tokens_per_s": decode,
        "decode_tokens_per_s_per_gpu": decode / gpus if decode is not None else None,
        "decode_tokens_per_s_per_user": 1000 / statistics.fmean(tpot) if tpot else None,
        "mean_running_requests": running,
        "output_tokens_per_s": output / seconds,
        "total_tokens_per_s": (output + given) / seconds,
        "requests_per_s": len(ends) / seconds,
        **_summary("ttft", [1000 * value for value in requests.ttft_s]),
        **_summary("tpot", tpot),
        **_summary("e2e", [1000 * value for value in requests.latency_s]),
        **(per_session(requests) if requests.session else {}),
    }


def per_session(requests: Requests) -> dict[str, float | None]:
    """What each session's user saw, summed up over the sessions; the 5th percentile of a rate is the slow end."""
    places: dict[int, list[int]] = {}
    for place, number in enumerate(requests.session):
        places.setdefault(number, []).append(place)
    whole, decode, first = [], [], []
    for mine in places.values():
        tokens = sum(requests.output_tokens[place] for place in mine)
        whole.append(tokens / math.fsum(requests.latency_s[place] for place in mine))
        several = [place for place in mine if requests.output_tokens[place] > 1]
        decoding_s = math.fsum(requests.latency_s[place] - requests.ttft_s[place] for place in several)
        if decoding_s > 0:
            decode.append(sum(requests.output_tokens[place] - 1 for place in several) / decoding_s)
        first.append(1000 * statistics.fmean(requests.ttft_s[place] for place in mine))
    found: dict[str, float | None] = {}
    for name, values in (("session_tokens_per_s", whole), ("session_decode_tokens_per_s", decode)):
        for share in SESSION_RATES:
            found[f"{name}_p{share}"] = percentile(values, share)
    for share in SESSION_TIMES:
        found[f"session_ttft_p{share}_ms"] = percentile(first, share)
    return found


def steady(requests: Requests, concurrency: int) -> tuple[float | None, float | None]:
    """Tokens per second and mean requests decoding, in the window in which the load is full.

    The window opens with the first token of the `concurrency`-th request and closes with the end of the
    `concurrency`-th last; the time in which nothing decodes (prefill of the only request) is left out. None for both
    where the run is too short to have such a window.
    """
    spans = [
        (start + ttft, start + latency, count - 1)
        for start, ttft, latency, count in zip(
            requests.start_s, requests.ttft_s, requests.latency_s, requests.output_tokens, strict=True
        )
        if count > 1 and latency > ttft
    ]
    if len(spans) < concurrency:
        return None, None
    opens = sorted(begin for begin, _, _ in spans)[concurrency - 1]
    closes = sorted(end for _, end, _ in spans)[-concurrency]
    inside = [(max(begin, opens), min(end, closes), begin, end, count) for begin, end, count in spans]
    inside = [span for span in inside if span[1] > span[0]]
    busy = _union([(begin, end) for begin, end, *_ in inside])
    if busy <= 0:
        return None, None
    tokens = math.fsum(count * (to - since) / (end - begin) for since, to, begin, end, count in inside)
    return tokens / busy, math.fsum(to - since for since, to, *_ in inside) / busy


def _union(spans: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def speculation(result: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, list[float]]]:
    """Acceptance as metrics and raw counters; empty where nothing was drafted."""
    drafts, accepted = result.get("spec_decode_num_drafts"), result.get("spec_decode_accepted_tokens")
    if not drafts or accepted is None:
        return {}, {}
    samples = {"drafts": [float(drafts)], "accepted_tokens": [float(accepted)]}
    positions = result.get("spec_decode_per_position_acceptance_rates")
    if positions:
        samples["acceptance_by_position"] = [float(rate) for rate in positions]
    return {"acceptance_length": 1 + float(accepted) / float(drafts)}, samples


def drafted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Drafts and accepted tokens in between by the engine's counters, in the benchmark's words; empty without any."""
    drafts, accepted = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"
    if after.get(drafts, 0.0) <= before.get(drafts, 0.0):
        return {}
    return {
        "spec_decode_num_drafts": after[drafts] - before.get(drafts, 0.0),
        "spec_decode_accepted_tokens": after.get(accepted, 0.0) - before.get(accepted, 0.0),
    }


def _summary(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {f"{name}_{kind}_ms": None for kind in ("mean", *(f"p{p}" for p in PERCENTILES))}
    found: dict[str, float | None] = {f"{name}_mean_ms": statistics.fmean(values)}
    for share in PERCENTILES:
        found[f"{name}_p{share}_ms"] = percentile(values, share)
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear between neighbours, as numpy's default; None of nothing. share: 0 to 100."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
