"""What no set of measurements may ever bring about."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.confirmations import (
    BASELINE,
    FIRST,
    LIMITED,
    METRIC,
    SECOND,
    TERMS,
    THIRD,
    Made,
    confirmation,
    from_ratios,
    good_quality,
    made,
    measurement,
    start,
)
from tuner.core.confirm import ALPHA, schedule, slots_left
from tuner.core.decision import Confirmation, Decision, DecisionKind
from tuner.core.measurement import Measurement
from tuner.core.paired import estimate

VALIDATED = DecisionKind.VALIDATED
ratio = st.floats(min_value=0.9, max_value=1.2)
rounds = st.lists(ratio, min_size=5, max_size=9)
quick = settings(deadline=None, max_examples=60)


@given(ratios=rounds, worse=st.floats(min_value=0.5, max_value=1.0))
@quick
def test_adding_a_worse_start_never_turns_a_rejection_into_a_validation(ratios: list[float], worse: float) -> None:
    """Worse: a further pair whose ratio is no better than any of those seen."""
    more = [*ratios, min(ratios) * worse]
    if from_ratios({FIRST: more}).decide().kind is VALIDATED:
        assert from_ratios({FIRST: ratios}).decide().kind is VALIDATED


@given(
    logs=st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=6, max_size=30),
    worse=st.floats(min_value=0.0, max_value=0.3),
    family=st.integers(1, 3),
)
@quick
def test_a_further_pair_that_is_worse_than_all_never_raises_bound_or_estimate_nor_lowers_p_of_what_was_rejected(
    logs: list[float], worse: float, family: int
) -> None:
    """At every number of pairs that a study may ask for, and at each level that Holm may leave to a finalist."""
    before = estimate([math.exp(log) for log in logs], alpha=ALPHA / family)
    after = estimate([math.exp(log) for log in [*logs, min(logs) - worse]], alpha=ALPHA / family)
    assert after.lower <= before.lower + 1e-12
    assert after.gain <= before.gain + 1e-12
    if before.p >= ALPHA / family and min(logs) - worse <= 0:
        assert after.p >= ALPHA / family


@given(
    first=st.lists(ratio, min_size=6, max_size=8), worse=st.floats(0.5, 1.0), least=st.sampled_from([0.0, 0.01, 0.05])
)
@quick
def test_a_worse_round_of_every_finalist_validates_none_that_was_rejected(
    first: list[float], worse: float, least: float
) -> None:
    """Two finalists, each with a further round that is worse than any of its own."""
    second = [value * 1.01 for value in reversed(first)]
    terms = replace(TERMS, min_gain=least)
    before = from_ratios({FIRST: first, SECOND: second}).decide(terms)
    lowered = {key: [*values, min(values) * worse] for key, values in ((FIRST, first), (SECOND, second))}
    after = from_ratios(lowered).decide(terms)
    passed = {c.candidate_key for c in before.comparisons if not c.reasons}
    assert {c.candidate_key for c in after.comparisons if not c.reasons} <= passed


@given(ratios=rounds, value=st.floats(1.0, 1e6), at=st.integers(0, 11))
@quick
def test_a_start_that_is_left_out_changes_nothing_however_fast_it_was(
    ratios: list[float], value: float, at: int
) -> None:
    straight = from_ratios({FIRST: ratios})
    slots = schedule(straight.confirmation)
    slot = slots[at % len(slots)]
    extra = start(slot, suffix="-again", excluded="the machine was taken away")
    more = Made(
        straight.confirmation, [*straight.starts, extra], [*straight.measurements, measurement(extra.id, value)]
    )
    before, after = straight.decide(), more.decide()
    assert (after.kind, after.winner_key, after.comparisons) == (before.kind, before.winner_key, before.comparisons)


@given(ratios=rounds, at=st.integers(0, 11))
@quick
def test_a_second_start_that_counts_for_one_place_is_refused(ratios: list[float], at: int) -> None:
    straight = from_ratios({FIRST: ratios})
    slots = schedule(straight.confirmation)
    again = Made(
        straight.confirmation, [*straight.starts, start(slots[at % len(slots)], suffix="-2")], straight.measurements
    )
    with pytest.raises(ValueError, match="two starts that count"):
        again.decide()


@given(ratios=rounds, at=st.integers(min_value=0, max_value=4), worse=st.floats(min_value=0.5, max_value=1.0))
@quick
def test_a_start_that_turns_out_worse_never_turns_a_rejection_into_a_validation(
    ratios: list[float], at: int, worse: float
) -> None:
    lowered = [value * worse if number == at else value for number, value in enumerate(ratios)]
    if from_ratios({FIRST: lowered}).decide().kind is VALIDATED:
        assert from_ratios({FIRST: ratios}).decide().kind is VALIDATED


@given(
    first=st.lists(ratio, min_size=6, max_size=6), second=st.lists(ratio, min_size=6, max_size=6), at=st.integers(0, 5)
)
@quick
def test_a_worse_start_of_one_finalist_never_helps_another(first: list[float], second: list[float], at: int) -> None:
    lowered = [value * 0.8 if number == at else value for number, value in enumerate(second)]
    before = from_ratios({FIRST: first, SECOND: second}).decide()
    after = from_ratios({FIRST: first, SECOND: lowered}).decide()
    gains = {c.candidate_key: not c.reasons for c in before.comparisons}
    assert all(gains[c.candidate_key] for c in after.comparisons if not c.reasons)


@given(
    values=st.lists(st.lists(ratio, min_size=6, max_size=6), min_size=3, max_size=3),
    order=st.permutations([FIRST, SECOND, THIRD]),
    shuffle=st.randoms(use_true_random=False),
)
@quick
def test_permuting_candidates_starts_and_measurements_changes_nothing(
    values: list[list[float]], order: list[str], shuffle: object
) -> None:
    by_key = dict(zip((FIRST, SECOND, THIRD), values, strict=True))
    straight = from_ratios(by_key)
    other = Made(
        replace(straight.confirmation, finalists=tuple(order)), list(straight.starts), list(straight.measurements)
    )
    assert schedule(other.confirmation) == schedule(straight.confirmation)
    shuffle.shuffle(other.starts)  # type: ignore[attr-defined]
    shuffle.shuffle(other.measurements)  # type: ignore[attr-defined]
    before, after = straight.decide(), other.decide()
    assert (after.kind, after.winner_key, after.smallest_gain) == (
        before.kind,
        before.winner_key,
        before.smallest_gain,
    )
    assert sorted(after.comparisons, key=str) == sorted(before.comparisons, key=str)


@given(
    values=st.lists(st.lists(ratio, min_size=6, max_size=6), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
)
@quick
def test_the_names_of_candidates_decide_nothing(values: list[list[float]], order: list[int]) -> None:
    """The same starts under other keys, and so in another order of the schedule: the same numbers win."""
    keys = (FIRST, SECOND, THIRD)
    before = from_ratios(dict(zip(keys, values, strict=True))).decide()
    after = from_ratios({keys[new]: values[old] for new, old in enumerate(order)}).decide()

    def told(decision: Decision) -> list[tuple[object, ...]]:
        return sorted((c.gain, c.lower, c.upper, c.p, not c.reasons) for c in decision.comparisons)

    assert after.kind is before.kind
    assert np.allclose(np.array(told(after), dtype=float), np.array(told(before), dtype=float))


@given(value=st.sampled_from([math.nan, math.inf, -math.inf]), sample=st.booleans())
def test_a_measurement_that_is_no_number_cannot_be_made(value: float, sample: bool) -> None:
    good = measurement("a", 1.0)
    with pytest.raises(ValueError, match="finite"):
        replace(good, samples={METRIC: [1.0, value]}) if sample else replace(good, metrics={METRIC: value})


@given(at=st.integers(0, 5), value=st.sampled_from([0.0, -1.0, None]), noise=st.booleans())
@quick
def test_a_baseline_without_a_usable_value_makes_nobody_win(at: int, value: float | None, noise: bool) -> None:
    """Whatever is divided by nothing is not infinitely fast; one of its noise starts is as good as one of a round."""
    good = from_ratios({FIRST: [1.5] * 6})
    slots = [s.index for s in schedule(good.confirmation) if s.candidate_key == BASELINE and (s.round is None) == noise]
    spoiled = f"start-{slots[at % len(slots)]}"
    bad = Made(
        good.confirmation, good.starts, [_spoil(m, value) if m.start_id == spoiled else m for m in good.measurements]
    )
    decision = bad.decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.winner_key is None


@given(at=st.integers(0, 4))
@quick
def test_a_limited_metric_without_a_value_in_one_start_never_wins(at: int) -> None:
    good = made(confirmation(FIRST, starts=5), lambda slot: 150.0 if slot.candidate_key == FIRST else 100.0)
    assert good.decide(LIMITED).kind is VALIDATED
    spoiled = f"start-{[s.index for s in schedule(good.confirmation) if s.candidate_key == FIRST][at]}"
    bad = Made(
        good.confirmation,
        good.starts,
        [
            replace(m, metrics={METRIC: m.metrics[METRIC]}, missing={"ttft_p99_ms": "was nan"})
            if m.start_id == spoiled
            else m
            for m in good.measurements
        ],
    )
    assert bad.decide(LIMITED).kind is not VALIDATED


@given(at=st.integers(0, 5), value=st.sampled_from([0.0, -1.0, None]), whole=st.booleans())
@quick
def test_missing_zero_and_negative_values_never_win(at: int, value: float | None, whole: bool) -> None:
    """One of them in an otherwise winning candidate, or nothing but them. NaN is refused where a measurement is made,
    so what was NaN arrives as a missing metric."""
    good = from_ratios({FIRST: [1.5] * 6})
    assert good.decide().kind is VALIDATED
    slots = [slot.index for slot in schedule(good.confirmation) if slot.candidate_key == FIRST]
    spoiled = {f"start-{index}" for index in (slots if whole else [slots[at]])}
    bad = Made(
        good.confirmation, good.starts, [_spoil(m, value) if m.start_id in spoiled else m for m in good.measurements]
    )
    decision = bad.decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.winner_key is None


def _spoil(m: Measurement, value: float | None) -> Measurement:
    metrics = {name: v for name, v in m.metrics.items() if name != METRIC}
    return replace(m, metrics=metrics if value is None else {**metrics, METRIC: value}, missing={METRIC: "was nan"})


@given(ratios=st.lists(st.lists(ratio, min_size=6, max_size=6), min_size=1, max_size=3))
@quick
def test_a_validated_winner_gained_more_than_was_asked_for_in_its_bound_and_its_estimate(
    ratios: list[list[float]],
) -> None:
    decision = from_ratios(dict(zip((FIRST, SECOND, THIRD), ratios, strict=False))).decide()
    if decision.kind is VALIDATED:
        winner = next(c for c in decision.comparisons if c.candidate_key == decision.winner_key)
        assert winner.lower > TERMS.min_gain
        assert winner.gain >= winner.lower
        assert winner.p < 0.05


@given(ttft_ms=st.floats(min_value=1.0, max_value=400.0))
@quick
def test_whoever_misses_a_limit_is_never_validated(ttft_ms: float) -> None:
    confirmed = confirmation(FIRST, starts=5)
    found = made(confirmed, lambda slot: 150.0 if slot.candidate_key == FIRST else 100.0, ttft_ms={FIRST: ttft_ms})
    assert (found.decide(LIMITED).kind is VALIDATED) == (ttft_ms <= 100.0)


@given(seed=st.integers(0, 10_000), starts=st.integers(5, 12), count=st.integers(1, 3))
@quick
def test_a_schedule_starts_each_side_once_a_round_and_mirrors_every_second_round(
    seed: int, starts: int, count: int
) -> None:
    confirmed: Confirmation = confirmation(*(FIRST, SECOND, THIRD)[:count], starts=starts, seed=seed)
    slots = schedule(confirmed)
    assert [slot.index for slot in slots] == list(range(len(slots)))
    noise = slots[: confirmed.noise_starts]
    assert all(slot.candidate_key == BASELINE and slot.round is None for slot in noise)
    orders = [[s.candidate_key for s in slots if s.round == number] for number in range(starts)]
    assert all(sorted(order) == sorted((BASELINE, *confirmed.finalists)) for order in orders)
    assert all(orders[n + 1] == orders[n][::-1] for n in range(0, starts - 1, 2))
    assert slots == schedule(confirmed), "the same confirmation has the same schedule whenever it is resumed"


def test_either_side_can_be_first() -> None:
    firsts = {
        next(s.candidate_key for s in schedule(confirmation(FIRST, seed=seed)) if s.round == 0) for seed in range(20)
    }
    assert firsts == {BASELINE, FIRST}


@given(ratios=rounds)
@quick
def test_a_failed_quality_check_is_never_validated(ratios: list[float]) -> None:
    found = from_ratios({FIRST: ratios})
    assert found.decide(quality=(good_quality(FIRST), good_quality(FIRST, passed=False))).kind is not VALIDATED
    assert found.decide(quality=()).kind is not VALIDATED


@given(
    ratios=st.lists(st.lists(ratio, min_size=6, max_size=6), min_size=1, max_size=3),
    ttft_ms=st.sampled_from([50.0, 120.0]),
)
@quick
def test_stopping_what_is_lost_changes_no_decision(ratios: list[list[float]], ttft_ms: float) -> None:
    """Filled place by place, asking after each one what is still worth a start, as the loop does."""
    by_key = dict(zip((FIRST, SECOND, THIRD), ratios, strict=False))
    whole = made(
        confirmation(*by_key, starts=6),
        lambda slot: 100.0 * (by_key[slot.candidate_key][slot.round or 0] if slot.candidate_key in by_key else 1.0),
        ttft_ms={FIRST: ttft_ms},
    )
    run = Made(whole.confirmation)
    while left := slots_left(run.confirmation, run.starts, run.measurements, LIMITED):
        run.starts.append(next(s for s in whole.starts if s.slot == left[0].index))
        run.measurements.append(next(m for m in whole.measurements if m.start_id == run.starts[-1].id))
    assert len(run.starts) <= len(whole.starts)
    stopped, full = run.decide(LIMITED), whole.decide(LIMITED)
    assert (stopped.kind, stopped.winner_key) == (full.kind, full.winner_key)
    if stopped.kind is VALIDATED:
        assert [c for c in full.comparisons if c.candidate_key == full.winner_key] == [
            c for c in stopped.comparisons if c.candidate_key == stopped.winner_key
        ], "what is reported of a winner is the same too"
