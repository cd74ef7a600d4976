"""When the rest of a search is not worth its starts: by simulation, and in the cases that can be told by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tuner.core.paired import start_spread
from tuner.core.stopping import Known, expected_gain, untried_pairs, why_stop

POINTS = np.array(list(product(range(5), range(4), range(3), range(3))), dtype=np.int32)
BUDGET = 120  # trials of 180 candidates
EVERY = 8
SPREAD = [int(row) for row in 1 + np.random.default_rng(1).permutation(len(POINTS) - 1)]  # rows as a search meets them
GAIN = np.log(1.05)


def known(values: dict[int, float], *, noise: float, trials: int = 40, believed: np.ndarray | None = None) -> Known:
    tried = np.array(list(values), dtype=np.intp)
    return Known(
        points=POINTS,
        believed=np.zeros(len(POINTS)) if believed is None else believed,
        tried=tried,
        values=np.array(list(values.values())),
        feasible=np.ones(len(tried), dtype=bool),
        baseline_feasible=True,
        left=np.setdiff1d(np.arange(1, len(POINTS)), tried),
        trials=trials,
        noise=noise,
    )


def search(truth: np.ndarray, noise: float, seed: int) -> tuple[int, float]:
    """Candidates in random order, the baseline again after every eighth: how many were tried until the search stopped,
    and by how much the best that is left is better than the best of them."""
    rng = np.random.default_rng(seed)
    order = 1 + rng.permutation(len(truth) - 1)
    baselines = [float(np.exp(rng.normal(0, noise)))]
    values: dict[int, float] = {}
    for number, row in enumerate(map(int, order[:BUDGET]), start=1):
        values[row] = float(truth[row] + rng.normal(0, noise * np.sqrt(5 / 3)))
        if number % EVERY == 0:
            baselines.append(float(np.exp(rng.normal(0, noise))))
            spread = start_spread(baselines) if len(baselines) > 2 else None
            if spread and why_stop(known(values, noise=max(0.005, spread), trials=BUDGET - number)):
                break
    left = np.setdiff1d(np.arange(1, len(truth)), list(values))
    return number, float(truth[left].max() - max(0.0, truth[list(values)].max()))


def one_pair(seed: int) -> np.ndarray:
    """Two options have one value each that gain 5 % together, and nothing alone."""
    rng = np.random.default_rng(seed)
    one, other = rng.choice(4, 2, replace=False)
    values = [int(rng.integers(1, POINTS[:, option].max() + 1)) for option in (one, other)]
    return np.asarray(GAIN * ((POINTS[:, one] == values[0]) & (POINTS[:, other] == values[1])))


def surface(seed: int) -> np.ndarray:
    """Each option's values do something of their own, and each candidate a little besides; the baseline is at 0."""
    rng = np.random.default_rng(seed)
    found = sum(rng.normal(0, 0.02, 5)[column] for column in POINTS.T) + rng.normal(0, 0.005, len(POINTS))
    return np.asarray(found - found[0])


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.03])
def test_a_search_without_any_difference_stops_within_half_its_budget(noise: float) -> None:
    tried = [search(np.zeros(len(POINTS)), noise, seed)[0] for seed in range(20)]
    assert np.mean(tried) < BUDGET / 2
    assert np.mean([number <= BUDGET / 2 for number in tried]) >= 0.9
    assert max(tried) < BUDGET


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_a_search_does_not_stop_while_a_gain_of_five_percent_is_likely(noise: float) -> None:
    found = [search(surface(seed), noise, seed) for seed in range(20)]
    assert max(left for _, left in found) < 0.05
    assert np.mean([max(0.0, left) for _, left in found]) < 0.015
    assert any(number < BUDGET for number, _ in found), "and it does stop"


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_of_gains_by_two_options_together_at_most_one_in_twenty_is_left_untried(noise: float) -> None:
    found = [search(one_pair(seed), noise, seed) for seed in range(100)]
    assert np.mean([left >= GAIN - 1e-9 and number < BUDGET for number, left in found]) <= 0.05
    assert np.mean([number < BUDGET for number, _ in found]) > 0.9, "and it does stop"


def test_values_that_were_never_tried_together_keep_a_search_alive() -> None:
    """Nothing that was measured differs; the last value of the first option was never tried with that of the second."""
    apart = [row for row in range(1, len(POINTS)) if not (POINTS[row, 0] == 4 and POINTS[row, 1] >= 2)]
    seen = known(dict.fromkeys(apart, 0.0), noise=0.01)
    assert untried_pairs(seen) == pytest.approx(2 / 98)  # 15 values, 83 pairs
    assert why_stop(seen)
    wider = known(dict.fromkeys((row for row in apart if POINTS[row, 0] < 3), 0.0), noise=0.01)
    assert untried_pairs(wider) == pytest.approx((2 + 2 * (4 + 3 + 3)) / 98)
    assert not why_stop(wider)


def test_what_is_believed_to_be_faster_keeps_a_search_alive() -> None:
    nothing = dict.fromkeys(SPREAD[:60], 0.0)
    assert why_stop(known(nothing, noise=0.01))
    believed = np.zeros(len(POINTS))
    believed[SPREAD[100]] = 0.1
    assert not why_stop(known(nothing, noise=0.01, believed=believed))


def test_beliefs_that_were_wrong_of_all_that_was_tried_do_not() -> None:
    """Twenty candidates were to be 10 % faster; nineteen of them were not."""
    believed = np.zeros(len(POINTS))
    believed[SPREAD[41:61]] = 0.1
    assert why_stop(known(dict.fromkeys(SPREAD[:60], 0.0), noise=0.01, believed=believed))


def test_more_trials_are_expected_to_gain_more_and_more_noise_less() -> None:
    rng = np.random.default_rng(0)
    values = {row: float(rng.normal(0, 0.03)) for row in range(1, 30)}
    few, many, noisy = (
        expected_gain(known(values, noise=noise, trials=trials)) for noise, trials in ((0.01, 2), (0.01, 40), (0.1, 40))
    )
    assert 0 < few < many
    assert noisy < many


def test_a_search_in_which_nothing_keeps_the_limits_goes_on() -> None:
    seen = known(dict.fromkeys(SPREAD[:60], 0.0), noise=0.01)
    missed = np.zeros(len(seen.tried), dtype=bool)
    assert why_stop(replace(seen, feasible=missed))
    assert not why_stop(replace(seen, feasible=missed, baseline_feasible=False))


def test_what_misses_its_limits_is_no_best_that_others_are_held_against() -> None:
    values = {row: (0.3 if row < 10 else 0.0) + 0.01 * (row % 3) for row in range(1, 40)}
    seen = known(values, noise=0.01)
    missed = replace(seen, feasible=seen.values < 0.2)
    assert expected_gain(missed) > expected_gain(seen)


def test_nothing_left_or_nothing_tried_says_nothing() -> None:
    seen = known(dict.fromkeys(SPREAD[:60], 0.0), noise=0.01)
    assert why_stop(seen)
    assert not why_stop(replace(seen, trials=0))
    assert not why_stop(replace(seen, left=seen.left[:0]))
    assert not why_stop(known({}, noise=0.01))
