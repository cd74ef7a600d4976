"""What each knob did."""

import math

import numpy as np
import pytest

from tuner.core.effects import main_effects

BASE = {"a": 1, "b": "x", "c": 0}


def grid(effect_a: float, effect_b: float, noise: float = 0.0) -> list[tuple[dict[str, int | str], float]]:
    random = np.random.default_rng(7)
    return [
        (
            {"a": a, "b": b, "c": c},
            math.exp((a == 2) * effect_a + (b == "y") * effect_b + float(random.normal(0, noise))),
        )
        for a in (1, 2)
        for b in ("x", "y")
        for c in range(6)
    ]


def test_effects_that_multiply_are_found_exactly_and_the_largest_comes_first() -> None:
    found = main_effects(grid(math.log(1.2), math.log(0.7)), BASE)
    assert [(e.knob, e.value, e.reference) for e in found[:2]] == [("b", "y", "x"), ("a", "2", "1")]
    assert found[0].change == pytest.approx(-0.3)
    assert found[1].change == pytest.approx(0.2)
    assert found[1].trials == 12


def test_credit_goes_to_the_knob_that_did_it_although_another_was_mostly_tried_beside_it() -> None:
    """b=y was nearly always tried with a=2; alone its trials look 20 % better."""
    points = [({"a": 2, "b": "y"}, 1.25)] * 8 + [({"a": 2, "b": "x"}, 1.25)] + [({"a": 1, "b": "x"}, 1.0)] * 5
    found = {e.knob: e.change for e in main_effects(points, {"a": 1, "b": "x"})}
    assert found["a"] == pytest.approx(0.25)
    assert found["b"] == pytest.approx(0.0, abs=1e-9)


def test_two_values_always_tried_together_are_not_told_apart_and_not_shown() -> None:
    points = [({"a": 2, "b": "y"}, 1.25)] * 4 + [({"a": 1, "b": "x"}, 1.0)] * 4
    assert main_effects(points, {"a": 1, "b": "x"}) == []


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        points = [({"a": a}, math.exp((a == 2) * 0.1 + float(random.normal(0, 0.05)))) for a in (1, 2) * 6]
        (effect,) = main_effects(points, {"a": 1})
        assert effect.lower is not None
        assert effect.upper is not None
        held += effect.lower <= math.expm1(0.1) <= effect.upper
    assert 0.92 <= held / 400 <= 0.98


def test_few_trials_give_no_interval_and_none_gives_nothing() -> None:
    (effect,) = main_effects([({"a": 1}, 1.0), ({"a": 2}, 1.1)], {"a": 1})
    assert (effect.lower, effect.upper) == (None, None)
    assert main_effects([], {"a": 1}) == []


def test_a_ratio_that_is_no_number_is_left_out() -> None:
    bad = [({"a": 3}, math.nan), ({"a": 3}, math.inf), ({"a": 3}, 0.0)]
    assert main_effects([*bad, ({"a": 1}, 1.0), ({"a": 2}, 1.1)], {"a": 1})[0].value == "2"
