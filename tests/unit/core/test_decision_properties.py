"""What no set of measurements may ever bring about."""

from dataclasses import replace

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
)
from tuner.core.confirm import schedule, slots_left
from tuner.core.decision import Confirmation, DecisionKind
from tuner.core.measurement import Measurement

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
