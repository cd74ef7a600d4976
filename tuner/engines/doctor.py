"""What an engine offers, asked of the engine itself. Knows no study."""

import json
import subprocess
from dataclasses import dataclass

from tuner.engines import hardware
from tuner.engines.engine import Engine

_ASK = """
import importlib.metadata as metadata, importlib.util as util, json
def has(name):
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
plugins = [e.value for e in metadata.entry_points(group="vllm.general_plugins")]
kernels = util.find_spec("kernels")
found = {
    "kimi_k3": has("vllm.models.kimi_k3") or has("vllm.model_executor.models.kimi_k3"),
    "specialized": has("vllm.models.kimi_k3.nvidia.specialized_decode"),
    "synthetic_kv": has("vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector"),
    "plugins": plugins,
    "kernels": kernels.origin if kernels else None,
}
from vllm.platforms import current_platform
found["platform"] = type(current_platform).__name__
found["device"] = current_platform.device_name
print("\\n" + json.dumps(found))
"""
PLUGIN = "tuner_inside.plugin:register"


@dataclass(frozen=True, slots=True)
class Finding:
    """good: None for a fact that is neither good nor bad."""

    name: str
    text: str
    good: bool | None = None


def examine(engine: Engine) -> list[Finding]:
    """Raises NoEngineError where the interpreter cannot be run or has no vLLM."""
    versions = hardware.versions(engine)
    device = hardware.device()
    found = [Finding("interpreter", str(engine.python), True)]
    found += [Finding(name, version) for name, version in versions.items()]
    gpus = f"{device.count} x {device.name}, driver {device.driver}" if device.count else "no GPU: the CPU engine only"
    found.append(Finding("devices", gpus))
    try:
        asked = subprocess.run(
            [str(engine.python), "-c", _ASK],
            env=engine.variables(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        answer = json.loads(asked.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        return [*found, Finding("vllm import", f"fails: {reason.strip().splitlines()[-1]}", False)]
    found.append(Finding("platform", f"{answer['platform']} ({answer['device']})", True))
    found.append(Finding("Kimi K3", "supported" if answer["kimi_k3"] else "not in this version"))
    specialized = "offered" if answer["specialized"] else "not in this version"
    found.append(Finding("decode_backend latency_specialized", specialized))
    synthetic = "offered" if answer["synthetic_kv"] else "not in this version"
    found.append(Finding("workload.synthetic_kv (DecodeBenchConnector)", synthetic))
    plugged = PLUGIN in answer["plugins"]
    found.append(Finding("our plug-in", "found" if plugged else "NOT found by vLLM", plugged))
    found.append(Finding("a package named kernels", answer["kernels"] or "none; ours is not visible there", True))
    return found
