"""A made-up cache is asked for only where the installed vLLM has it; without it no engine is started for nothing."""

import sys
from pathlib import Path

import pytest

from search_spaces.serving import ServingConfig
from tuner.core.measurement import FailureKind, Purpose
from tuner.core.ports import StartRequest
from tuner.core.trial import Failed
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.core.workload import ServingWorkload
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator
from tuner.engines.hardware import has_synthetic_kv

CONNECTOR = "distributed/kv_transfer/kv_connector/v1/decode_bench_connector.py"
DEEP = ServingWorkload(input_tokens=1, output_tokens=4, context_tokens=64, concurrency=1, requests=2, synthetic_kv=True)


def installed(folder: Path, *, connector: bool) -> Engine:
    """An interpreter that has a vLLM of that kind, which would raise if it were imported."""
    package = folder / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (folder / "vllm-0.9.0.dist-info").mkdir()
    (folder / "vllm-0.9.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.0\n")
    if connector:
        (package / CONNECTOR).parent.mkdir(parents=True)
        (package / CONNECTOR).touch()
    return Engine(python=Path(sys.executable), path=(folder,))


@pytest.mark.parametrize("connector", [True, False])
def test_the_connector_is_found_without_importing_vllm(tmp_path: Path, connector: bool) -> None:
    assert has_synthetic_kv(installed(tmp_path, connector=connector)) is connector


def test_an_interpreter_without_vllm_has_none() -> None:
    assert not has_synthetic_kv(Engine(python=Path(sys.executable)))


def test_a_vllm_without_the_connector_is_refused_before_a_start(tmp_path: Path) -> None:
    evaluator = VllmEvaluator(
        engine=installed(tmp_path, connector=False),
        model=ModelRef(model="m"),
        nodes=Nodes(),
        runs=tmp_path / "runs",
        deadlines=Deadlines(start_s=5.0),
    )
    request = StartRequest(start_id="s", candidate=ServingConfig(), purpose=Purpose.SEARCH, workloads=(DEEP,))
    started: list[object] = []
    with evaluator.start(request, started=lambda *told: started.append(told)) as refused:
        assert isinstance(refused, Failed)
    assert refused.kind is FailureKind.REJECTED_BY_ENGINE
    assert refused.sentence == "vLLM 0.9.0 has no DecodeBenchConnector, which workload.synthetic_kv needs"
    assert started == []
    evaluator.close()
