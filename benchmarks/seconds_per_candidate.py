"""Seconds that one measured candidate costs: this tuner, `vllm bench sweep serve` and vllm-tuner, on one CPU engine.

    make engine && python -m benchmarks.seconds_per_candidate --peers FOLDER

Each side measures the same candidates at three concurrencies, three times each, on the same model and engine. The sweep
starts a server a candidate and a process a run; vllm-tuner a server and a run a trial, so nine trials a candidate, and
since it bounds a run by seconds instead of requests, each of its runs gets what ours took, at least its least, 1 s.
FOLDER gets two environments: pandas, which the sweep needs and the engine lacks, and vllm-tuner 0.1.6.
"""

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.writing import Goal, write
from tuner.app.wiring import connected
from tuner.core.measurement import Purpose

CONCURRENCIES, REPEATS, REQUESTS = (1, 4, 8), 3, 16
INPUT_TOKENS, OUTPUT_TOKENS = 32, 32
MAX_NUM_SEQS = (16, 8, 4)  # the first is the baseline; each is a candidate that every side measures
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
SERVE = {"block-size": "32", "max-num-batched-tokens": "2048", "max-model-len": "128", "dtype": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine = os.environ.get("TUNER_ENGINE_PYTHON")
    parser.add_argument("--engine", type=Path, default=engine, required=engine is None)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/seconds_per_candidate"))
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    model = work / "model"
    if not model.exists():
        subprocess.run([arguments.engine, "scripts/make_tiny_model.py", model], check=True)
    peers(arguments.peers.absolute())
    begun = time.monotonic()
    ours = this_tuner(arguments.engine, model, work)
    print("ours", json.dumps(ours), flush=True)
    sweep = vllm_sweep(arguments.engine, arguments.peers.absolute(), model, work)
    print("sweep", json.dumps(sweep), flush=True)
    other = vllm_tuner(arguments.engine, arguments.peers.absolute(), model, work, ours["run_seconds"])
    print("vllm-tuner", json.dumps(other), flush=True)
    sides = {"tuner": ours, "vllm bench sweep serve": sweep, "vllm-tuner 0.1.6": other}
    each = {name: side["seconds"] / side["candidates"] for name, side in sides.items()}
    least = min(each["vllm bench sweep serve"], each["vllm-tuner 0.1.6"]) / each["tuner"]
    write(
        "seconds_per_candidate",
        seconds=time.monotonic() - begun,
        versions=ours.pop("versions"),
        results={"sides": sides, "seconds_per_candidate": each, "runs_per_candidate": len(CONCURRENCIES) * REPEATS},
        goals=[
            Goal("times fewer seconds a candidate than the faster peer", ">= 2", least, least >= 2),
            Goal("share of our time outside engine start and traffic", "< 0.05", ours["outside_share"],
                 ours["outside_share"] < 0.05),
        ],
    )  # fmt: skip


def peers(folder: Path) -> None:
    if not (folder / "pandas").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "pandas", "pandas"], check=True
        )
    if not (folder / "vllm-tuner").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "vllm-tuner"], check=True)
        pip = folder / "vllm-tuner" / "bin" / "pip"
        subprocess.run([pip, "install", "-q", "vllm-tuner==0.1.6", "httpx"], check=True)


def this_tuner(engine: Path, model: Path, work: Path) -> dict[str, Any]:
    """Until the search is over: the peers confirm nothing."""
    file = {
        "name": "seconds per candidate",
        "model": str(model),
        "hardware": {"gpu": "cpu", "gpus": 1, "gpus_per_node": 1},
        "space": "tiny_cpu",
        "candidates": [_values(seqs) for seqs in MAX_NUM_SEQS[1:]],
        "baseline": _values(MAX_NUM_SEQS[0]),
        "evaluator": "vllm",
        "workload": {
            "input_tokens": INPUT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "concurrency": list(CONCURRENCIES),
            "requests": REQUESTS,
            "repeats": REPEATS,
        },
        "objective": {"maximize": "output_tokens_per_s"},
        "budget": {"trials": len(MAX_NUM_SEQS) - 1},
        "engine": {
            "options": {"enable-prefix-caching": False, "dtype": "bfloat16"},
            "environment": ENVIRONMENT,
        },
    }
    path, database = work / "study.yaml", work / "tuner.db"
    database.unlink(missing_ok=True)
    path.write_text(yaml.safe_dump(file))
    command = [Path(sys.executable).parent / "tuner", "run", path, "--new", "--db", f"sqlite:///{database}"]
    begun = time.monotonic()
    environment = {**os.environ, "TUNER_ENGINE_PYTHON": str(engine), "TUNER_RUNS": str(work / "starts")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        assert run.stdout is not None
        seconds = math.nan
        for line in run.stdout:
            print("  ", line, end="", flush=True)
            if line.startswith(("confirming", "decision")):
                seconds = time.monotonic() - begun
                run.send_signal(signal.SIGINT)
                break
        run.stdout.read()
    with connected(f"sqlite:///{database}") as studies:
        (study,) = studies.find()
        starts = [s for s in studies.starts(study.id) if s.purpose is not Purpose.NOISE and s.held_s]
        runs = [m for m in studies.measurements(study.id) if m.purpose is Purpose.SEARCH]
    starting, traffic = sum(s.ready_s or 0 for s in starts), sum(m.seconds for m in runs)
    by_workload: dict[str, list[float]] = {}
    for run_ in runs:
        by_workload.setdefault(run_.workload_key, []).append(run_.seconds)
    return {
        "seconds": seconds,
        "candidates": len({s.candidate_key for s in starts if s.id in {run_.start_id for run_ in runs}}),
        "starts": len(starts),
        "runs": len(runs),
        "engine_start_s": starting,
        "traffic_s": traffic,
        "outside_share": 1 - (starting + traffic) / seconds,
        "run_seconds": {int(k[1:].split("-")[0]): sum(v) / len(v) for k, v in by_workload.items()},
        "versions": dict(starts[0].fingerprint.versions),
    }


def _values(seqs: int) -> dict[str, Any]:
    return {"max_num_seqs": seqs, "block_size": 32, "max_num_batched_tokens": 2048}


def vllm_sweep(engine: Path, peers: Path, model: Path, work: Path) -> dict[str, Any]:
    port = free_port()
    shim(engine, work)
    serve = f"vllm serve {model} --port {port} --no-enable-prefix-caching " + " ".join(
        f"--{k} {v}" for k, v in SERVE.items()
    )
    bench = (
        f"vllm bench serve --model {model} --port {port} --dataset-name random --random-input-len {INPUT_TOKENS} "
        f"--random-output-len {OUTPUT_TOKENS} --ignore-eos --num-prompts {REQUESTS}"
    )
    (work / "serve.json").write_text(json.dumps([{"max_num_seqs": seqs} for seqs in MAX_NUM_SEQS]))
    (work / "bench.json").write_text(json.dumps([{"max_concurrency": c} for c in CONCURRENCIES]))
    out = work / f"sweep-{time.time():.0f}"
    command = ["vllm", "bench", "sweep", "serve", "--serve-cmd", serve, "--bench-cmd", bench,
               "--serve-params", work / "serve.json", "--bench-params", work / "bench.json",
               "--num-runs", str(REPEATS), "-o", out]  # fmt: skip
    begun = time.monotonic()
    run_to(work / "sweep.log", command, peer_environment(work, peers / "pandas"))
    seconds = time.monotonic() - begun
    found = [json.loads(path.read_text()) for path in out.rglob("run=*.json")]
    whole = [run for run in found if run["completed"] == REQUESTS]
    return {
        "seconds": seconds,
        "candidates": len(MAX_NUM_SEQS),
        "starts": len(MAX_NUM_SEQS),
        "runs": len(whole),
        "traffic_s": sum(run["duration"] for run in whole),
    }


DRIVER = """
import json, sys, time
from vllm_tuner.benchmarks.http_client import HTTPBenchmarkProvider as Http
from vllm_tuner.core.models import BenchmarkConfig, TrialConfig
from vllm_tuner.core.trial import TrialRunner
from vllm_tuner.vllm.launcher import VLLMLauncher
ask = json.loads(sys.argv[1])
found, number, begun = [], 0, time.monotonic()
for seqs in ask["max_num_seqs"]:
    for concurrency, seconds in ask["concurrency"]:
        for _ in range(ask["repeats"]):
            runner = TrialRunner(
                launcher=VLLMLauncher(model=ask["model"], port=ask["port"]), benchmark_provider=Http(),
                benchmark_config=BenchmarkConfig(
                    provider="http", prompt_tokens=ask["input"], output_tokens=ask["output"],
                    concurrent_requests=concurrency, max_seconds=seconds))
            done = runner.run_trial(TrialConfig(trial_number=number, parameters={"max_num_seqs": seqs},
                                                static_parameters=ask["static"]))
            number += 1
            ok = done.benchmark is not None and done.benchmark.successful_requests > 0
            traffic_s = done.benchmark.duration_seconds if ok else 0.0
            found.append({"ok": ok, "traffic_s": traffic_s, "why": done.error_message})
print("RESULT " + json.dumps({"seconds": time.monotonic() - begun, "runs": found}))
"""


def vllm_tuner(engine: Path, peers: Path, model: Path, work: Path, run_seconds: Mapping[int, float]) -> dict[str, Any]:
    """Its own trial runner, without its sampler and its reports, which would only add to it."""
    shim(engine, work)
    ask = {
        "model": str(model),
        "port": free_port(),
        "max_num_seqs": MAX_NUM_SEQS[:1],  # nine starts a candidate: one candidate is enough to know
        "concurrency": [(c, max(1, math.ceil(run_seconds[c]))) for c in CONCURRENCIES],
        "repeats": REPEATS,
        "input": INPUT_TOKENS,
        "output": OUTPUT_TOKENS,
        "static": {**{k.replace("-", "_"): v for k, v in SERVE.items()}, "enable_prefix_caching": False},
    }
    python = peers / "vllm-tuner" / "bin" / "python"
    log = work / "vllm_tuner.log"
    run_to(log, [python, "-c", DRIVER, json.dumps(ask)], peer_environment(work, None))
    said = json.loads(next(line for line in log.read_text().splitlines() if line.startswith("RESULT "))[7:])
    failed = [run["why"] for run in said["runs"] if not run["ok"]]
    if failed:
        raise SystemExit(f"vllm-tuner: {len(failed)} runs failed, such as: {failed[0]}")
    return {
        "seconds": said["seconds"],
        "candidates": 1,
        "starts": len(said["runs"]),
        "runs": len(said["runs"]),
        "traffic_s": sum(run["traffic_s"] for run in said["runs"]),
    }


def shim(engine: Path, work: Path) -> None:
    """A `vllm` command for the peers, which find it on PATH."""
    path = work / "bin" / "vllm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {engine} -m vllm.entrypoints.cli.main "$@"\n')
    path.chmod(0o755)


def peer_environment(work: Path, path: Path | None) -> dict[str, str]:
    found = {**os.environ, **ENVIRONMENT, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"}
    return found if path is None else {**found, "PYTHONPATH": str(path)}


def run_to(log: Path, command: Sequence[object], environment: Mapping[str, str]) -> None:
    with log.open("w") as file:
        done = subprocess.run(
            [str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, env=dict(environment), check=False
        )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
