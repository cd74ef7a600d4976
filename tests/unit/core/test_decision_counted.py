"""The benchmark counts many studies with arrays; what it counts is the product's own decision."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.product_decision import check_against_product, confirm_all, confirmation, decided, rounds_order
from benchmarks.start_noise import Array, Shape, World, fit_shape, start_levels
from tuner.core.decision import DecisionKind

SHAPE = Shape(tail_share=0.07, tail_ratio=4.3)


@given(
    seed=st.integers(0, 2**32 - 1),
    starts=st.integers(5, 9),
    truth=st.sampled_from([0.0, 0.01, 0.02, 0.05]),
    min_gain=st.sampled_from([0.0, 0.01]),
)
@settings(deadline=None, max_examples=25)
def test_arrays_count_what_the_product_decides(seed: int, starts: int, truth: float, min_gain: float) -> None:
    rng = np.random.default_rng(seed)
    world = World(run_sd=0.01, start_sd=0.01, shape=SHAPE)

    def draw(truths: Array) -> Array:
        return start_levels(world.starts(rng, truths, 3))

    assert check_against_product(draw, min_gain, truth=truth, starts=starts, studies=4) == 4


def test_the_check_would_notice_a_count_that_is_wrong() -> None:
    order = rounds_order(1, 6)
    levels = np.where(order == 1, 0.05, 0.0)
    assert confirm_all(levels, order, min_gain=0.01).validated[0]
    assert decided(confirmation(6, 0), levels[0], 0.01).kind is DecisionKind.VALIDATED
    assert not confirm_all(levels, 1 - order, min_gain=0.01).validated[0]


@pytest.mark.parametrize("start_sd", [0.0, 0.05])
def test_few_studies_without_a_better_candidate_end_validated(start_sd: float) -> None:
    """At most 5 % were any gain enough; the exact level of six pairs is 3/64. 4,000 studies, so 0.33 % of error."""
    rng = np.random.default_rng(5)
    world = World(run_sd=0.02, start_sd=start_sd, shape=SHAPE)
    order = rounds_order(4000, 6)
    levels = start_levels(world.starts(rng, np.zeros(order.shape), 3))
    assert confirm_all(levels, order, min_gain=0.0).validated.mean() < 3 / 64 + 3 * 0.0033


def test_run_noise_has_the_standard_deviation_that_was_asked_for() -> None:
    noise = SHAPE.draw(np.random.default_rng(1), 0.02, (200_000,))
    assert noise.std() == pytest.approx(0.02, rel=0.02)


def test_the_fit_finds_the_shape_that_differences_were_drawn_from() -> None:
    rng = np.random.default_rng(2)
    differences = SHAPE.draw(rng, 0.02, (40_000,)) - SHAPE.draw(rng, 0.02, (40_000,))
    shape, spread = fit_shape(differences)
    assert spread == pytest.approx(0.02, rel=0.05)
    assert shape.tail_share == pytest.approx(SHAPE.tail_share, rel=0.2)
    assert shape.tail_ratio == pytest.approx(SHAPE.tail_ratio, rel=0.2)


def test_the_level_of_a_start_is_the_average_of_its_runs_and_not_of_their_logs() -> None:
    assert start_levels(np.log([[[1.0, 3.0]]]))[0, 0] == pytest.approx(math.log(2.0))
