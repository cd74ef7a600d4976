"""Proof of path: which captured sizes of Kimi K3's specialised decode really run specialised kernels, and how often.

vLLM chooses when a CUDA graph is captured, and replays it without any Python of the model. So the choice is noted at
capture, by number of tokens, and replays are counted; steps without a graph are seen where vLLM asks for a plan.
TUNER_PATH_PROOF names a folder; each process of the engine writes one file there, about once a second.

Read from vLLM 0.33.0: models/kimi_k3/nvidia/specialized_decode/runtime/decode.py and v1/worker/gpu/cudagraph_utils.py.
"""

import contextlib
import json
import logging
import os
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner_inside.after_import import after_import

VARIABLE = "TUNER_PATH_PROOF"
DECODE = "vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode"
GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils"
MOST_TOKENS = 64  # of a step that the specialised path prepares for
WRITE_EVERY_S = 1.0
SPECIALISED, STOCK, MIXED = "specialised", "stock", "mixed"

log = logging.getLogger("vllm.tuner_inside.path_proof")


class Ledger:
    """chosen: tokens of a captured step to what it runs.   steps: how many of each kind were run, and by tokens."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"path-{os.getpid()}.json"
        self.chosen: dict[int, str] = {}
        self.steps: Counter[str] = Counter()
        self.replays: Counter[int] = Counter()
        self._written_s = -WRITE_EVERY_S

    def captured(self, tokens: int, what: str) -> None:
        self.chosen[tokens] = what
        self.write()

    def replayed(self, tokens: int, *, uniform: bool) -> None:
        self.replays[tokens] += 1
        self._count(self.chosen.get(tokens, STOCK) if uniform and tokens <= MOST_TOKENS else MIXED)

    def ran_without_a_graph(self, tokens: int, *, uniform: bool) -> None:
        self._count(STOCK if uniform and tokens <= MOST_TOKENS else MIXED)

    def _count(self, kind: str) -> None:
        self.steps[kind] += 1
        if time.monotonic() - self._written_s >= WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Whole or not at all, so that a reader never sees half of it."""
        self._written_s = time.monotonic()
        document = {
            "chosen": {str(tokens): what for tokens, what in sorted(self.chosen.items())},
            "replays": {str(tokens): count for tokens, count in sorted(self.replays.items())},
            "steps": {kind: self.steps[kind] for kind in (SPECIALISED, STOCK, MIXED)},
        }
        beside = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(document))
            beside.replace(self._path)


def install() -> Ledger:
    """Called by the plug-in in each of the engine's processes. Never raises for what the vLLM is."""
    ledger = Ledger(Path(os.environ[VARIABLE]))
    after_import(DECODE, lambda module: _watch_plan(module, ledger))
    after_import(GRAPHS, lambda module: _watch_replays(module, ledger))
    return ledger


def _watch_plan(module: ModuleType, ledger: Ledger) -> None:
    missing = [name for name in ("SpecializedDecode", "decode_metadata", "get_forward_context", "torch")
               if not hasattr(module, name)]  # fmt: skip
    if missing:
        log.warning("The path of decode steps is not watched: %s has no %s", DECODE, missing[0])
        return
    original = module.SpecializedDecode.plan

    def plan(self: Any, positions: Any, intermediate_tensors: Any) -> Any:
        step = original(self, positions, intermediate_tensors)
        tokens = int(positions.shape[0])
        if module.torch.cuda.is_current_stream_capturing():
            ledger.captured(tokens, STOCK if step is None else SPECIALISED)
        elif step is None:
            ledger.ran_without_a_graph(tokens, uniform=_is_uniform(module, self, tokens))
        return step

    module.SpecializedDecode.plan = plan


def _is_uniform(module: ModuleType, decode: Any, tokens: int) -> bool:
    """Whether every request of a step decodes, or verifies, equally many tokens; vLLM's own predicate."""
    if not module.is_forward_context_available():
        return False
    context = module.get_forward_context()
    by_layer = context.attn_metadata
    rows = list(by_layer.values()) if isinstance(by_layer, dict) else []
    q = decode.q if any(getattr(md, "num_spec_decodes", 0) for md in rows) else 1
    if not rows or tokens % q:
        return False
    return all(module.decode_metadata(d.self_attn, context, q, tokens) is not None for d in decode.layers)


def _watch_replays(module: ModuleType, ledger: Ledger) -> None:
    manager = getattr(module, "ModelCudaGraphManager", None)  # of the target model; a draft has another
    if manager is None or not hasattr(manager, "run_fullgraph"):
        log.warning("Replays are not counted: %s has no ModelCudaGraphManager.run_fullgraph", GRAPHS)
        return
    original = manager.run_fullgraph

    def run_fullgraph(self: Any, desc: Any) -> Any:
        out = original(self, desc)
        ledger.replayed(int(desc.num_tokens), uniform=getattr(desc, "uniform_token_count", None) is not None)
        return out

    manager.run_fullgraph = run_fullgraph
