"""GPUs are held by one start at a time, on a whole host, and used again only when their memory is back."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.core.metrics import METRICS
from tuner.engines import devices, gauges, hardware
from tuner.engines.devices import NONE, Devices, Held, NoDeviceError
from tuner.engines.process import Guarded


class Usage:
    """The driver: GPU to MiB in use."""

    def __init__(self, gpus: int) -> None:
        self.mib = dict.fromkeys(range(gpus), 10)

    def __call__(self) -> dict[int, int]:
        return dict(self.mib)


def pool(folder: Path, usage: Usage, *, visible: str | None = None, patience_s: float = 0.3) -> Devices:
    return Devices(visible=visible, patience_s=patience_s, back_s=0.3, usage=usage, folder=folder)


def hold(pool: Devices, count: int) -> Held:
    return pool.hold(count, stopped=lambda: False)


def test_a_host_without_gpus_holds_nothing_and_gives_nothing_back(tmp_path: Path) -> None:
    here = pool(tmp_path, Usage(0))
    assert hold(here, 2) == NONE
    assert hold(here, 2).variables == {}
    assert here.give_back(NONE) == ""


def test_two_starts_never_hold_the_same_gpu_whichever_tuner_asks(tmp_path: Path) -> None:
    usage = Usage(4)
    one, other = pool(tmp_path, usage), pool(tmp_path, usage)
    first, second = hold(one, 2), hold(other, 2)
    assert set(first.indices) | set(second.indices) == {0, 1, 2, 3}
    assert first.variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(NoDeviceError, match="another start on this host"):
        hold(one, 1)
    other.give_back(second)
    third = hold(one, 1)
    assert third.indices == (2,)
    for held in (first, third):
        assert one.give_back(held) == ""


def test_a_start_waits_for_a_gpu_that_is_given_back(tmp_path: Path) -> None:
    usage = Usage(1)
    here = pool(tmp_path, usage, patience_s=20)
    first = hold(here, 1)
    threading.Timer(0.2, lambda: here.give_back(first)).start()
    began = time.monotonic()
    second = hold(here, 1)
    assert 0.1 < time.monotonic() - began < 10
    here.give_back(second)


def test_a_start_that_is_stopped_waits_no_longer(tmp_path: Path) -> None:
    here = pool(tmp_path, Usage(1), patience_s=60)
    first = hold(here, 1)
    with pytest.raises(NoDeviceError):
        here.hold(1, stopped=lambda: True)
    here.give_back(first)


def test_more_gpus_than_there_are_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="8 GPUs are needed, and this host offers 4"):
        hold(pool(tmp_path, Usage(4), patience_s=60), 8)


@pytest.mark.parametrize(("visible", "indices"), [("2,3", (2, 3)), (" 1 , 3 ", (1, 3)), ("GPU-5f2c,GPU-77aa", ())])
def test_only_visible_gpus_are_held(tmp_path: Path, visible: str, indices: tuple[int, ...]) -> None:
    here = pool(tmp_path, Usage(4), visible=visible)
    held = hold(here, 2)
    assert held.indices == indices
    here.give_back(held)


def test_a_gpu_whose_memory_stays_in_use_is_not_used_until_it_is_free(tmp_path: Path) -> None:
    """vllm#55510, #42017: what a killed server leaves makes the next start run out of memory."""
    usage = Usage(2)
    here = pool(tmp_path, usage)
    held = hold(here, 1)
    usage.mib[0] = 90_000
    said = here.give_back(held)
    assert said == "89990 MiB of GPU 0 did not come back after its engine was gone"
    assert hold(here, 1).indices == (1,)
    with pytest.raises(NoDeviceError, match="2 GPUs are needed, and 1 can be used: 89990 MiB of GPU 0"):
        hold(here, 2)
    usage.mib[0] = 12
    assert hold(here, 1).indices == (0,)


def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    usage = Usage(1)
    here = Devices(visible=None, patience_s=1, back_s=20, usage=usage, folder=tmp_path)
    held = hold(here, 1)
    usage.mib[0] = 90_000
    threading.Timer(0.3, lambda: usage.mib.update({0: 10})).start()
    assert here.give_back(held) == ""


def test_a_gpu_whose_engine_could_not_be_ended_stays_out_of_use(tmp_path: Path) -> None:
    usage = Usage(1)
    here = pool(tmp_path, usage)
    held = hold(here, 1)
    usage.mib[0] = 90_000
    assert here.give_back(held, trouble="process 7 survived SIGKILL") == "process 7 survived SIGKILL"
    with pytest.raises(NoDeviceError, match="survived SIGKILL"):
        hold(here, 1)


def test_the_lock_of_a_killed_tuner_holds_until_its_engine_is_gone(tmp_path: Path) -> None:
    """kill -9 of the tuner: the guard still stops the engine, and the GPU is not free before that."""
    code = (
        "import os, time; from pathlib import Path; from tuner.engines.devices import Devices;"
        "from tuner.engines.process import Guarded; here = Path(os.environ['HERE']);"
        "held = Devices(visible=None, patience_s=1, usage=lambda: {0: 0}, folder=here).hold(1, stopped=lambda: False);"
        "log = here / 'log';"
        "g = Guarded(['bash', '-c', 'trap \"\" TERM; echo up; while :; do sleep 0.1; done'],"
        " environment=dict(os.environ), cwd=here, log=log, grace_s=1.5, locks=held.locks)\n"
        "while log.read_text() != 'up\\n': time.sleep(0.02)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "HERE": str(tmp_path)}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with pytest.raises(NoDeviceError):
        hold(pool(tmp_path, Usage(1), patience_s=0.2), 1)
    later = pool(tmp_path, Usage(1), patience_s=20)
    later.give_back(hold(later, 1))


def test_a_command_under_a_guard_does_not_get_the_locks(tmp_path: Path) -> None:
    here = pool(tmp_path, Usage(1))
    held = hold(here, 1)
    guarded = Guarded(
        ["bash", "-c", "ls -l /proc/self/fd"],
        environment=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / "log",
        locks=held.locks,
    )
    assert guarded.wait(10) == 0
    guarded.stop()
    assert "/proc/" in (tmp_path / "log").read_text()
    assert ".lock" not in (tmp_path / "log").read_text()
    here.give_back(held)


DRIVER = """#!/bin/bash
case "$*" in
  *index,memory.used*) printf '0, 4\\n1, 130211\\n' ;;
  *index,clocks.sm*)
    for i in 1 2 3 4 5 6; do
      printf '1, 1980, 130211, 0x0000000000000000, 512.30, 61\\n'
      printf '1, 1500, 130300, 0x0000000000000044, [N/A], 88\\n'
      printf '1, 1500, 130300, 0x0000000000000040, 690.10, [N/A]\\n'; sleep 0.1
    done; sleep 60 ;;
  *--query-gpu=clocks_throttle_reasons.active*) echo 0x1 ;;
  *) exit 6 ;;
esac
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of before 535: it knows only the older name of the reasons."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(DRIVER)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    hardware.device.cache_clear()
    gauges._columns.cache_clear()
    yield
    hardware.device.cache_clear()
    gauges._columns.cache_clear()


@pytest.mark.usefixtures("driver")
def test_the_drivers_tool_is_read() -> None:
    assert devices.memory_mib() == {0: 4, 1: 130211}


@pytest.mark.usefixtures("driver")
def test_clocks_throttling_and_memory_of_a_run_are_those_of_its_span() -> None:
    since = time.monotonic()
    watching = gauges.Gauges([1])
    time.sleep(1.0)
    until = time.monotonic()
    metrics, samples = watching.between(since, until)
    watching.stop()
    assert metrics["memory_bytes"] == 130_300 * 2**20
    assert metrics["gpu_clock_mean_mhz"] == pytest.approx(1660)
    assert metrics["gpu_clock_min_mhz"] == 1500
    assert metrics["gpu_throttled_share"] == pytest.approx(2 / 3)
    assert metrics["gpu_power_mean_w"] == pytest.approx(601.2)
    assert metrics["gpu_temperature_max_c"] == 88
    assert set(metrics) <= set(METRICS)
    assert set(samples["gpu_clock_mhz"]) == {1980.0, 1500.0}
    assert set(samples["gpu_throttle_reasons"]) == {0.0, float(0x44), float(0x40)}
    assert max(samples["gpu_power_w"]) == 690.1
    assert set(samples["gpu_temperature_c"]) == {61.0, 88.0}
    assert watching.between(until, until + 1) == ({}, {})


def test_what_a_driver_does_not_tell_is_missing_and_the_rest_is_read() -> None:
    """Parts of a GPU have no power and no reasons of their own."""
    read = gauges.parse("0, 1980, 512, [N/A], [Not Supported], [N/A]", 7.0)
    assert read is not None
    assert (read.at_s, read.clock_mhz, read.memory_mib) == (7.0, 1980, 512)
    assert (read.throttle, read.power_w, read.temperature_c) == (None, None, None)
    for line in ("", "0, [N/A], 512, 0x0, 1, 2", "Unable to determine the device handle", "0, 1980, 512, 0x0, 1"):
        assert gauges.parse(line, 7.0) is None


def test_without_a_gpu_nothing_is_watched() -> None:
    watching = gauges.Gauges([])
    assert watching.between(0.0, 1e9) == ({}, {})
    watching.stop()


def test_processor_time_is_what_the_living_used_in_between() -> None:
    assert gauges.cpu_used({1: 10.0, 2: 5.0}, {1: 12.5, 3: 1.0}) == 3.5
