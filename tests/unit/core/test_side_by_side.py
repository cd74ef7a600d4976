"""GPU counts stand beside each other, in replicas of the same machine."""

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.side_by_side import PER_GPU, PER_USER, Row, rows
from tuner.core.trial import Measured, Trial


def trial(gpus: int, per_user: float, *, repeats: int = 2) -> Trial:
    candidate = ServingConfig(tensor_parallel_size=gpus)
    runs = tuple(
        Measurement(
            start_id="s",
            workload_key=key,
            purpose=Purpose.SEARCH,
            repeat=repeat,
            origin=Origin.MEASURED,
            metrics={PER_USER: per_user + repeat, PER_GPU: per_user / gpus, "mean_running_requests": 2.0},
        )
        for key in ("c2-ctx1", "c2-ctx9")
        for repeat in range(repeats)
    )
    return Trial(
        number=0,
        candidate=candidate,
        key=candidate_key(candidate),
        gpus=gpus,
        baseline=False,
        outcome=Measured(measurements=runs),
    )


def test_eight_gpus_stand_as_two_replicas_on_sixteen() -> None:
    found = rows({16: trial(16, 500.0), 8: trial(8, 300.0)}, 16)
    assert [(row.workload_key, row.gpus, row.replicas) for row in found] == [
        ("c2-ctx1", 8, 2),
        ("c2-ctx1", 16, 1),
        ("c2-ctx9", 8, 2),
        ("c2-ctx9", 16, 1),
    ]
    assert found[0] == Row(gpus=8, workload_key="c2-ctx1", replicas=2, users=4.0, per_user=300.5, per_gpu=37.5)


def test_a_metric_that_was_not_reported_is_absent_not_zero() -> None:
    lonely = trial(8, 300.0)
    assert isinstance(lonely.outcome, Measured)
    bare = Measured(measurements=tuple(_without_metrics(m) for m in lonely.outcome.measurements))
    found = rows({8: Trial(number=0, candidate=lonely.candidate, key="k", gpus=8, baseline=False, outcome=bare)}, 16)
    assert found[0].per_user is None
    assert found[0].users is None


def _without_metrics(measurement: Measurement) -> Measurement:
    return Measurement(
        start_id=measurement.start_id,
        workload_key=measurement.workload_key,
        purpose=measurement.purpose,
        repeat=measurement.repeat,
        origin=measurement.origin,
        metrics={"ready_s": 1.0},
    )
