"""Interpolated kernel timings: they pass through what was timed, and grow where more is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.predict.kernels import attention_us, collective_us

REQUESTS = st.integers(1, 2000)
CONTEXT = st.integers(1, 1_000_000)


def test_attention_adds_what_the_timings_add_over_a_context_of_two() -> None:
    """12 heads, FP8: 61.9 us at 64 K tokens and 37.9 at 2 for one request; 415.7 and 44.0 for 64."""
    assert attention_us(1, 65_536, fp8=True) == pytest.approx(24.0, abs=0.1)
    assert attention_us(64, 65_536, fp8=True) == pytest.approx(371.7, abs=0.1)
    assert attention_us(1, 2, fp8=True) == 0.0


@given(REQUESTS, CONTEXT, CONTEXT, st.booleans())
def test_a_longer_context_is_never_faster(requests: int, one: int, other: int, fp8: bool) -> None:
    short, long = sorted((one, other))
    assert attention_us(requests, short, fp8=fp8) <= attention_us(requests, long, fp8=fp8) * (1 + 1e-9)


@given(REQUESTS, REQUESTS, CONTEXT, st.booleans())
def test_more_requests_are_never_faster(one: int, other: int, context: int, fp8: bool) -> None:
    few, many = sorted((one, other))
    assert attention_us(few, context, fp8=fp8) <= attention_us(many, context, fp8=fp8) * (1 + 1e-9)


def test_long_contexts_cost_nearly_twice_as_much_in_bf16() -> None:
    ratio = attention_us(64, 131_072, fp8=False) / attention_us(64, 131_072, fp8=True)
    assert 1.8 < ratio < 2.5


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "alltoall"])
def test_a_collective_over_more_ranks_is_never_faster(op: str) -> None:
    found = [collective_us(op, ranks) for ranks in (2, 4, 8, 16)]
    assert found == sorted(found)
    assert 5 < found[0] < found[-1] < 30
