"""What the starts of a confirmation come to, case by case."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.confirmations import (
    BASELINE,
    FINGERPRINT,
    FIRST,
    LIMITED,
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
from tuner.core.confirm import Terms, decide, open_slots, passing, plan, qualifier, schedule, slots_left
from tuner.core.decision import DecisionKind
from tuner.core.measurement import Origin, Purpose
from tuner.core.study_file import ConfirmSection, parse

WIN = [1.05, 1.06, 1.04, 1.05, 1.07, 1.05]


def test_six_clear_pairs_validate_a_winner_with_its_gain_interval_and_p() -> None:
    decision = from_ratios({FIRST: WIN}).decide()
    assert decision.kind is DecisionKind.VALIDATED
    assert decision.winner_key == FIRST
    (comparison,) = decision.comparisons
    assert comparison.ratios == pytest.approx(WIN)
    assert comparison.p == 1 / 64
    assert 0.04 < comparison.lower < comparison.gain < comparison.upper < 0.07
    assert "+5.00% over the baseline, more than +4.50% at 95.0% confidence" in decision.sentence
    assert "p = 0.0156, 6 paired fresh starts" in decision.sentence


def test_one_pair_on_the_wrong_side_of_five_shows_nothing() -> None:
    decision = from_ratios({FIRST: [1.05, 1.06, 0.999, 1.05, 1.07]}).decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.winner_key is None
    assert "p = 0.062 is not below 0.05" in decision.sentence


def test_a_real_gain_below_the_least_one_asked_for_is_not_validated() -> None:
    decision = from_ratios({FIRST: [1.008, 1.009, 1.007, 1.008, 1.009]}).decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.comparisons[0].p == 1 / 32
    assert decision.comparisons[0].reasons == (
        "the gain is above +0.70% at 95.0% confidence, which does not exceed the least gain asked for, 1.00%",
    )


def test_the_best_of_several_validated_finalists_wins() -> None:
    better = [r + 0.02 for r in WIN]
    decision = from_ratios({FIRST: WIN, SECOND: better, THIRD: [0.9] * 6}).decide()
    assert decision.winner_key == SECOND
    assert {c.candidate_key: bool(c.reasons) for c in decision.comparisons} == {
        FIRST: False,
        SECOND: False,
        THIRD: True,
    }
    assert {c.p for c in decision.comparisons if not c.reasons} == {3 / 64}


def test_a_finalist_whose_output_fails_leaves_the_next_one_to_win() -> None:
    found = from_ratios({FIRST: WIN, SECOND: [r + 0.02 for r in WIN]})
    decision = found.decide(quality=(good_quality(FIRST), good_quality(SECOND, passed=False)))
    assert decision.winner_key == FIRST
    failed = next(c for c in decision.comparisons if c.candidate_key == SECOND)
    assert failed.reasons == ("its output fails regret: 3 nats, at most 0.1",)


def test_without_quality_nothing_is_validated_but_it_is_known_who_is_worth_checking() -> None:
    found = from_ratios({FIRST: WIN, SECOND: [r + 0.02 for r in WIN], THIRD: [0.9] * 6})
    assert passing(found.confirmation, found.starts, found.measurements, TERMS) == (SECOND, FIRST)
    decision = found.decide(quality=())
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert "its output was not checked" in decision.sentence


def test_a_place_without_a_start_makes_the_decision_impossible_and_is_named() -> None:
    found = from_ratios({FIRST: WIN})
    lost = next(slot for slot in schedule(found.confirmation) if slot.round == 2 and slot.candidate_key == FIRST)
    found.starts = [s for s in found.starts if s.slot != lost.index]
    assert open_slots(found.confirmation, found.starts) == (lost,)
    decision = found.decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.comparisons == ()
    assert "round 3: it was never started" in decision.sentence


def test_an_excluded_start_needs_a_replacement_and_its_cause_is_told() -> None:
    found = from_ratios({FIRST: WIN})
    slot = next(slot for slot in schedule(found.confirmation) if slot.round == 1 and slot.candidate_key == FIRST)
    found.starts = [replace(s, excluded="crashed: lost a GPU") if s.slot == slot.index else s for s in found.starts]
    assert "the last was excluded: crashed: lost a GPU" in found.decide().sentence
    found.starts.append(start(slot, suffix="-again"))
    found.measurements.append(measurement(f"start-{slot.index}-again", 106.0))
    assert open_slots(found.confirmation, found.starts) == ()
    decision = found.decide()
    assert decision.kind is DecisionKind.VALIDATED
    assert f"(starts excluded for a recorded cause: 1 of {FIRST})" in decision.sentence


def test_a_slow_start_cannot_be_outvoted_by_a_second_one_in_its_place() -> None:
    found = from_ratios({FIRST: WIN})
    slot = schedule(found.confirmation)[3]
    found.starts.append(start(slot, suffix="-again"))
    with pytest.raises(ValueError, match="two starts that count"):
        found.decide()


def test_a_start_of_another_candidate_in_a_place_is_a_bug() -> None:
    found = from_ratios({FIRST: WIN})
    found.starts[0] = replace(found.starts[0], candidate_key=FIRST)
    with pytest.raises(ValueError, match="not of the candidate"):
        found.decide()


def test_the_starts_of_another_gpu_count_are_left_alone() -> None:
    found = from_ratios({FIRST: WIN})
    other = [replace(s, id=f"{s.id}-g2", gpus=2) for s in found.starts]
    assert Made(found.confirmation, found.starts + other, found.measurements).decide() == found.decide()


def test_a_finalist_that_could_not_be_measured_still_counts_in_the_correction() -> None:
    found = from_ratios({FIRST: WIN, SECOND: WIN})
    lost = {s.slot for s in found.starts if s.candidate_key == SECOND}
    found.starts = [s for s in found.starts if s.slot not in lost]
    decision = found.decide()
    assert decision.winner_key == FIRST
    assert decision.comparisons[0].p == 2 / 64


def test_one_start_that_misses_a_limit_is_a_miss_whatever_the_others_did() -> None:
    found = made(confirmation(FIRST, starts=5), lambda slot: 150.0 if slot.candidate_key == FIRST else 100.0)
    slow = next(slot.index for slot in schedule(found.confirmation) if slot.candidate_key == FIRST)
    found.measurements = [
        measurement(m.start_id, 150.0, metrics={"ttft_p99_ms": 120.0}) if m.start_id == f"start-{slow}" else m
        for m in found.measurements
    ]
    decision = found.decide(LIMITED)
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.comparisons[0].limits["ttft_p99_ms @ c1-ctx1"] == pytest.approx(-0.2)
    assert "misses its limit by 20.0% in the worst start" in decision.sentence


def test_infeasible_names_the_nearest_point_where_nobody_keeps_the_limits() -> None:
    found = made(confirmation(FIRST, starts=5), lambda _: 100.0, ttft_ms={FIRST: 110.0, BASELINE: 150.0})
    decision = found.decide(LIMITED)
    assert decision.kind is DecisionKind.INFEASIBLE
    assert decision.winner_key == FIRST
    assert "ttft_p99_ms @ c1-ctx1 misses its limit by 10.0%" in decision.sentence


def test_a_baseline_that_keeps_the_limits_is_not_infeasible() -> None:
    found = made(confirmation(FIRST, starts=5), lambda _: 100.0, ttft_ms={FIRST: 110.0})
    assert found.decide(LIMITED).kind is DecisionKind.NO_VALIDATED_IMPROVEMENT


@pytest.mark.parametrize("origin", [Origin.PREDICTED, Origin.RECORDED])
def test_what_was_not_measured_is_never_validated_however_clear(origin: Origin) -> None:
    found = from_ratios({FIRST: WIN})
    found.measurements = [replace(m, origin=origin) for m in found.measurements]
    decision = found.decide()
    assert decision.kind is DecisionKind.NOT_MEASURED
    assert decision.winner_key == FIRST
    assert decision.comparisons[0].gain > 0


def test_one_predicted_number_among_measured_ones_is_enough_to_prove_nothing() -> None:
    found = from_ratios({FIRST: WIN})
    found.measurements[-1] = replace(found.measurements[-1], origin=Origin.PREDICTED)
    assert found.decide().kind is DecisionKind.NOT_MEASURED


def test_a_driver_that_changed_between_the_starts_makes_them_incomparable() -> None:
    found = from_ratios({FIRST: WIN})
    changed = replace(FINGERPRINT, driver="590.0")
    found.starts = [replace(s, fingerprint=changed) if (s.slot or 0) > 8 else s for s in found.starts]
    decision = found.decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert "not comparable: driver: 580.1 and 590.0" in decision.sentence


def test_runs_within_a_start_are_averaged_before_starts_are_compared() -> None:
    found = from_ratios({FIRST: WIN})
    found.measurements = [
        measurement(m.start_id, m.metrics["decode_tokens_per_s_per_user"] * factor, repeat=repeat)
        for m in found.measurements
        for repeat, factor in enumerate((0.5, 1.5))
    ]
    assert found.decide().comparisons[0].ratios == pytest.approx(WIN)


def test_the_smallest_gain_grows_with_the_noise_of_the_baseline() -> None:
    def with_noise(share: float) -> float:
        found = made(
            confirmation(FIRST),
            lambda slot: 100.0 * (1 + share * (-1) ** slot.index * (slot.candidate_key == BASELINE)),
        )
        gain = found.decide().smallest_gain
        assert gain is not None
        return gain

    assert TERMS.min_gain < with_noise(0.001) < with_noise(0.01) < with_noise(0.05)


def test_a_linear_drift_of_ten_percent_over_the_schedule_does_not_make_a_winner() -> None:
    for seed in range(20):
        confirmed = confirmation(FIRST, starts=6, seed=seed)
        last = len(schedule(confirmed))
        drifting = made(confirmed, lambda slot, last=last: 100.0 * (1 + 0.1 * slot.index / last))  # type: ignore[misc]
        assert drifting.decide().kind is DecisionKind.NO_VALIDATED_IMPROVEMENT


def test_a_plan_takes_the_first_finalists_and_refuses_what_cannot_be_shown() -> None:
    section = ConfirmSection(finalists=2)
    found = plan(section, gpus=8, baseline_key=BASELINE, finalists=[FIRST, SECOND, THIRD], seed=7)
    assert (found.finalists, found.starts, found.noise_starts) == ((FIRST, SECOND), 6, 2)
    with pytest.raises(ValueError, match="at least one finalist"):
        plan(section, gpus=8, baseline_key=BASELINE, finalists=[], seed=7)
    with pytest.raises(ValueError, match="none of them the baseline"):
        plan(section, gpus=8, baseline_key=BASELINE, finalists=[BASELINE], seed=7)
    assert {slot.purpose for slot in schedule(found)} == {Purpose.NOISE, Purpose.CONFIRM}


def test_a_synthetic_benchmark_qualifies_its_winner_in_the_sentence() -> None:
    file = parse(
        {
            "name": "s",
            "model": "m",
            "hardware": {"gpu": "H200"},
            "space": "dense_gpu",
            "evaluator": "vllm",
            "workload": {
                "input_tokens": 1,
                "output_tokens": 10,
                "acceptance": {"synthetic": {"curve": "kimi-k3-dspark-coding"}},
            },
            "objective": {"maximize": "decode_tokens_per_s_per_user"},
            "engine": {"options": {"load-format": "dummy"}},
        }
    )
    assert qualifier(file) == "for this synthetic benchmark only (synthetic acceptance and dummy weights)"
    decision = from_ratios({FIRST: WIN}).decide(Terms.of(file))
    assert decision.qualifier == qualifier(file)
    assert decision.sentence.startswith("validated for this synthetic benchmark only")


def test_nothing_started_yet_is_no_decision_but_a_sentence() -> None:
    decision = decide(confirmation(FIRST), [], [], TERMS)
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert decision.smallest_gain is None


def test_a_finalist_that_cannot_win_any_more_gets_no_further_start_and_the_sentence_says_so() -> None:
    """With five pairs one ratio below the least gain is the end; here it comes in the first round."""
    whole = from_ratios({FIRST: [0.99, 1.2, 1.2, 1.2, 1.2]})
    first = {s.index for s in schedule(whole.confirmation) if s.round in (None, 0)}
    run = Made(whole.confirmation, [s for s in whole.starts if s.slot in first], whole.measurements)
    assert slots_left(run.confirmation, run.starts, run.measurements, TERMS) == ()
    assert len(open_slots(run.confirmation, run.starts)) == 8
    decision = run.decide()
    assert decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert "stopped after 1 of 5 rounds, since its bound could not have come above -1.00%" in decision.sentence
    assert decision.smallest_gain is not None


def test_a_finalist_that_missed_a_limit_gets_no_further_start() -> None:
    whole = made(
        confirmation(FIRST, SECOND), lambda s: 100.0 if s.candidate_key == BASELINE else 150.0, ttft_ms={FIRST: 120.0}
    )
    first = {s.index for s in schedule(whole.confirmation) if s.round in (None, 0)}
    starts = [s for s in whole.starts if s.slot in first]
    left = slots_left(whole.confirmation, starts, whole.measurements, LIMITED)
    assert {slot.candidate_key for slot in left} == {BASELINE, SECOND}


def test_infeasible_is_known_after_one_start_of_each_side() -> None:
    whole = made(confirmation(FIRST, starts=5), lambda _: 100.0, ttft_ms={FIRST: 110.0, BASELINE: 150.0})
    first = {s.index for s in schedule(whole.confirmation) if s.round in (None, 0)}
    run = Made(whole.confirmation, [s for s in whole.starts if s.slot in first], whole.measurements)
    assert slots_left(run.confirmation, run.starts, run.measurements, LIMITED) == ()
    assert run.decide(LIMITED).kind is DecisionKind.INFEASIBLE
    assert run.decide(LIMITED).winner_key == FIRST


def test_a_winner_below_what_its_starts_reliably_show_is_told_to_be_likely_high() -> None:
    def noisy(share: float) -> str:
        """The noise is the same for both sides of a round, so that the pairs are clear whatever the baseline does."""
        found = made(
            confirmation(FIRST),
            lambda s: 100.0 * (1 + share * ((s.round or 0) % 2)) * (1.05 if s.candidate_key == FIRST else 1.0),
        )
        decision = found.decide()
        assert decision.kind is DecisionKind.VALIDATED
        return decision.sentence

    assert "likely high" not in noisy(0.0)
    assert "so the estimate is likely high" in noisy(0.05)


def test_planning_a_study_does_not_load_the_statistics() -> None:
    """scipy.stats takes 1.5 s to import (2 cores, 2026-12-01), and `tuner check` is to answer in under 2 s."""
    script = "import sys, tuner.core.plan, tuner.core.objective; print('scipy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_confirmation_without_finalists_decides_nothing() -> None:
    empty = replace(confirmation(FIRST), finalists=())
    with pytest.raises(ValueError, match="nothing was planned"):
        decide(empty, [], [], TERMS)
    assert slots_left(empty, [], [], TERMS) == ()
