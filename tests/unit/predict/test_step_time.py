"""The step model by dimension and limit; that it is right is measured by benchmarks/prediction_error.py."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.serving import ServingConfig
from tuner.predict import PredictError
from tuner.predict.constants import calibration
from tuner.predict.step_time import SPECIALIZED, Setup, setup, step_ms, terms

CONSTANTS = calibration().constants
SETUPS = st.builds(
    lambda path, tp, requests, drafts, context, dcp, fp8, fp32, expert: Setup(
        path=path,
        tensor_parallel=tp,
        requests=requests,
        drafts=drafts,
        tokens=requests * (drafts + 1),
        context=context,
        dcp=dcp,
        fp8_kv=fp8,
        float32_state=fp32,
        expert_parallel=expert and path == "auto",
    ),
    st.sampled_from(["auto", SPECIALIZED]),
    st.sampled_from([8, 16]),
    st.integers(1, 256),
    st.integers(0, 7),
    st.integers(1, 200_000),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def config(**changes: object) -> ServingConfig:
    known: dict[str, object] = {"tensor_parallel_size": 16, "decode_backend": SPECIALIZED, "kv_cache_dtype": "fp8"}
    return ServingConfig(**{**known, **changes})  # type: ignore[arg-type]


@given(SETUPS, st.floats(1.0, 4.0))
def test_more_bandwidth_is_never_slower(what: Setup, factor: float) -> None:
    faster = replace(CONSTANTS, bytes_per_ms=CONSTANTS.bytes_per_ms * factor)
    assert step_ms(what, faster) <= step_ms(what, CONSTANTS)


@given(SETUPS)
def test_without_bandwidth_limits_only_latency_is_left_and_without_latency_only_bytes(what: Setup) -> None:
    endless = terms(what, replace(CONSTANTS, bytes_per_ms=1e30))
    for name in ("dense weights", "expert weights", "recurrent state"):
        assert endless[name] == pytest.approx(0, abs=1e-9)
    instant = terms(what, replace(CONSTANTS, fitted=replace(CONSTANTS.fitted, kernel_us=0.0, collective_us=0.0)))
    assert instant["kernel chain"] == instant["chain, for more tokens"] == 0
    assert instant["dense weights"] == terms(what, CONSTANTS)["dense weights"] > 0


@given(SETUPS)
def test_the_terms_add_up_to_the_step_and_none_is_negative(what: Setup) -> None:
    found = terms(what, CONSTANTS)
    assert sum(found.values()) == step_ms(what, CONSTANTS)
    assert min(found.values()) >= 0


@given(SETUPS, st.integers(1, 64))
def test_more_requests_are_never_faster(what: Setup, more: int) -> None:
    requests = what.requests + more
    larger = replace(what, requests=requests, tokens=requests * (what.drafts + 1))
    assert step_ms(larger, CONSTANTS) >= step_ms(what, CONSTANTS)


@given(SETUPS)
def test_fewer_bytes_a_key_or_a_state_are_never_slower(what: Setup) -> None:
    assert step_ms(replace(what, fp8_kv=True), CONSTANTS) <= step_ms(replace(what, fp8_kv=False), CONSTANTS)
    assert step_ms(replace(what, float32_state=False), CONSTANTS) <= step_ms(
        replace(what, float32_state=True), CONSTANTS
    )


def test_dcp_1_is_no_dcp() -> None:
    for backend in ("ag_rs", "a2a", None):
        with_dcp = config(decode_backend="auto", decode_context_parallel_size=1, dcp_comm_backend=backend)
        without = config(decode_backend="auto")
        assert step_ms(setup(with_dcp, requests=4, context=65_536), CONSTANTS) == step_ms(
            setup(without, requests=4, context=65_536), CONSTANTS
        )


def test_dcp_pays_for_its_exchange_at_short_contexts_and_shortens_long_ones() -> None:
    def ms(dcp: int, context: int) -> float:
        found = setup(config(decode_context_parallel_size=dcp), requests=8, context=context)
        return step_ms(found, CONSTANTS)

    assert ms(16, 1) > ms(1, 1)
    assert ms(16, 1_000_000) < ms(1, 1_000_000)


def test_zero_drafts_are_no_speculation() -> None:
    plain = setup(config(), requests=3, context=100)
    spoken = setup(config(num_speculative_tokens=0, speculative_method=None), requests=3, context=100)
    assert plain == spoken
    assert terms(plain, CONSTANTS)["draft model"] == 0
    assert plain.tokens == 3


def test_each_draft_costs_time_so_that_only_acceptance_can_pay_for_it() -> None:
    steps = [
        step_ms(setup(config(num_speculative_tokens=k, speculative_method="dspark"), requests=1, context=1), CONSTANTS)
        for k in range(8)
    ]
    assert steps == sorted(steps)
    assert len(set(steps)) == 8


@pytest.mark.parametrize(
    ("requests", "drafts", "path"),
    [(64, 0, SPECIALIZED), (65, 0, "auto"), (16, 3, SPECIALIZED), (17, 3, "auto"), (8, 7, SPECIALIZED), (9, 7, "auto")],
)
def test_steps_of_more_than_64_tokens_run_the_stock_kernels(requests: int, drafts: int, path: str) -> None:
    asked = config(num_speculative_tokens=drafts, speculative_method="dspark" if drafts else None)
    found = setup(asked, requests=requests, context=1)
    assert found.path == path
    if path == "auto":
        stock = setup(replace(asked, decode_backend="auto"), requests=requests, context=1)
        assert step_ms(found, CONSTANTS) == step_ms(stock, CONSTANTS)


def test_a_step_runs_at_the_captured_size_that_covers_it() -> None:
    sizes = (8, 40, 72)
    asked = config(num_speculative_tokens=7, speculative_method="dspark", cudagraph_capture_sizes=sizes)
    assert setup(asked, requests=1, context=1).tokens == 8
    assert setup(asked, requests=2, context=1).tokens == 40
    padded = setup(asked, requests=6, context=1)
    assert (padded.tokens, padded.path) == (72, "auto")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel_size": 4}, "tensor parallel 8 and 16"),
        ({"pipeline_parallel_size": 2}, "pipeline"),
        ({"enforce_eager": True}, "CUDA graph"),
        ({"cudagraph_mode": "PIECEWISE"}, "CUDA graph"),
        ({"cudagraph_capture_sizes": (1, 2)}, "no captured CUDA graph covers a step of 4 tokens"),
        ({"num_speculative_tokens": 3, "speculative_method": "ngram"}, "ngram"),
    ],
)
def test_what_has_no_constants_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(PredictError, match=words):
        setup(config(**changes), requests=4, context=1)


def test_an_older_build_is_slower_by_the_fitted_drift_of_its_chain_alone() -> None:
    now = Setup(path="auto", tensor_parallel=8, requests=1, drafts=0, tokens=1, context=1)
    then = replace(now, months=2.0)
    before, after = terms(then, CONSTANTS), terms(now, CONSTANTS)
    assert before["kernel chain"] > after["kernel chain"]
    assert before["dense weights"] == after["dense weights"]
