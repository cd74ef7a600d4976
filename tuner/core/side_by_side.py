"""GPU counts beside each other, per user and per GPU; never as one percentage. A pure reading of trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.core.trial import Measured, Trial

PER_USER, PER_GPU = "decode_tokens_per_s_per_user", "decode_tokens_per_s_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU count under one workload.

    replicas: engines of that size that the machine holds.   users: requests decoding in all of them together.
    per_user, per_gpu: tokens/s; None where the trial did not report it.
    """

    gpus: int
    workload_key: str
    replicas: int
    users: float | None
    per_user: float | None
    per_gpu: float | None


def rows(best: Mapping[int, Trial], machine_gpus: int) -> list[Row]:
    """best: GPU count to the trial that stands for it.   machine_gpus: of the whole machine, in whole replicas."""
    found = []
    for gpus, trial in sorted(best.items()):
        replicas = machine_gpus // gpus
        for key, metrics in means(trial).items():
            running = metrics.get("mean_running_requests")
            found.append(
                Row(
                    gpus=gpus,
                    workload_key=key,
                    replicas=replicas,
                    users=replicas * running if running is not None else None,
                    per_user=metrics.get(PER_USER),
                    per_gpu=metrics.get(PER_GPU),
                )
            )
    return sorted(found, key=lambda row: (_position(row.workload_key, best), row.gpus))


def means(trial: Trial) -> dict[str, dict[str, float]]:
    """Workload to metrics, repeats averaged; empty where nothing was measured."""
    if not isinstance(trial.outcome, Measured):
        return {}
    values: dict[str, dict[str, list[float]]] = {}
    for measurement in trial.outcome.measurements:
        for name, value in measurement.metrics.items():
            values.setdefault(measurement.workload_key, {}).setdefault(name, []).append(value)
    return {key: {name: sum(v) / len(v) for name, v in metrics.items()} for key, metrics in values.items()}


def _position(key: str, best: Mapping[int, Trial]) -> int:
    order: Sequence[str] = list(dict.fromkeys(k for trial in best.values() for k in means(trial)))
    return order.index(key)
