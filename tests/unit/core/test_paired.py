"""The statistics, against brute force over every sign and against scipy."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from tuner.core.paired import (
    best_lower_bound,
    critical_rank,
    detectable_distance,
    estimate,
    holm,
    p_value,
    smallest_gain,
    start_spread,
    starts_needed,
)

logs = st.lists(st.floats(min_value=-0.5, max_value=0.5), min_size=1, max_size=9)


def brute_force_p(values: list[float]) -> float:
    """Share of all sign patterns with at least the positive rank sum seen; zeros and ties against the candidate."""
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), values[i] <= 0))
    ranks = {index: rank for rank, index in enumerate(order, start=1)}
    seen = sum(ranks[i] for i, value in enumerate(values) if value > 0)
    sums = [sum(r for r, up in zip(ranks.values(), signs, strict=True) if up) for signs in signs_of(len(values))]
    return sum(total >= seen for total in sums) / len(sums)


def signs_of(n: int) -> Iterator[tuple[bool, ...]]:
    return itertools.product((False, True), repeat=n)


@given(logs)
@settings(deadline=None)
def test_p_equals_brute_force_over_every_sign(values: list[float]) -> None:
    ratios = [math.exp(value) for value in values]
    exact = [math.log(ratio) for ratio in ratios]
    assert estimate(ratios, alpha=0.05).p == pytest.approx(brute_force_p(exact), abs=1e-12)


def test_p_equals_scipy_on_untied_values() -> None:
    values = np.random.default_rng(1).normal(0.01, 0.02, 12)
    expected = wilcoxon(values, alternative="greater", method="exact").pvalue
    assert estimate(list(np.exp(values)), alpha=0.05).p == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(min_value=-0.3, max_value=0.3), min_size=5, max_size=9, unique=True))
@settings(deadline=None)
def test_the_lower_bound_is_where_the_same_test_stops_rejecting(values: list[float]) -> None:
    """A ratio just under the bound is rejected as the truth, one just above it is not."""
    found = estimate([math.exp(value) for value in values], alpha=0.05)
    bound = math.log1p(found.lower)
    step = 1e-9
    assert brute_force_p([value - (bound - step) for value in values]) <= 0.05
    assert brute_force_p([value - (bound + step) for value in values]) > 0.05


@given(st.lists(st.floats(min_value=-0.3, max_value=0.3), min_size=5, max_size=9))
def test_the_estimate_lies_within_its_bounds_and_turns_over_with_the_sides(values: list[float]) -> None:
    found = estimate([math.exp(v) for v in values], alpha=0.05)
    other = estimate([math.exp(-v) for v in values], alpha=0.05)
    assert found.lower - 1e-12 <= found.gain <= found.upper + 1e-12
    assert (1 + found.gain) * (1 + other.gain) == pytest.approx(1.0)
    assert (1 + found.lower) * (1 + other.upper) == pytest.approx(1.0)


def test_hodges_lehmann_is_the_median_of_the_pairwise_means() -> None:
    values = [0.01, 0.02, 0.06]
    means = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)]
    assert estimate([math.exp(v) for v in values], alpha=0.05).gain == pytest.approx(math.expm1(np.median(means)))


def test_five_pairs_are_the_fewest_for_one_finalist_and_six_for_three() -> None:
    assert [critical_rank(n, 0.05) for n in (4, 5, 6)] == [0, 1, 3]
    assert [critical_rank(n, 0.05 / 2) for n in (5, 6)] == [0, 1]
    assert [critical_rank(n, 0.05 / 3) for n in (5, 6)] == [0, 1]
    assert p_value(5, 0) == 1 / 32


def test_too_few_pairs_bound_nothing() -> None:
    found = estimate([1.1, 1.2], alpha=0.05)
    assert (found.lower, found.upper) == (-1.0, math.inf)


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [math.nan], [math.inf]])
def test_a_ratio_that_is_no_ratio_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        estimate(bad, alpha=0.05)


def test_holm_is_the_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([]) == ()


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=6), st.randoms())
def test_holm_follows_the_candidates_in_whatever_order_they_come(ps: list[float], random: object) -> None:
    order = sorted(range(len(ps)), key=lambda i: hash((str(random), i)))
    assert holm([ps[i] for i in order]) == pytest.approx(tuple(holm(ps)[i] for i in order))


def test_spread_is_that_of_one_start_and_a_slow_drift_hardly_moves_it() -> None:
    noise = np.random.default_rng(2).normal(0, 0.02, 2000)
    drift = np.linspace(0, 1, 2000)
    assert start_spread(list(np.exp(noise))) == pytest.approx(0.02, rel=0.05)
    assert start_spread(list(np.exp(noise + drift))) == pytest.approx(0.02, rel=0.05)
    assert start_spread([1.0]) is None


def test_a_gain_of_the_stated_smallest_size_is_shown_in_eight_confirmations_of_ten() -> None:
    """Simulated anew with other random numbers than those that the distance was computed from."""
    distance = detectable_distance(6, 0.05)
    assert distance is not None
    rng = np.random.default_rng(99)
    spread, threshold = 0.008, math.log(1.01)
    shown = sum(
        estimate(list(np.exp(rng.normal(threshold + distance * spread, spread, 6))), alpha=0.05).lower > 0.01
        for _ in range(2000)
    )
    assert shown / 2000 == pytest.approx(0.8, abs=0.03)


def test_the_smallest_gain_is_never_below_the_least_gain_asked_for() -> None:
    assert smallest_gain([100.0, 100.0, 100.0], 5, min_gain=0.01, alpha=0.05) == pytest.approx(0.01)
    assert smallest_gain([100.0], 5, min_gain=0.01, alpha=0.05) is None
    assert smallest_gain([100.0, 101.0], 4, min_gain=0.01, alpha=0.05) is None


def test_more_noise_needs_more_starts() -> None:
    needed = [starts_needed(spread, 0.02, min_gain=0.0, alpha=0.05) for spread in (0.005, 0.01, 0.02, 0.04)]
    assert needed[0] is not None
    assert all(a is not None and b is not None and a <= b for a, b in itertools.pairwise(needed))
    assert starts_needed(0.5, 0.02, min_gain=0.0, alpha=0.05) is None


@given(st.lists(st.floats(min_value=-0.3, max_value=0.3), min_size=5, max_size=9), st.integers(0, 9))
def test_the_best_that_missing_pairs_can_bring_is_what_they_bring_when_they_are_huge(
    values: list[float], known: int
) -> None:
    n, ratios = len(values), [math.exp(v) for v in values][:known]
    filled = [*ratios, *[1e6] * (n - len(ratios))]
    expected = estimate(filled, alpha=0.05).lower
    best = best_lower_bound(ratios, n, alpha=0.05)
    assert best == pytest.approx(expected) or (best == math.inf and expected > 100)


@given(st.lists(st.floats(min_value=-0.3, max_value=0.3), min_size=5, max_size=9))
def test_the_best_that_can_still_be_reached_never_rises_and_ends_at_the_bound(values: list[float]) -> None:
    ratios = [math.exp(v) for v in values]
    path = [best_lower_bound(ratios[:known], len(ratios), alpha=0.05) for known in range(len(ratios) + 1)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(path))
    assert path[-1] == pytest.approx(estimate(ratios, alpha=0.05).lower)
    assert best_lower_bound([1.5], 4, alpha=0.05) == -1.0, "four pairs show nothing"
