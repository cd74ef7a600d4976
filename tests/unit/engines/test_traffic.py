"""Metrics from requests' own times: by hand where it can be done by hand, and never from what cannot be."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.core.measurement import FailureKind
from tuner.core.metrics import METRICS
from tuner.core.workload import Dataset, ServingWorkload
from tuner.engines import traffic
from tuner.engines.running import hit_share
from tuner.engines.server import parse_counters


def workload(**changes: Any) -> ServingWorkload:
    fields = {"input_tokens": 8, "output_tokens": 5, "context_tokens": 8, "concurrency": 2, "requests": 4, **changes}
    return ServingWorkload(**fields)


def result(**changes: Any) -> dict[str, Any]:
    """Two requests at a time, each 1 s to the first token and 0.1 s for each of four more."""
    return {
        "completed": 4,
        "failed": 0,
        "errors": ["", "", "", ""],
        "start_times": [10.0, 10.0, 11.4, 11.4],
        "ttfts": [1.0] * 4,
        "itls": [[0.1] * 4] * 4,
        "output_lens": [5] * 4,
        **changes,
    }


def requests(**changes: Any) -> traffic.Requests:
    found = traffic.requests_of(result(**changes), workload())
    assert isinstance(found, traffic.Requests)
    return found


def test_metrics_of_a_run_that_can_be_done_by_hand() -> None:
    found = traffic.metrics(requests(), workload(), gpus=2)
    assert found["tpot_mean_ms"] == pytest.approx(100)
    assert found["decode_tokens_per_s_per_user"] == pytest.approx(10)
    assert found["output_tokens_per_s"] == pytest.approx(20 / 2.8)
    assert found["ttft_p99_ms"] == pytest.approx(1000)
    assert found["e2e_mean_ms"] == pytest.approx(1400)
    # The window holds both spans of decoding, 0.4 s each, with 2 requests; the prefill between them is left out.
    assert found["decode_tokens_per_s"] == pytest.approx(16 / 0.8)
    assert found["decode_tokens_per_s_per_gpu"] == pytest.approx(10 / 1)
    assert found["mean_running_requests"] == pytest.approx(2)


def test_waiting_requests_show_as_fewer_running_not_as_slower_decoding() -> None:
    """One at a time at concurrency 2, as with max_num_seqs 1: TPOT stays, TTFT grows, one request runs."""
    found = traffic.metrics(requests(start_times=[0.0, 0.0, 1.4, 2.8], ttfts=[1.0, 2.4, 2.4, 2.4]), workload(), gpus=1)
    assert found["decode_tokens_per_s_per_user"] == pytest.approx(10)
    assert found["mean_running_requests"] == pytest.approx(1)


def test_speculation_counts_tokens_not_chunks() -> None:
    """Two chunks of two tokens are four tokens: the benchmark's ITL would say 0.2 s, TPOT says 0.1 s."""
    found = traffic.metrics(requests(itls=[[0.2, 0.2]] * 4), workload(), gpus=1)
    assert found["tpot_mean_ms"] == pytest.approx(100)


def test_a_run_too_short_for_a_steady_window_has_no_decode_rate() -> None:
    found = traffic.metrics(requests(), workload(concurrency=5), gpus=1)
    assert found["decode_tokens_per_s"] is None
    assert found["mean_running_requests"] is None


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        (
            {"completed": 3, "failed": 1, "errors": ["", "boom", "", ""]},
            FailureKind.INCOMPLETE,
            "3 of 4 .* failed: boom",
        ),
        ({"completed": 0, "failed": 0}, FailureKind.INCOMPLETE, "0 of 4 requests completed"),
        ({"output_lens": [5, 5, 0, 5]}, FailureKind.WRONG_OUTPUT, "1 of 4 requests ended well without a token"),
        ({"output_lens": [5, 5, 2, 5]}, FailureKind.WRONG_OUTPUT, "gave 2 of 5 tokens although it may not end"),
        ({"itls": [[0.0] * 4] * 4}, FailureKind.WRONG_OUTPUT, "times that cannot be"),
        ({"itls": [[-0.1] * 4] * 4}, FailureKind.WRONG_OUTPUT, "times that cannot be"),
        ({"ttfts": [0.0] * 4}, FailureKind.WRONG_OUTPUT, "times that cannot be"),
    ],
)
def test_a_run_that_must_not_be_believed_gives_no_numbers(
    changes: dict[str, Any], kind: FailureKind, sentence: str
) -> None:
    found = traffic.requests_of(result(**changes), workload())
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is kind
    import re

    assert re.search(sentence, found.sentence)


def test_rates_below_one_request_a_second_are_numbers() -> None:
    """vllm#47651: throughput under 1 request/s."""
    slow = requests(start_times=[0.0, 0.0, 400.0, 400.0], ttfts=[300.0] * 4)
    assert traffic.metrics(slow, workload(), gpus=1)["requests_per_s"] == pytest.approx(4 / 700.4)


def test_acceptance_is_one_plus_accepted_over_drafts() -> None:
    metrics, samples = traffic.speculation({"spec_decode_num_drafts": 100, "spec_decode_accepted_tokens": 150})
    assert metrics == {"acceptance_length": 2.5}
    assert samples == {"drafts": [100.0], "accepted_tokens": [150.0]}
    assert traffic.speculation({"completed": 1}) == ({}, {})


def test_the_seed_is_part_of_the_arguments_and_the_rate_is_a_float() -> None:
    asked = traffic.arguments(workload(request_rate=0.25), base_url="http://x", model="m", served="s", seed=42)
    assert asked[asked.index("--seed") + 1] == "42"
    assert asked[asked.index("--request-rate") + 1] == "0.25"
    assert asked[asked.index("--num-warmups") + 1] == "0"


@pytest.mark.parametrize("trusted", [False, True])
def test_a_tokenizer_with_code_of_its_own_is_trusted_where_the_study_file_says_so(trusted: bool) -> None:
    """The server got the option and the benchmark did not, so it failed at its tokenizer."""
    asked = traffic.arguments(workload(), base_url="http://x", model="m", served="s", seed=1, trusted=trusted)
    assert ("--trust-remote-code" in asked) == trusted


def test_no_two_runs_of_a_start_share_their_prompts() -> None:
    """The same seed at two concurrencies gave the same prompts, and a warm prefix cache for the second."""
    workloads = [workload(concurrency=c, context_tokens=n) for c in (1, 8, 32) for n in (8, 8192)]
    runs = ["warm-up 0", *(f"repeat {repeat}" for repeat in range(20))]
    assert len({traffic.seed(w, run) for w in workloads for run in runs}) == len(workloads) * len(runs)
    assert traffic.seed(workloads[0], "repeat 0") == traffic.seed(workload(concurrency=1), "repeat 0")
    assert traffic.seed(workload(seed=1), "repeat 0") != traffic.seed(workload(seed=2), "repeat 0")


def test_a_warm_up_has_the_shape_of_the_run_and_little_of_its_length() -> None:
    warm = traffic.warm_up(workload(concurrency=7, output_tokens=1000, context_tokens=500, request_rate=0.1))
    assert (warm.requests, warm.concurrency, warm.output_tokens) == (7, 7, traffic.WARM_UP_TOKENS)
    assert (warm.prompt_tokens, warm.request_rate) == (500, None)


def test_empty_texts_are_wrong_unless_the_weights_are_random() -> None:
    """A server that counts tokens and says nothing; random weights may say nothing but special tokens."""
    silent = result(generated_texts=[""] * 4)
    found = traffic.requests_of(silent, workload())
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.WRONG_OUTPUT
    assert "empty text" in found.sentence
    assert isinstance(traffic.requests_of(silent, workload(), dummy_weights=True), traffic.Requests)
    assert isinstance(traffic.requests_of(result(generated_texts=["", "a", "", ""]), workload()), traffic.Requests)


def test_a_stream_that_came_all_at_once_is_the_machines_doing_and_is_asked_for_again() -> None:
    """Seen once on two busy cores: 64 tokens within 0.3 ms after half a second in which nobody was scheduled."""
    found = traffic.requests_of(result(itls=[[0.1] * 4] * 3 + [[1e-6] * 4]), workload())
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.INCOMPLETE
    assert found.again
    assert found.sentence.startswith("1 of 4 requests has times that cannot be")


def test_an_engine_faster_than_its_reader_gives_no_times_and_is_not_called_wrong() -> None:
    """A model of 5 million weights on two fast cores: 12 of 16 streams were read at once, twice."""
    found = traffic.requests_of(result(itls=[[0.1] * 4] + [[3e-6] * 4] * 3), workload())
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.INCOMPLETE
    assert "could not keep up with the engine" in found.sentence


def test_a_request_counts_once_however_many_of_its_times_cannot_be() -> None:
    """Two of four with no first time and no gaps were four of four, and a server that does not stream."""
    found = traffic.requests_of(result(ttfts=[0.5, 0.5, 0.0, 0.0], itls=[[0.1] * 4] * 2 + [[0.0] * 4] * 2), workload())
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.INCOMPLETE
    assert found.sentence.startswith("2 of 4 requests")


def test_answers_of_one_token_do_not_hide_that_a_server_does_not_stream() -> None:
    silent = result(
        input_lens=[5] * 4, output_lens=[5, 5, 5, 1], asked_output_lens=[5, 5, 5, 1], itls=[[0.0] * 4] * 3 + [[]]
    )
    found = traffic.requests_of(silent, workload(dataset=Dataset(kind="prompts")))
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.WRONG_OUTPUT
    assert "does not stream" in found.sentence


def test_a_stream_that_breaks_off_is_no_output_whatever_the_dataset() -> None:
    found = traffic.requests_of(result(output_lens=[5, 5, 5, 1]), workload(dataset=Dataset(kind="prompts")))
    assert isinstance(found, traffic.Incomplete)
    assert found.kind is FailureKind.WRONG_OUTPUT


def test_at_a_given_rate_a_request_counts_from_its_arrival() -> None:
    """Two places for four requests that came at once: the last two waited 1.4 s in the client, and their users with
    them. Leaving that out would flatter an engine that is too slow."""
    waited = result(queue_times=[0.0, 0.0, 1.4, 1.4])
    open_loop = traffic.requests_of(waited, workload(request_rate=100.0))
    assert isinstance(open_loop, traffic.Requests)
    assert open_loop.start_s == pytest.approx((10.0,) * 4)
    assert open_loop.ttft_s == pytest.approx((1.0, 1.0, 2.4, 2.4))
    assert traffic.tpot_ms(open_loop) == pytest.approx([100.0] * 4)
    closed = traffic.requests_of(waited, workload())
    assert isinstance(closed, traffic.Requests)
    assert closed.ttft_s == (1.0,) * 4


TRACE = Dataset(kind="trace", sha256="ab" * 32)


def test_what_each_user_of_a_trace_saw_can_be_done_by_hand() -> None:
    """Two sessions of two requests: one has 10 tokens a second and answers at once, the other half of both."""
    told = result(
        sessions=[0, 1, 0, 1],
        input_lens=[8, 8, 16, 16],
        start_times=[0.0, 0.0, 9.0, 9.0],
        ttfts=[0.1, 1.0, 0.1, 1.0],
        itls=[[0.1] * 4, [0.2] * 4] * 2,
    )
    found = traffic.requests_of(told, workload(dataset=TRACE))
    assert isinstance(found, traffic.Requests)
    metrics = traffic.metrics(found, workload(dataset=TRACE), gpus=1)
    assert metrics["session_decode_tokens_per_s_p50"] == pytest.approx(7.5)
    assert metrics["session_decode_tokens_per_s_p5"] == pytest.approx(5 + 0.05 * 5)
    assert metrics["session_decode_tokens_per_s_p95"] == pytest.approx(5 + 0.95 * 5)
    assert metrics["session_tokens_per_s_p50"] == pytest.approx((5 / 0.5 + 5 / 1.8) / 2)
    assert metrics["session_ttft_p50_ms"] == pytest.approx(550)
    assert metrics["session_ttft_p95_ms"] == pytest.approx(100 + 0.95 * 900)
    assert metrics["total_tokens_per_s"] == pytest.approx((20 + 48) / (9 + 1.8))
    # No load is ever full: the window is the whole run, its pauses left out.
    assert metrics["decode_tokens_per_s"] == pytest.approx(16 / (2 * (0.4 + 0.8)))
    assert set(metrics) <= set(METRICS)


def test_a_metric_by_session_is_that_of_a_trace_alone() -> None:
    assert not [name for name in traffic.metrics(requests(), workload(), gpus=1) if name.startswith("session_")]


def test_each_request_of_a_file_has_its_own_length_to_keep() -> None:
    data = workload(dataset=Dataset(kind="prompts"), output_tokens=50)
    lengths = {"input_lens": [3] * 4, "asked_output_lens": [5, 5, 5, 5]}
    assert isinstance(traffic.requests_of(result(**lengths), data), traffic.Requests)
    short = traffic.requests_of(result(**{**lengths, "asked_output_lens": [5, 5, 30, 5]}), data)
    assert isinstance(short, traffic.Incomplete)
    assert short.sentence == "a request gave 5 of 30 tokens although it may not end"


def test_drafts_are_counted_by_the_engine_where_the_benchmark_does_not() -> None:
    drafts, accepted = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"
    counted = traffic.drafted({drafts: 10.0, accepted: 9.0}, {drafts: 30.0, accepted: 39.0})
    assert traffic.speculation(counted)[0] == {"acceptance_length": 2.5}
    assert traffic.drafted({drafts: 10.0}, {drafts: 10.0}) == {}
    assert traffic.drafted({}, {}) == {}


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0.01, 5), st.floats(0.01, 5), st.integers(1, 200)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 8),
)
def test_metrics_are_finite_and_the_running_requests_never_exceed_what_was_sent(
    rows: list[tuple[float, float, float, int]], concurrency: int
) -> None:
    found = traffic.Requests(
        tuple(row[0] for row in rows),
        tuple(row[1] for row in rows),
        tuple(row[1] + row[2] for row in rows),
        tuple(row[3] for row in rows),
    )
    metrics = traffic.metrics(found, workload(concurrency=concurrency), gpus=1)
    assert all(value is None or (math.isfinite(value) and value >= 0) for value in metrics.values())
    running = metrics["mean_running_requests"]
    assert running is None or running <= len(rows) + 1e-6


def test_the_engines_counters_are_summed_over_their_labels() -> None:
    text = (
        "# HELP vllm:prefix_cache_queries_total x\n"
        'vllm:prefix_cache_queries_total{engine="0"} 100.0\nvllm:prefix_cache_queries_total{engine="1"} 60.0\n'
        'vllm:prefix_cache_hits_total{engine="0"} 40.0\nother 1\nvllm:bad NaNx\n'
    )
    after = parse_counters(text)
    assert after["vllm:prefix_cache_queries_total"] == 160
    assert hit_share({}, after) == 0.25
    assert hit_share(after, after) is None
