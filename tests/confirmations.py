"""Starts and measurements as a confirmation's schedule asks for them, with the values that a test chooses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tuner.core.confirm import Slot, Terms, decide, schedule
from tuner.core.decision import Confirmation, Decision, QualityResult
from tuner.core.measurement import Fingerprint, Measurement, Origin, Purpose, Start
from tuner.core.study_file import LimitSection, ObjectiveSection

BASELINE, FIRST, SECOND, THIRD = "baseline", "candidate-1", "candidate-2", "candidate-3"
METRIC = "decode_tokens_per_s_per_user"
FINGERPRINT = Fingerprint(engine="vllm", versions={"vllm": "0.33.0"}, gpu="H200", gpus=1, driver="580.1", host="a")
TERMS = Terms(objective=ObjectiveSection(maximize=METRIC), min_gain=0.01)
LIMITED = Terms(
    objective=ObjectiveSection(maximize=METRIC),
    limits=(LimitSection(metric="ttft_p99_ms", at_most=100.0),),
    min_gain=0.01,
)


def confirmation(*finalists: str, starts: int = 6, noise_starts: int = 2, seed: int = 0) -> Confirmation:
    return Confirmation(
        gpus=1,
        baseline_key=BASELINE,
        finalists=finalists or (FIRST,),
        starts=starts,
        noise_starts=noise_starts,
        seed=seed,
    )


def measurement(
    start_id: str,
    value: float,
    *,
    workload_key: str = "c1-ctx1",
    repeat: int = 0,
    metrics: Mapping[str, float] | None = None,
    origin: Origin = Origin.MEASURED,
) -> Measurement:
    return Measurement(
        start_id=start_id,
        workload_key=workload_key,
        purpose=Purpose.CONFIRM,
        repeat=repeat,
        origin=origin,
        metrics={METRIC: value, **(metrics or {})},
    )


def start(slot: Slot, *, suffix: str = "", fingerprint: Fingerprint = FINGERPRINT, excluded: str = "") -> Start:
    return Start(
        id=f"start-{slot.index}{suffix}",
        trial=None,
        gpus=1,
        candidate_key=slot.candidate_key,
        purpose=slot.purpose,
        fingerprint=fingerprint,
        opened_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=slot.index),
        ended="stopped",
        slot=slot.index,
        excluded=excluded,
    )


@dataclass
class Made:
    """What was started and measured for a confirmation."""

    confirmation: Confirmation
    starts: list[Start] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    def decide(self, terms: Terms = TERMS, quality: tuple[QualityResult, ...] | None = None) -> Decision:
        """With passed quality for every finalist, unless a test says otherwise."""
        checked = tuple(good_quality(key) for key in self.confirmation.finalists) if quality is None else quality
        return decide(self.confirmation, self.starts, self.measurements, terms, quality=checked)


def made(
    confirmed: Confirmation, value: Callable[[Slot], float], *, ttft_ms: Mapping[str, float] | None = None
) -> Made:
    """Every slot filled, with `value(slot)` as the objective."""
    found = Made(confirmed)
    for slot in schedule(confirmed):
        found.starts.append(start(slot))
        metrics = {"ttft_p99_ms": (ttft_ms or {}).get(slot.candidate_key, 50.0)}
        found.measurements.append(measurement(f"start-{slot.index}", value(slot), metrics=metrics))
    return found


def from_ratios(ratios: Mapping[str, list[float]], **changes: int) -> Made:
    """The baseline at 100, each finalist at 100 times its ratio of the round."""
    count = len(next(iter(ratios.values())))
    confirmed = confirmation(*ratios, starts=count, **changes)

    def value(slot: Slot) -> float:
        return 100.0 * (ratios[slot.candidate_key][slot.round or 0] if slot.candidate_key in ratios else 1.0)

    return made(confirmed, value)


def good_quality(key: str, *, passed: bool = True) -> QualityResult:
    return QualityResult(
        name="regret", candidate_key=key, value=0.0 if passed else 3.0, limit=0.1, unit="nats", passed=passed
    )
