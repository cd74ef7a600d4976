"""What the machine did while a run was measured: processor time of the engine, clocks and memory of its GPUs.

The driver's own tool watches in one process for as long as an engine is ready; it reads counters and touches no GPU.
"""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import psutil

INTERVAL_MS = 500
MIB = 2**20
_COLUMNS = ("index", "clocks.sm", "clocks_throttle_reasons.active", "power.draw", "memory.used")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """at_s: on the monotonic clock.   throttle: the driver's bit mask of reasons; 1 is idle, 2 a clock that was set."""

    at_s: float
    gpu: int
    clock_mhz: float
    throttle: int
    power_w: float
    memory_mib: float


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
                f"--query-gpu={','.join(_COLUMNS)}",
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
        reasons = 0
        for reading in readings:
            reasons |= reading.throttle
        samples = {
            "gpu_clock_mhz": [r.clock_mhz for r in readings],
            "gpu_power_w": [r.power_w for r in readings],
            "gpu_throttle_reasons": [float(reasons)],
        }
        return {"memory_bytes": max(r.memory_mib for r in readings) * MIB}, samples

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
    """One line of the driver's tool; None where it is none, or a value is not available."""
    words = [word.strip() for word in line.split(",")]
    try:
        index, clock, throttle, power, memory = words
        return Reading(
            at_s=at_s,
            gpu=int(index),
            clock_mhz=float(clock),
            throttle=int(throttle, 16),
            power_w=float(power),
            memory_mib=float(memory),
        )
    except ValueError:
        return None


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
