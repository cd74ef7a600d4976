"""Why a GPU ran slower than it can: the driver's reasons by name, and what a start's runs saw of them. Runs nothing.

The bits are NVML's `nvmlClocksEventReason*` (nvml.h). A clock that idles, or that somebody set, is no throttling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.core.measurement import Measurement

SAMPLES = "gpu_throttle_reasons"
REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "in step with other GPUs",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
    0x100: "clocks set for a display",
}
HEAT_OR_POWER = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


def names(mask: int) -> tuple[str, ...]:
    """Of the reasons in a mask; a bit that has no name here is given as a number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return tuple(REASONS.get(bit, f"reason {bit:#x}") for bit in bits)


def throttled_share(masks: Sequence[float]) -> float | None:
    """Share of the readings in which heat or power held a clock down; None without readings."""
    return sum(1 for mask in masks if int(mask) & HEAT_OR_POWER) / len(masks) if masks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """What the runs of one start saw. shares: reason to the share of the readings that had it, the most frequent first.
    clock_mhz: mean and lowest SM clock; None where none was read."""

    start_id: str
    shares: dict[str, float]
    clock_mhz: tuple[float, float] | None
    temperature_max_c: float | None

    def sentence(self) -> str:
        parts = [f"{name} in {share:.0%} of the readings" for name, share in self.shares.items()]
        if self.clock_mhz is not None:
            parts.append("SM clock {:.0f} MHz, at least {:.0f}".format(*self.clock_mhz))
        if self.temperature_max_c is not None:
            parts.append(f"up to {self.temperature_max_c:.0f} C")
        return ", ".join(parts)


def throttled(measurements: Iterable[Measurement]) -> list[Throttled]:
    """The starts whose GPUs were held down by heat or power, in order."""
    runs: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.samples.get(SAMPLES):
            runs.setdefault(measurement.start_id, []).append(measurement)
    found = []
    for start_id, mine in runs.items():
        masks = [int(mask) for run in mine for mask in run.samples[SAMPLES]]
        counted = {
            REASONS[bit]: sum(1 for mask in masks if mask & bit) / len(masks) for bit in REASONS if bit & HEAT_OR_POWER
        }
        shares = {name: share for name, share in sorted(counted.items(), key=lambda item: -item[1]) if share}
        if not shares:
            continue
        clocks = [clock for run in mine for clock in run.samples.get("gpu_clock_mhz", ())]
        heat = [celsius for run in mine for celsius in run.samples.get("gpu_temperature_c", ())]
        found.append(
            Throttled(
                start_id=start_id,
                shares=shares,
                clock_mhz=(sum(clocks) / len(clocks), min(clocks)) if clocks else None,
                temperature_max_c=max(heat, default=None),
            )
        )
    return found
