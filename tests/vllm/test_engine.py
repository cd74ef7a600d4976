"""A real vLLM server: started from an export, measured, asked, stopped, and gone afterwards."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ENGINE_ENVIRONMENT

from search_spaces.serving import ServingConfig
from tuner.core import quality
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import Running, StartRequest
from tuner.core.trial import Failed
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.core.workload import ServingWorkload
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator
from tuner.engines.hardware import NoEngineError

pytestmark = pytest.mark.vllm

# Longer than a block of the KV cache, so that a prompt that was seen before would be found in it.
WORKLOAD = ServingWorkload(input_tokens=160, output_tokens=32, context_tokens=160, concurrency=4, requests=8)
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
    engine_python: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmEvaluator]:
    made = build(engine_python, small_model, tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def build(python: Path, model: Path, runs: Path, environment: Mapping[str, str] = ENGINE_ENVIRONMENT) -> VllmEvaluator:
    """Prefix caching is left as vLLM has it, so that warm-ups and repeats would show in its hits."""
    return VllmEvaluator(
        engine=Engine(python=python, environment=environment),
        model=ModelRef(model=str(model), extra={"dtype": "bfloat16"}),
        nodes=Nodes(),
        runs=runs,
        deadlines=Deadlines(start_s=240.0, run_s=120.0, request_s=60.0),
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
        assert [run.metrics["prefix_cache_hit_share"] for run in (first, second)] == [0.0, 0.0]
        assert first.samples["server_cpu_s"][0] > 0
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
    "drafts", [3, pytest.param(5, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow), 7]
)
def test_ngram_speculation_of_every_draft_length_runs_and_is_counted(evaluator: VllmEvaluator, drafts: int) -> None:
    config = replace(NGRAM, num_speculative_tokens=drafts)
    assert evaluator.preflight(config) == ()
    with started(evaluator, f"ngram-{drafts}", config) as running:
        found = measure(running)
        assert isinstance(found, Measurement), found
        assert 1 <= found.metrics["acceptance_length"] <= drafts + 1
        # Counted from the engine's raw counters, of the run alone.
        drafted, accepted = found.samples["drafts"][0], found.samples["accepted_tokens"][0]
        assert found.metrics["acceptance_length"] == pytest.approx(1 + accepted / drafted)
        assert drafted <= WORKLOAD.requests * WORKLOAD.output_tokens


@pytest.mark.usefixtures("nothing_left")
def test_closing_from_another_thread_ends_a_run_at_once(engine_python: Path, small_model: Path, tmp_path: Path) -> None:
    evaluator = build(engine_python, small_model, tmp_path)
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


def test_a_study_cannot_undo_what_keeps_the_engine_apart(engine_python: Path, tmp_path: Path) -> None:
    with pytest.raises(NoEngineError, match=r"engine\.environment: PYTHONPATH is set by the tuner"):
        build(engine_python, tmp_path, tmp_path, {"PYTHONPATH": "/work"})
