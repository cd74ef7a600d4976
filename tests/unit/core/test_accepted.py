"""Acceptance by position, as the runs of a start reported it."""

from dataclasses import replace

import pytest

from tests.confirmations import measurement
from tuner.core.accepted import by_position
from tuner.core.measurement import Measurement


def run(drafts: float, *shares: float, workload: str = "c1") -> Measurement:
    samples = {"drafts": [drafts], "acceptance_by_position": list(shares)}
    return replace(measurement("a", 1.0, workload_key=workload), samples=samples)


def test_runs_are_weighed_by_their_drafts_and_workloads_kept_apart() -> None:
    found = by_position([run(100, 0.9, 0.5), run(300, 0.7, 0.3), run(10, 0.2, 0.1, workload="c8")])
    assert found["c1"] == pytest.approx((0.75, 0.35))
    assert found["c8"] == pytest.approx((0.2, 0.1))


def test_a_run_that_reported_nothing_says_nothing() -> None:
    assert by_position([measurement("a", 1.0)]) == {}
    assert by_position([measurement("a", 1.0), run(5, 0.5)]) == {"c1": (0.5,)}
