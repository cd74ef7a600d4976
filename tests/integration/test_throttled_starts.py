"""`tuner show` names the start whose GPUs heat or power held down, on a terminal and in JSON."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import yaml
from rich.console import Console

from search_spaces.serving import ServingConfig
from tests.fakes import FakeClock, MemoryStudies
from tuner.app.reading import print_study, study_document
from tuner.core.measurement import Fingerprint, Measurement, Origin, Purpose, Start
from tuner.core.study import Study
from tuner.core.study_file import parse
from tuner.core.trial import Trial

TINY = Path(__file__).parents[2] / "examples" / "tiny_cpu.yaml"


def studied(masks: list[float]) -> MemoryStudies:
    studies = MemoryStudies(FakeClock())
    file = parse(yaml.safe_load(TINY.read_text()))
    at = datetime(2026, 12, 1, tzinfo=UTC)
    studies.create(Study(id="s1", name=file.name, file=file, file_key=file.key, created_at=at))
    lease = studies.claim("test", ttl_s=60)
    assert lease is not None
    studies.add_trial(
        lease, Trial(number=0, key="k", candidate=ServingConfig(), gpus=1, baseline=True, chosen_by="baseline")
    )
    studies.open_start(
        lease,
        Start(
            id="s1-abc",
            trial=0,
            gpus=1,
            candidate_key="k",
            purpose=Purpose.SEARCH,
            fingerprint=Fingerprint(engine="vllm", versions={}, gpu="H200", gpus=1),
            opened_at=at,
        ),
    )
    studies.add_measurement(
        lease,
        Measurement(
            start_id="s1-abc",
            workload_key="c8-ctx32",
            purpose=Purpose.SEARCH,
            repeat=0,
            origin=Origin.MEASURED,
            metrics={},
            samples={"gpu_throttle_reasons": masks, "gpu_clock_mhz": [1980.0, 1200.0]},
        ),
    )
    return studies


def shown(studies: MemoryStudies) -> str:
    out = io.StringIO()
    print_study(Console(file=out, width=400), studies, "s1")
    return out.getvalue()


def test_a_throttled_start_is_named_with_its_reasons_and_clocks() -> None:
    studies = studied([0.0, float(0x40)])
    assert (
        "start s1-abc: GPUs were throttled: thermal slowdown by the hardware in 50% of the readings, "
        "SM clock 1590 MHz, at least 1200" in shown(studies)
    )
    (start,) = json.loads(json.dumps(study_document(studies, "s1")))["throttled_starts"]
    assert start["start_id"] == "s1-abc"
    assert start["shares"] == {"thermal slowdown by the hardware": 0.5}


def test_a_start_whose_gpus_were_idle_or_set_is_not() -> None:
    studies = studied([1.0, 2.0])
    assert "throttled" not in shown(studies)
    assert study_document(studies, "s1")["throttled_starts"] == []
