"""A GPU that heat or power held down is named with its start; one that idles, or whose clock was set, is not."""

from tuner.core.measurement import Measurement, Origin, Purpose
from tuner.core.throttling import names, throttled, throttled_share


def run(start_id: str, masks: list[int], **samples: list[float]) -> Measurement:
    return Measurement(
        start_id=start_id,
        workload_key="c1-ctx1",
        purpose=Purpose.SEARCH,
        repeat=0,
        origin=Origin.MEASURED,
        metrics={},
        samples={"gpu_throttle_reasons": [float(mask) for mask in masks], **samples},
    )


def test_the_bits_of_a_mask_have_names() -> None:
    assert names(0) == ()
    assert names(0x44) == ("power cap", "thermal slowdown by the hardware")
    assert names(0x400) == ("reason 0x400",)


def test_idle_and_set_clocks_are_no_throttling() -> None:
    assert throttled_share([0x1, 0x2, 0x100, 0x0]) == 0
    assert throttled_share([0x1, 0x4, 0x20, 0x0]) == 0.5
    assert throttled_share([]) is None
    assert throttled([run("a", [0x1, 0x2, 0x100, 0x10])]) == []


def test_a_start_is_named_with_its_reasons_over_all_its_runs() -> None:
    hot = [
        run("b", [0x40, 0x44], gpu_clock_mhz=[1500.0, 1300.0], gpu_temperature_c=[86.0, 90.0]),
        run("b", [0x0, 0x40], gpu_clock_mhz=[1980.0, 1500.0]),
    ]
    (found,) = throttled([run("a", [0x0]), *hot])
    assert found.start_id == "b"
    assert found.shares == {"thermal slowdown by the hardware": 0.75, "power cap": 0.25}
    assert found.sentence() == (
        "thermal slowdown by the hardware in 75% of the readings, power cap in 25% of the readings, "
        "SM clock 1570 MHz, at least 1300, up to 90 C"
    )


def test_without_readings_nothing_is_said() -> None:
    assert throttled([run("a", [])]) == []
