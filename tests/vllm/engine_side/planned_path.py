"""Run by the engine's interpreter, on vLLM 0.33.0: our plug-in beside vLLM's own `plan`, with every kernel stubbed.

question: {"inside": folder, "folder": where the proof goes, "q": tokens a request verifies, "capture": [steps],
"replay": [steps], "run": [steps]}; a step is {"tokens", "requests", "prefills"}.   answer: what `plan` returned for
each captured step (whether it was a plan), and the proof that was written.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

KERNELS = ("cutlass", "cuda", "quack")


class Stub(ModuleType):
    """Whatever is asked of it is another one; a decorator of it hands back what it decorates."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Stub(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Stub("called")

    def __mro_entries__(self, bases):
        return ()

    def __getitem__(self, item):
        return self

    def __or__(self, other):
        return self

    __ror__ = __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __or__


class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path, target=None):
        stubbed = fullname.partition(".")[0] in KERNELS or ".specialized_decode.cutedsl" in fullname
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if stubbed else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def main(question):
    os.environ["TUNER_PATH_PROOF"] = question["folder"]
    from tuner_inside.path_proof import install

    ledger = install()
    import vllm.models.kimi_k3.nvidia  # noqa: F401 - with what is really there; what follows needs kernels

    sys.meta_path.insert(0, Kernels())
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime import decode as module
    from vllm.v1.worker.gpu import cudagraph_utils

    capturing = [True]
    module.torch.cuda.is_current_stream_capturing = lambda: capturing[0]
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=module.CUDAGraphMode.FULL, slot_mapping=None)
    module.is_forward_context_available = lambda: True
    module.get_forward_context = lambda: context
    decode = object.__new__(module.SpecializedDecode)
    decode.q, decode.batches = question["q"], (*range(1, 9), 16, 32, 64, *question.get("batches", []))
    decode.layers = tuple(SimpleNamespace(self_attn=SimpleNamespace(prefix=f"layer{i}")) for i in range(2))

    def ask(step):
        verify = step["tokens"] != step["requests"]
        metadata = SimpleNamespace(
            num_prefills=step.get("prefills", 0),
            num_decodes=0 if verify else step["requests"],
            num_decode_tokens=0 if verify else step["tokens"],
            num_spec_decodes=step["requests"] if verify else 0,
            num_spec_decode_tokens=step["tokens"] if verify else 0,
            spec_state_indices_tensor=module.torch.zeros(step["requests"]) if verify else None,
        )
        context.attn_metadata = {f"layer{i}": metadata for i in range(2)}
        return decode.plan(module.torch.zeros(step["tokens"]), None) is not None

    captured = [ask(step) for step in question["capture"]]
    capturing[0] = False
    manager = object.__new__(cudagraph_utils.ModelCudaGraphManager)
    cudagraph_utils.CudaGraphManager.run_fullgraph = lambda self, desc: None
    manager.is_last_pp_rank, manager.use_aux_hidden_state_outputs = True, False
    manager.hidden_states = module.torch.zeros(64)
    for step in question["replay"]:
        for _ in range(step.get("times", 1)):
            manager.run_fullgraph(
                SimpleNamespace(num_tokens=step["tokens"], uniform_token_count=step.get("uniform", 1))
            )
    for step in question["run"]:
        ask(step)
    ledger.write()
    (written,) = Path(question["folder"]).glob("path-*.json")
    return {"captured": captured, "proof": json.loads(written.read_text())}


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, asked["inside"])
    Path(sys.argv[2]).write_text(json.dumps(main(asked)))
