"""Prompts, conversations and a trace on the real engine, in one start; a cache that nobody computed in another."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ENGINE_ENVIRONMENT

from search_spaces.serving import ServingConfig
from tuner.core import datasets
from tuner.core.measurement import Measurement, Purpose
from tuner.core.ports import Running, StartRequest
from tuner.core.trial import Failed
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.core.workload import Dataset, ServingWorkload
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator
from tuner.engines.running import RunningServer
from tuner.engines.traffic import recomputed

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("nothing_left")]

CONFIG = ServingConfig(max_model_len=512, max_num_seqs=8, enforce_eager=True, block_size=32)
# In every prompt, and longer than a block: what prompts share within a run is found in the cache.
SYSTEM = "You answer in one word, whatever is asked, and never in two. " * 4


@pytest.fixture
def evaluator(engine_python: Path, small_model: Path, tmp_path: Path) -> Iterator[VllmEvaluator]:
    made = VllmEvaluator(
        engine=Engine(python=engine_python, environment=ENGINE_ENVIRONMENT),
        # float32: vLLM 0.32's attention in bfloat16 dies of prompts of one token on a CPU with AMX.
        model=ModelRef(model=str(small_model), extra={"dtype": "float32", "enable-prefix-caching": True}),
        nodes=Nodes(),
        runs=tmp_path / "runs",
        deadlines=Deadlines(start_s=240.0, run_s=120.0, request_s=60.0),
    )
    yield made
    made.close()


def dataset(kind: str, path: Path, text: str) -> Dataset:
    path.write_text(text)
    return Dataset(kind=kind, sha256=datasets.sha256(path), path=str(path))


def prompts(folder: Path) -> ServingWorkload:
    rows = [{"prompt": f"{SYSTEM}Question {n}: what is {n}?", "output_tokens": 8 + n} for n in range(12)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    data = dataset("prompts", folder / "prompts.jsonl", text)
    return ServingWorkload(
        input_tokens=256, output_tokens=32, context_tokens=256, concurrency=4, requests=8, dataset=data
    )


def conversations(folder: Path) -> ServingWorkload:
    talks = [
        {"conversations": [{"from": "human", "value": f"Tell me {n} things."}, {"from": "gpt", "value": "word " * n}]}
        for n in range(1, 40)
    ]
    data = dataset("sharegpt", folder / "chats.json", json.dumps(talks))
    return ServingWorkload(
        input_tokens=64, output_tokens=24, context_tokens=64, concurrency=4, requests=8, dataset=data
    )


TURNS = [
    ("a", 5.0, 80, 16, 32, None),
    ("b", 5.2, 90, 16, 32, None),
    ("a", 6.0, 150, 16, 96, None),  # the whole of the request before, its answer included
    ("b", 6.1, 160, 16, 90, 1.5),
    ("a", 6.2, 200, 16, 166, None),  # due before its predecessor's answer can be there
]


def trace(folder: Path) -> ServingWorkload:
    names = ("session", "timestamp_s", "input_tokens", "output_tokens", "shared_prefix_tokens", "think_s")
    text = "".join(json.dumps(dict(zip(names, turn, strict=True))) + "\n" for turn in TURNS)
    data = dataset("trace", folder / "trace.jsonl", text)
    facts = datasets.examine("trace", Path(data.path))
    return ServingWorkload(
        input_tokens=200,
        output_tokens=16,
        context_tokens=200,
        concurrency=facts.sessions_at_once,
        requests=facts.requests,
        dataset=data,
        quiet_s=facts.quiet_s,
    )


def measured(running: Running, workload: ServingWorkload, repeat: int = 0) -> Measurement:
    found = running.measure(workload, purpose=Purpose.SEARCH, repeat=repeat)
    assert isinstance(found, Measurement), found
    again = recomputed(found, workload, 1)
    assert again is not None
    assert {name: found.metrics[name] for name in again} == pytest.approx(again)
    return found


def test_prompts_conversations_and_a_trace_are_sent_as_they_stand_in_their_files(
    evaluator: VllmEvaluator, tmp_path: Path
) -> None:
    workloads = (prompts(tmp_path), conversations(tmp_path), trace(tmp_path))
    request = StartRequest(start_id="files", candidate=CONFIG, purpose=Purpose.SEARCH, workloads=workloads)
    with evaluator.start(request, started=lambda *_: None) as running:
        assert not isinstance(running, Failed), running.evidence
        said = [measured(running, workloads[0], repeat) for repeat in (0, 1)]
        talked = measured(running, workloads[1])
        replayed = measured(running, workloads[2])

    for run in said:
        assert len(run.samples["output_tokens"]) == 8
        assert set(run.samples["output_tokens"]) <= {float(8 + n) for n in range(12)}
        assert min(run.samples["input_tokens"]) > 32
    assert said[0].samples["output_tokens"] != said[1].samples["output_tokens"]
    # The system prompt is found from the second prompt on in each run; whole prompts of an earlier run are not.
    shares = [run.metrics["prefix_cache_hit_share"] for run in said]
    assert shares[0] == pytest.approx(shares[1], abs=0.15)
    assert 0.2 < shares[0] < 0.95

    assert max(talked.samples["output_tokens"]) == 24
    assert len(set(talked.samples["output_tokens"])) > 1

    samples = replayed.samples
    assert samples["session"] == [0, 1, 0, 1, 0]
    assert samples["input_tokens"] == [turn[2] for turn in TURNS]
    assert samples["output_tokens"] == [16.0] * 5
    ends = [start + latency / 1000 for start, latency in zip(samples["start_s"], samples["latency_ms"], strict=True)]
    assert samples["start_s"][2] >= 1.0
    assert samples["start_s"][3] >= ends[1] + 1.5
    assert samples["start_s"][4] >= ends[2]
    # Whole blocks of 32 are found, of the tokens that are really the same.
    shared = [0, 32, 96, 90, 166]
    assert replayed.metrics["repeated_prompt_share"] == pytest.approx(sum(shared) / 680)
    found = replayed.metrics["prefix_cache_hit_share"]
    assert sum(tokens - 32 for tokens in shared if tokens) / 680 <= found <= sum(shared) / 680
    assert replayed.metrics["session_tokens_per_s_p5"] <= replayed.metrics["session_tokens_per_s_p95"]
    assert replayed.metrics["session_decode_tokens_per_s_p50"] > replayed.metrics["session_tokens_per_s_p50"]


def test_a_deep_context_is_there_at_once_where_the_cache_is_made_up(evaluator: VllmEvaluator) -> None:
    workload = ServingWorkload(
        input_tokens=1, output_tokens=16, context_tokens=400, concurrency=2, requests=4, synthetic_kv=True
    )
    request = StartRequest(start_id="depth", candidate=CONFIG, purpose=Purpose.SEARCH, workloads=(workload,))
    with evaluator.start(request, started=lambda *_: None) as running:
        assert not isinstance(running, Failed), running.evidence
        assert isinstance(running, RunningServer)
        assert any("DecodeBenchConnector" in part for part in running.command)
        found = measured(running, workload)
        # Warm-up and run: six prompts, of which all but the last token came from the connector.
        counted = running.server.counters()
        assert counted["vllm:external_prefix_cache_hits_total"] >= 0.95 * 6 * 400
        assert found.workload_key == "c2-ctx400-synthetic-kv"
        assert found.samples["output_tokens"] == [16.0] * 4
