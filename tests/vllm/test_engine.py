"""A real vLLM server: started from an export, measured, asked, killed in every way, and gone afterwards."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ENGINE_ENVIRONMENT

from search_spaces.serving import ServingConfig
from tuner.core import quality
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import Running, StartRequest
from tuner.core.trial import Failed
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.core.workload import ServingWorkload
from tuner.engines import server as server_module
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator
from tuner.engines.running import RunningServer

pytestmark = pytest.mark.vllm

WORKLOAD = ServingWorkload(input_tokens=16, output_tokens=32, context_tokens=16, concurrency=4, requests=8)
BASE = ServingConfig(max_model_len=256, max_num_seqs=4, enforce_eager=True)
NGRAM = ServingConfig(
    max_model_len=256,
    max_num_seqs=4,
    enforce_eager=True,
    speculative_method="ngram",
    num_speculative_tokens=4,
    prompt_lookup_max=4,
    prompt_lookup_min=2,
)


@pytest.fixture(scope="module")
def evaluator(
    engine_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmEvaluator]:
    made = build(engine_python, tiny_model, tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def build(python: Path, model: Path, runs: Path, **changes: Any) -> VllmEvaluator:
    options = {"enable-prefix-caching": False, "dtype": "bfloat16", **changes.pop("options", {})}
    return VllmEvaluator(
        engine=Engine(python=python, environment=ENGINE_ENVIRONMENT, arguments=changes.pop("arguments", ())),
        model=ModelRef(model=str(model), extra=options),
        nodes=Nodes(),
        runs=runs,
        deadlines=Deadlines(**{"start_s": 240.0, "run_s": 120.0, "request_s": 60.0, **changes}),
    )


@contextlib.contextmanager
def started(evaluator: VllmEvaluator, name: str, config: ServingConfig = BASE) -> Iterator[Running | Failed]:
    request = StartRequest(start_id=name, candidate=config, purpose=Purpose.SEARCH, workloads=(WORKLOAD,))
    with evaluator.start(request, started=lambda *_: None) as running:
        yield running


def measure(running: Running | Failed, repeat: int = 0) -> Measurement | Failed:
    assert not isinstance(running, Failed), running.evidence
    return running.measure(WORKLOAD, purpose=Purpose.SEARCH, repeat=repeat)


@pytest.mark.usefixtures("nothing_left")
def test_a_server_is_measured_generates_scores_and_is_gone(evaluator: VllmEvaluator) -> None:
    with started(evaluator, "whole", NGRAM) as running:
        first, second = measure(running), measure(running, repeat=1)
        assert isinstance(first, Measurement), first
        assert isinstance(second, Measurement), second
        assert first.origin is Origin.MEASURED
        assert first.metrics["decode_tokens_per_s_per_user"] == pytest.approx(1000 / first.metrics["tpot_mean_ms"])
        assert first.metrics["acceptance_length"] >= 1
        assert len(first.samples["ttft_ms"]) == WORKLOAD.requests
        assert first.metrics.get("prefix_cache_hit_share", 0.0) == 0.0
        assert not isinstance(running, Failed)
        assert running.fingerprint.versions["vllm"].startswith("0.32.0")
        outputs = running.generate(quality.prompts(3, 12, 500, seed=1), max_tokens=24, concurrency=3)
        assert not isinstance(outputs, Failed), outputs
        scores = running.score(outputs)
        assert not isinstance(scores, Failed), scores
        assert [len(output.token_ids) for output in outputs] == [24, 24, 24]
        # Decode and prefill agree to within a few thousandths of a nat on the CPU.
        assert quality.quantile(quality.decode_against_prefill(outputs, scores)) < 0.05


def test_the_installed_vllm_refuses_in_preflight_what_cannot_work(evaluator: VllmEvaluator) -> None:
    assert evaluator.preflight(BASE) == ()
    for broken, word in [
        (ServingConfig(max_model_len=256, tensor_parallel_size=3), "divisible"),
        (ServingConfig(max_model_len=256, options=(("no-such-flag", True),)), "option"),
        (ServingConfig(max_model_len=256, kv_cache_dtype="int3"), ""),
    ]:
        reasons = evaluator.preflight(broken)
        assert len(reasons) == 1, broken
        assert word in reasons[0].sentence
        assert reasons[0].source.startswith("vLLM 0.32.0")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (ServingConfig(max_model_len=256, options=(("no-such-flag", True),)), FailureKind.REJECTED_BY_ENGINE),
        (ServingConfig(max_model_len=256, tensor_parallel_size=3), FailureKind.REJECTED_BY_ENGINE),
    ],
)
def test_a_server_that_refuses_its_options_is_no_start(
    evaluator: VllmEvaluator, config: ServingConfig, kind: FailureKind
) -> None:
    with started(evaluator, f"refused-{config.tensor_parallel_size}", config) as running:
        assert isinstance(running, Failed)
        assert running.kind is kind
        assert "vllm.entrypoints.cli.main" in running.evidence


@pytest.mark.usefixtures("nothing_left")
def test_a_model_folder_that_is_corrupt_is_said_with_its_evidence(
    engine_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 64)
    evaluator = build(engine_python, broken, tmp_path / "runs")
    try:
        with started(evaluator, "corrupt") as running:
            assert isinstance(running, Failed)
            assert running.kind is FailureKind.REJECTED_BY_ENGINE
            assert "afetensor" in running.evidence
    finally:
        evaluator.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_port_that_somebody_took_is_a_failure_of_the_machine(
    evaluator: VllmEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(server_module, "free_port", lambda: taken.getsockname()[1])
        with started(evaluator, "port") as running:
            assert isinstance(running, Failed)
            assert running.kind is FailureKind.INFRASTRUCTURE
            assert "ddress already in use" in running.evidence


@pytest.mark.usefixtures("nothing_left")
def test_a_start_that_takes_too_long_is_ended(engine_python: Path, tiny_model: Path, tmp_path: Path) -> None:
    evaluator = build(engine_python, tiny_model, tmp_path, start_s=2.0)
    try:
        with started(evaluator, "slow") as running:
            assert isinstance(running, Failed)
            assert running.kind is FailureKind.START_TIMEOUT
    finally:
        evaluator.close()


def find(running: Running | Failed, word: str) -> psutil.Process:
    """The member of the engine whose command line or name has that word; the server itself for `serve`."""
    assert isinstance(running, RunningServer)
    members = running.server.guarded.members()
    return next(p for p in members if word in " ".join([p.name(), *p.cmdline()]) and p.name() != "bash")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("word", "number", "kinds"),
    [
        ("EngineCore", signal.SIGKILL, {FailureKind.CRASHED}),
        ("cli.main serve", signal.SIGKILL, {FailureKind.CRASHED}),
        ("EngineCore", signal.SIGSTOP, {FailureKind.HUNG, FailureKind.INCOMPLETE}),
    ],
)
def test_an_engine_that_dies_or_hangs_under_traffic_is_told_apart(
    engine_python: Path, tiny_model: Path, tmp_path: Path, word: str, number: int, kinds: set[FailureKind]
) -> None:
    evaluator = build(engine_python, tiny_model, tmp_path, run_s=10.0)
    try:
        with started(evaluator, "victim") as running:
            assert isinstance(measure(running), Measurement)
            victim = find(running, word)
            threading.Timer(0.6, lambda: os.kill(victim.pid, number)).start()
            failed = measure(running, repeat=1)
            assert isinstance(failed, Failed), failed
            assert failed.kind in kinds, failed
            assert failed.evidence
    finally:
        evaluator.close()


@pytest.mark.usefixtures("nothing_left")
def test_closing_from_another_thread_ends_a_run_at_once(engine_python: Path, tiny_model: Path, tmp_path: Path) -> None:
    evaluator = build(engine_python, tiny_model, tmp_path)
    with started(evaluator, "closed") as running:
        long = ServingWorkload(input_tokens=16, output_tokens=200, context_tokens=16, concurrency=1, requests=200)
        threading.Timer(1.0, evaluator.close).start()
        began = time.monotonic()
        assert not isinstance(running, Failed)
        failed = running.measure(long, purpose=Purpose.SEARCH, repeat=0)
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.INFRASTRUCTURE
        assert time.monotonic() - began < 60


def test_kernels_in_the_engine_is_not_ours_and_the_plug_in_is_found(engine_python: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, importlib.util as u\n"
        "spec = u.find_spec('kernels')\n"
        "print(spec.origin if spec else None)\n"
        "print([e.value for e in m.entry_points(group='vllm.general_plugins') if e.name == 'tuner_inside'])\n"
        "from vllm.plugins import load_general_plugins; load_general_plugins()\n"
    )
    done = subprocess.run(
        [engine_python, "-c", code],
        env=Engine(python=engine_python).variables(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    origin, plugins = done.stdout.splitlines()[:2]
    assert not origin.startswith(str(Path(__file__).parents[2]))
    assert plugins == "['tuner_inside.plugin:register']"
