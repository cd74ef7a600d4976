"""From one decode step to what users see: queueing, prefill, and the metrics of a run. A rough model of traffic.

Closed loop: a request starts as soon as another ends, so that each slot's prefill holds up the others' decoding once a
request. Prefill is arithmetic at the pace of one published TTFT. Chunking, batching of prompts and prefix caching are
not modelled.
"""

import math
from dataclasses import dataclass

from search_spaces.serving import ServingConfig
from tuner.core.workload import ServingWorkload
from tuner.predict import PredictError, layers, memory
from tuner.predict.constants import BF16_FLOPS_PER_MS, GPU, Constants
from tuner.predict.step_time import SPECIALIZED, Setup, setup, step_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """running: requests decoding at once.   acceptance: tokens per step and request.   prefill_ms: of one prompt alone.
    stall_ms: by which others' prefills lengthen the mean time between two tokens."""

    setup: Setup
    running: int
    acceptance: float
    step_ms: float
    prefill_ms: float
    stall_ms: float

    @property
    def tpot_ms(self) -> float:
        return self.step_ms / self.acceptance + self.stall_ms


def traffic(config: ServingConfig, workload: ServingWorkload, constants: Constants) -> Traffic:
    """Raises PredictError where a step is not predicted, or acceptance is left to the text."""
    length = workload.acceptance.length(config.num_speculative_tokens)
    if length is None:
        raise PredictError("workload.acceptance: how many of your text's drafts are accepted cannot be predicted")
    most = min(
        workload.concurrency,
        config.max_num_seqs or workload.concurrency,
        memory.most_requests(config, GPU, context=workload.max_model_len),
    )
    if most == 0:
        raise PredictError(f"not even one request of {workload.key} fits into the memory of a {GPU}")
    if workload.request_rate is None:
        return _with(config, workload, constants, most, min(length, config.tokens_per_request))
    for running in range(1, most + 1):
        found = _with(config, workload, constants, running, min(length, config.tokens_per_request))
        if workload.request_rate * _residence_ms(found, workload) / 1000 <= running:
            return found
    return found


def metrics(config: ServingConfig, workload: ServingWorkload, found: Traffic) -> dict[str, float]:
    """By the names of `tuner.core.metrics`. TTFT's tail is the first burst: all slots send a prompt at once."""
    residence_ms = _residence_ms(found, workload)
    waiting_ms = 0.0
    if workload.request_rate is None:
        waiting_ms = (workload.concurrency - found.running) * residence_ms / found.running
    burst_ms = (found.running - 1) * found.prefill_ms
    first_share = min(1.0, found.running / workload.requests)
    ttft_mean_ms = found.prefill_ms + waiting_ms + burst_ms / 2 * first_share
    tpot_ms = found.tpot_ms
    rate = found.running * 1000 / tpot_ms
    return {
        "step_time_ms": found.step_ms,
        "tpot_mean_ms": tpot_ms,
        "acceptance_length": found.acceptance,
        "decode_tokens_per_s_per_user": 1000 / tpot_ms,
        "decode_tokens_per_s": rate,
        "decode_tokens_per_s_per_gpu": rate / config.gpus,
        "output_tokens_per_s": found.running * workload.output_tokens * 1000 / residence_ms,
        "mean_running_requests": float(found.running),
        "ttft_mean_ms": ttft_mean_ms,
        "ttft_p50_ms": found.prefill_ms + waiting_ms,
        "ttft_p99_ms": found.prefill_ms + waiting_ms + burst_ms,
        "e2e_mean_ms": waiting_ms + residence_ms,
        "specialized_share": float(found.setup.path == SPECIALIZED),
        "memory_bytes": math.fsum(
            memory.bytes_needed(config, requests=found.running, context=workload.max_model_len).values()
        ),
    }


def prefill_ms(tokens: int, *, tensor_parallel: int, first_step_ms: float, constants: Constants) -> float:
    """Of one prompt alone, its first token included: arithmetic, and one step of the model."""
    pace = BF16_FLOPS_PER_MS * constants.prefill * tensor_parallel
    return first_step_ms + layers.prefill_flops(tokens) / pace


def _with(
    config: ServingConfig, workload: ServingWorkload, constants: Constants, running: int, acceptance: float
) -> Traffic:
    what = setup(config, requests=running, context=workload.prompt_tokens + workload.output_tokens // 2)
    step = step_ms(what, constants)
    alone = setup(config, requests=1, context=workload.prompt_tokens)
    prefill = prefill_ms(
        workload.prompt_tokens,
        tensor_parallel=config.tensor_parallel_size,
        first_step_ms=step_ms(alone, constants),
        constants=constants,
    )
    between = max(1, workload.output_tokens - 1)
    return Traffic(
        setup=what,
        running=running,
        acceptance=acceptance,
        step_ms=step,
        prefill_ms=prefill,
        stall_ms=(running - 1) * prefill / between,
    )


def _residence_ms(found: Traffic, workload: ServingWorkload) -> float:
    """From the start of a request's prefill to its last token."""
    return found.prefill_ms + found.tpot_ms * max(1, workload.output_tokens - 1)
