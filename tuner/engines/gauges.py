"""What the machine did while a run was measured: processor time of the engine; clocks, heat and memory of its GPUs.

The driver's own tool watches in one process for as long as an engine is ready; it reads counters and touches no GPU.
"""

import contextlib
import functools
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import IO

import psutil

from tuner.core import throttling

INTERVAL_MS = 500
MIB = 2**20
# Drivers from 535 on call it by the first name, those before by the second.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """at_s: on the monotonic clock.   throttle: the driver's bit mask of reasons (`tuner.core.throttling`).
    None where the driver does not tell, as for parts of a GPU."""

    at_s: float
    gpu: int
    clock_mhz: float
    memory_mib: float
    throttle: int | None
    power_w: float | None
    temperature_c: float | None


class Gauges:
    """Watches the given GPUs until `stop`; on a host without the driver's tool there is nothing to watch."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._readings: list[Reading] = []
        self._watcher: subprocess.Popen[str] | None = None
        if not gpus or shutil.which("nvidia-smi") is None:
            return
        self._watcher = subprocess.Popen(
            [
                "nvidia-smi",
                f"--query-gpu={','.join(_columns())}",
                "--format=csv,noheader,nounits",
                f"--id={','.join(map(str, gpus))}",
                f"--loop-ms={INTERVAL_MS}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._watcher.stdout is not None
        threading.Thread(target=self._read, args=(self._watcher.stdout,), daemon=True).start()

    def between(self, since_s: float, until_s: float) -> tuple[dict[str, float | None], dict[str, list[float]]]:
        """Metrics and samples of that span; both empty where nothing was read."""
        readings = [r for r in list(self._readings) if since_s <= r.at_s <= until_s]
        if not readings:
            return {}, {}
        clocks = [r.clock_mhz for r in readings]
        masks = [float(r.throttle) for r in readings if r.throttle is not None]
        power = [r.power_w for r in readings if r.power_w is not None]
        temperature = [r.temperature_c for r in readings if r.temperature_c is not None]
        metrics: dict[str, float | None] = {
            "memory_bytes": max(r.memory_mib for r in readings) * MIB,
            "gpu_clock_mean_mhz": fmean(clocks),
            "gpu_clock_min_mhz": min(clocks),
            "gpu_power_mean_w": fmean(power) if power else None,
            "gpu_temperature_max_c": max(temperature, default=None),
            "gpu_throttled_share": throttling.throttled_share(masks),
        }
        samples = {
            "gpu_clock_mhz": clocks,
            "gpu_power_w": power,
            "gpu_temperature_c": temperature,
            throttling.SAMPLES: masks,
        }
        return metrics, {name: values for name, values in samples.items() if values}

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()

    def _read(self, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError), stream:
            for line in stream:
                reading = parse(line, time.monotonic())
                if reading is not None:
                    self._readings.append(reading)


def parse(line: str, at_s: float) -> Reading | None:
    """One line of the driver's tool; None where it is none, or has no clock and no memory."""
    words = [word.strip() for word in line.split(",")]
    try:
        index, clock, memory, throttle, power, temperature = words
        return Reading(
            at_s=at_s,
            gpu=int(index),
            clock_mhz=float(clock),
            memory_mib=float(memory),
            throttle=int(throttle, 16) if throttle.startswith("0x") else None,
            power_w=_number(power),
            temperature_c=_number(temperature),
        )
    except ValueError:
        return None


def _number(word: str) -> float | None:
    """None for `[N/A]` and its like."""
    return None if word.startswith("[") else float(word)


@functools.cache
def _columns() -> tuple[str, ...]:
    """What is asked of this host's driver, by the names that it knows."""
    reasons = next((name for name in _REASONS if _known(name)), _REASONS[-1])
    return ("index", "clocks.sm", "memory.used", reasons, "power.draw", "temperature.gpu")


def _known(column: str) -> bool:
    asked = subprocess.run(
        ["nvidia-smi", f"--query-gpu={column}", "--format=csv,noheader"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return asked.returncode == 0


def cpu_seconds(processes: Sequence[psutil.Process]) -> Mapping[int, float]:
    """Processor seconds that each has used so far, user and system; those that are gone are left out."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            found[process.pid] = used.user + used.system
    return found


def cpu_used(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Processor seconds used in between by those that live; one that is new counts whole."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
