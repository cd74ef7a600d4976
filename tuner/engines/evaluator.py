"""The `vllm` evaluator: a real server for each start, from the very file that an export writes."""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from search_spaces.candidate import Candidate
from search_spaces.kimi_k3 import SPECIALIZED
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tuner.core import vllm_args
from tuner.core.measurement import FailureKind, Fingerprint, Origin, Process
from tuner.core.ports import Running, StartRequest
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload
from tuner.engines import caches, hardware, path_proof
from tuner.engines.devices import Devices, Held, NoDeviceError
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.gauges import Gauges
from tuner.engines.helper import Helper
from tuner.engines.preflight import Preflight
from tuner.engines.process import StillThereError
from tuner.engines.running import RunningServer
from tuner.engines.server import Recipe, Server
from tuner.engines.tasks import Tasks


class VllmEvaluator:
    """Servers on this host, one for each start; the benchmark and the preflight in one long-lived process each.

    runs: folder for what each start writes: its configuration, its log.
    """

    origin = Origin.MEASURED

    def __init__(
        self,
        *,
        engine: Engine,
        model: vllm_args.ModelRef,
        nodes: vllm_args.Nodes,
        runs: Path,
        deadlines: Deadlines,
        kernel_tables: Mapping[str, str] | None = None,
        tasks: Tasks | None = None,
    ) -> None:
        """kernel_tables: name of a tuned tile table to its file.   tasks: where the study checks accuracy.

        Raises:
            NoEngineError: the interpreter cannot be run or has no vLLM.
        """
        self._engine = engine
        self._model = model
        self._nodes = nodes
        self._kernel_tables = kernel_tables or {}
        self._tasks = tasks
        self._runs = runs
        self._deadlines = deadlines
        self._versions = {**hardware.versions(engine), "model": model_revision(model)}
        self._servers: set[Server] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._synthetic_kv = False
        self._bench = Helper(engine, "tuner_inside.bench", runs / "helpers", first_answer_s=deadlines.helper_s)
        self._asker = Helper(engine, "tuner_inside.preflight", runs / "helpers", first_answer_s=deadlines.helper_s)
        self._preflight = Preflight(
            self._asker, model, runs / "preflight", self._versions["vllm"], deadlines, engine.arguments
        )
        self._devices = Devices(visible=engine.variables().get("CUDA_VISIBLE_DEVICES"), patience_s=deadlines.devices_s)

    def preflight(self, candidate: Candidate) -> Sequence[Reason]:
        """What the installed vLLM says against a candidate."""
        return self._preflight(with_whole_paths(candidate) if isinstance(candidate, ServingConfig) else candidate)

    def fingerprint(self, gpus: int, settings: Mapping[str, str] | None = None) -> Fingerprint:
        device = hardware.device()
        return Fingerprint(
            engine="vllm",
            versions=self._versions,
            gpu=device.name,
            gpus=gpus,
            driver=device.driver,
            host=device.host,
            settings={**self._engine.environment, **(settings or {})},
        )

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        """A server that is ready, or why there is none; gone, all of it, when the block ends."""
        held = self._hold(request)
        server = held if isinstance(held, Failed) else self._launch(request, held)
        if isinstance(server, Failed):
            if isinstance(held, Held):
                self._devices.give_back(held)
            yield server
            return
        assert isinstance(held, Held)
        watching = Gauges(())
        try:
            started(server.guarded.process, server.command, str(server.log))
            self._bench.warm_up()
            ready_s = server.await_ready()
            if isinstance(ready_s, Failed):
                yield self._explained(ready_s)
            else:
                config = request.candidate
                assert isinstance(config, ServingConfig)
                watching = Gauges(held.indices)
                yield RunningServer(
                    server=server,
                    bench=self._bench,
                    model=self._model,
                    request=request,
                    fingerprint=self._fingerprint_of(config),
                    ready_s=ready_s,
                    deadlines=self._deadlines,
                    gauges=watching,
                    stopped=lambda: self._closed,
                    tasks=self._tasks,
                )
        finally:
            watching.stop()
            with self._lock:
                self._servers.discard(server)
            self._end(server, held)

    def close(self) -> None:
        """Stop everything, from any thread; what is being measured fails, and nothing starts any more."""
        with self._lock:
            self._closed = True
            servers = list(self._servers)
        self._bench.stop()
        self._asker.stop()
        if self._tasks is not None:
            self._tasks.stop()
        for server in servers:
            with contextlib.suppress(StillThereError):
                server.guarded.stop()

    def _variables(self, config: ServingConfig) -> dict[str, str]:
        """What the candidate brings along, and where its autotune cache is on a host with GPUs."""
        found = vllm_args.environment(config, self._nodes, kernel_tables=self._kernel_tables)
        if hardware.device().count and caches.AUTOTUNE_VARIABLE not in self._engine.environment:
            found[caches.AUTOTUNE_VARIABLE] = str(caches.autotune_folder(self._runs, config))
        return found

    def _fingerprint_of(self, config: ServingConfig) -> Fingerprint:
        """Of a start that is ready: by then its engine has read, or filled, its caches."""
        read = caches.hashes({**self._engine.environment, **self._variables(config)})
        own = vllm_args.environment(config, self._nodes, kernel_tables=self._kernel_tables)
        return self.fingerprint(config.gpus, {**own, **read})

    def _end(self, server: Server, held: Held) -> None:
        """What cannot be ended, or does not give its memory back, keeps its GPUs out of use and is said in its log."""
        trouble = ""
        try:
            server.stop()
        except StillThereError as error:
            trouble = str(error)
        said = self._devices.give_back(held, trouble=trouble)
        if said:
            with contextlib.suppress(OSError), server.log.open("a", encoding="utf-8") as log:
                log.write(f"tuner: {said}\n")

    def _hold(self, request: StartRequest) -> Held | Failed:
        gpus = request.candidate.gpus if isinstance(request.candidate, ServingConfig) else 1
        try:
            return self._devices.hold(gpus, stopped=lambda: self._closed)
        except NoDeviceError as error:
            return self._explained(_infrastructure(str(error)))

    def _launch(self, request: StartRequest, held: Held) -> Server | Failed:
        config = request.candidate
        if not isinstance(config, ServingConfig):
            return _infrastructure(f"a {config.kind} candidate is no server")
        config = with_whole_paths(config)
        if self._nodes.count(config) > 1:
            return _infrastructure(f"{config.gpus} GPUs need {self._nodes.count(config)} hosts, and this is one")
        if not request.real_acceptance and any(getattr(w, "synthetic_kv", False) for w in request.workloads):
            self._synthetic_kv = self._synthetic_kv or hardware.has_synthetic_kv(self._engine)
            if not self._synthetic_kv:
                return Failed(
                    kind=FailureKind.REJECTED_BY_ENGINE,
                    sentence=f"vLLM {self._versions['vllm']} has no {vllm_args.SYNTHETIC_KV_CONNECTOR}, which "
                    "workload.synthetic_kv needs",
                )
        overlay: dict[str, object] = {}
        for workload in request.workloads if not request.real_acceptance else ():
            if isinstance(workload, ServingWorkload):
                overlay.update(vllm_args.benchmark_overlay(config, workload, self._model))
        recipe = Recipe(
            name=request.start_id,
            yaml=vllm_args.to_yaml(vllm_args.engine_options(config, self._model)),
            overlay=tuple(vllm_args.to_cli(overlay)),
            variables={**self._variables(config), **_watched(config, self._runs / request.start_id), **held.variables},
            locks=held.locks,
        )
        with self._lock:
            if self._closed:
                return _infrastructure("the evaluator was stopped")
            try:
                server = Server(self._engine, recipe, self._runs / request.start_id, self._deadlines)
            except OSError as error:
                return _infrastructure(f"the start could not be written or begun: {error}")
            self._servers.add(server)
        return server

    def _explained(self, failed: Failed) -> Failed:
        return _infrastructure("the evaluator was stopped") if self._closed else failed


def _watched(config: ServingConfig, folder: Path) -> dict[str, str]:
    """Where the plug-in writes what path the decode steps took; asked of the specialised path alone."""
    return {path_proof.VARIABLE: str(folder / path_proof.FOLDER)} if config.decode_backend == SPECIALIZED else {}


def with_whole_paths(config: ServingConfig) -> ServingConfig:
    """A draft's folder as a whole path: an engine works in a folder of its own, a user wrote it for theirs."""
    draft = config.speculative_model
    if draft is None or not Path(draft).is_dir():
        return config
    return replace(config, speculative_model=str(Path(draft).resolve()))


def model_revision(model: vllm_args.ModelRef) -> str:
    """Of a folder: a hash of its config.json and of its weight files' names and sizes; else the revision asked for."""
    folder = Path(model.model)
    if not folder.is_dir():
        return model.revision or "not pinned"
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors*")]):
        digest.update(path.read_bytes() if path.suffix == ".json" else f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def _infrastructure(sentence: str) -> Failed:
    return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=sentence)
