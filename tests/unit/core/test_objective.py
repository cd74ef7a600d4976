"""What a verdict says of one candidate beside the baseline."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.confirmations import METRIC, measurement
from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.metrics import METRICS, UnknownMetricError, metric
from tuner.core.objective import check_metrics, drift_corrected, judge
from tuner.core.study_file import LimitSection, ObjectiveSection

FASTER = ObjectiveSection(maximize=METRIC)
SHORTER = ObjectiveSection(minimize="ttft_p99_ms")
positive = st.floats(min_value=1e-6, max_value=1e6)


def runs(*values: float, start: str = "a", workload: str = "w") -> list[Measurement]:
    return [measurement(start, value, workload_key=workload, repeat=i) for i, value in enumerate(values)]


def test_value_is_the_geometric_mean_of_the_workloads_ratios() -> None:
    mine = [*runs(200.0, workload="c1"), *runs(50.0, workload="c8")]
    base = [*runs(100.0, workload="c1"), *runs(100.0, workload="c8")]
    verdict = judge(mine, base, FASTER)
    assert verdict.ratios == {"c1": 2.0, "c8": 0.5}
    assert verdict.value == pytest.approx(1.0)


def test_repeats_within_a_start_are_averaged_and_starts_count_alike_however_many_repeats_they_have() -> None:
    mine = [*runs(100.0, 200.0, 300.0, start="a"), *runs(50.0, start="b")]
    assert judge(mine, runs(100.0), FASTER).value == pytest.approx(1.25)


def test_a_ratio_is_inverted_where_less_is_better() -> None:
    def at(ms: float) -> list[Measurement]:
        return [measurement("a", 1.0, metrics={"ttft_p99_ms": ms})]

    assert judge(at(50.0), at(100.0), SHORTER).value == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_zero_and_negative_values_give_no_value_and_say_so(bad: float) -> None:
    verdict = judge(runs(bad), runs(100.0), FASTER)
    assert verdict.value is None
    assert verdict.reasons == (f"{METRIC} @ w: was {bad:g}",)


def test_one_bad_repeat_among_good_ones_leaves_no_value() -> None:
    assert judge(runs(100.0, 0.0, 100.0), runs(100.0), FASTER).value is None


def test_a_missing_metric_gives_no_value_and_the_stated_reason() -> None:
    lost = Measurement(
        start_id="a",
        workload_key="w",
        purpose=Purpose.SEARCH,
        repeat=0,
        origin=Origin.MEASURED,
        metrics={},
        missing={METRIC: "was nan"},
    )
    assert judge([lost], runs(1.0), FASTER).reasons == (f"{METRIC} @ w: was nan",)
    assert judge(runs(1.0), [lost], FASTER).reasons == (f"{METRIC} @ w, baseline: was nan",)


def test_a_workload_that_only_one_side_ran_leaves_no_value() -> None:
    both = [*runs(100.0, workload="c1"), *runs(100.0, workload="c8")]
    assert judge(runs(200.0, workload="c1"), both, FASTER).reasons == (f"{METRIC} @ c8: not run",)
    assert judge(both, runs(200.0, workload="c1"), FASTER).value is None


def test_nothing_measured_is_no_value() -> None:
    assert judge([], [], FASTER).value is None


def test_each_limit_holds_on_each_workload_and_the_worst_margin_counts() -> None:
    limits = [LimitSection(metric="ttft_p99_ms", at_most=100.0), LimitSection(metric="acceptance_length", at_least=2.0)]
    mine = [
        measurement("a", 1.0, workload_key="c1", metrics={"ttft_p99_ms": 80.0, "acceptance_length": 3.0}),
        measurement("a", 1.0, workload_key="c8", metrics={"ttft_p99_ms": 150.0, "acceptance_length": 2.0}),
    ]
    verdict = judge(mine, mine, FASTER, limits)
    assert verdict.margins == pytest.approx(
        {
            "ttft_p99_ms @ c1": 0.2,
            "ttft_p99_ms @ c8": -0.5,
            "acceptance_length @ c1": 0.5,
            "acceptance_length @ c8": 0.0,
        }
    )
    assert verdict.worst_margin == pytest.approx(-0.5)
    assert not verdict.feasible
    assert verdict.reasons == ("limit on ttft_p99_ms @ c8: 150, at most 100 was asked (50.0% off)",)
    assert verdict.value == pytest.approx(1.0), "a missed limit is a verdict, not a missing number"


def test_a_value_at_its_bound_keeps_the_limit() -> None:
    mine = [measurement("a", 1.0, metrics={"ttft_p99_ms": 100.0})]
    assert judge(mine, mine, FASTER, [LimitSection(metric="ttft_p99_ms", at_most=100.0)]).feasible


def test_a_limited_metric_without_a_value_is_a_miss_beyond_every_other() -> None:
    mine = runs(1.0)
    verdict = judge(mine, mine, FASTER, [LimitSection(metric="ttft_p99_ms", at_most=100.0)])
    assert verdict.worst_margin == -math.inf
    assert not verdict.feasible


def test_a_latency_of_zero_passes_no_upper_bound() -> None:
    """vllm-omni issue 6693: a TPOT of 0.0 slipped through gates that only ask for an upper bound."""
    mine = [measurement("a", 1.0, metrics={"tpot_mean_ms": 0.0})]
    assert not judge(mine, mine, FASTER, [LimitSection(metric="tpot_mean_ms", at_most=10.0)]).feasible


@given(value=positive, base=positive)
def test_a_candidate_is_better_exactly_where_the_baseline_is_worse(value: float, base: float) -> None:
    there, back = judge(runs(value), runs(base), FASTER).value, judge(runs(base), runs(value), FASTER).value
    assert there is not None
    assert back is not None
    assert there * back == pytest.approx(1.0)


def test_drift_is_interpolated_between_the_baseline_before_and_after() -> None:
    base = [(0, runs(100.0)), (10, runs(400.0))]
    assert drift_corrected(runs(200.0), 5, base, FASTER).value == pytest.approx(1.0)
    assert drift_corrected(runs(200.0), 0, base, FASTER).value == pytest.approx(2.0)
    assert drift_corrected(runs(200.0), 99, base, FASTER).value == pytest.approx(0.5)


def test_a_baseline_that_failed_later_leaves_the_drift_unknown() -> None:
    verdict = drift_corrected(runs(200.0), 5, [(0, runs(100.0)), (10, runs(0.0))], FASTER)
    assert verdict.value is None
    assert verdict.reasons == (f"{METRIC} @ w, baseline: was 0",)


def test_drift_needs_a_baseline() -> None:
    with pytest.raises(ValueError, match="no run of the baseline"):
        drift_corrected(runs(1.0), 0, [], FASTER)


def test_an_unknown_metric_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownMetricError, match="did you mean 'ttft_p99_ms'"):
        check_metrics(FASTER, [LimitSection(metric="ttft_p99", at_most=1.0)])


def test_an_objective_in_the_worse_direction_is_refused() -> None:
    with pytest.raises(UnknownMetricError, match="better smaller; use minimize"):
        check_metrics(ObjectiveSection(maximize="ttft_p99_ms"), [])
    with pytest.raises(UnknownMetricError, match="better larger; use maximize"):
        check_metrics(ObjectiveSection(minimize=METRIC), [])
    with pytest.raises(UnknownMetricError, match="cannot be an objective"):
        check_metrics(ObjectiveSection(maximize="mean_running_requests"), [])


def test_every_metric_carries_its_unit_in_its_name_where_it_is_a_time() -> None:
    for name, known in METRICS.items():
        if known.unit in ("ms", "s", "us", "bytes"):
            assert name.endswith(f"_{known.unit}")
        assert metric(name) is known
