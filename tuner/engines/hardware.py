"""What this host is: its device and driver, and the versions that an engine's interpreter has."""

import json
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from tuner.engines.engine import Engine

PACKAGES = ("vllm", "torch", "transformers", "flashinfer-python", "triton")
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "def v(n):\n"
    "    try: return m.version(n)\n"
    "    except m.PackageNotFoundError: return None\n"
    "print(json.dumps({'python': sys.version.split()[0], **{n: v(n) for n in sys.argv[1:]}}))"
)
_CONNECTOR = "distributed/kv_transfer/kv_connector/v1/decode_bench_connector.py"
# Where the package is, without importing it: its import takes five seconds of CPU.
_HAS = (
    "import importlib.util as u, pathlib, sys\n"
    "spec = u.find_spec('vllm')\n"
    "places = spec.submodule_search_locations or [] if spec else []\n"
    "print(any((pathlib.Path(p) / sys.argv[1]).is_file() for p in places))"
)


class NoEngineError(RuntimeError):
    """The interpreter cannot be run, has no vLLM, or is given an environment that breaks it; the message says which."""


@dataclass(frozen=True, slots=True)
class Device:
    """name: product name of the GPUs, or `cpu`.   driver: empty without a GPU.   count: GPUs of this host."""

    name: str
    driver: str
    host: str
    count: int


def versions(engine: Engine) -> dict[str, str]:
    """Package to version, as the interpreter reports them.

    Raises:
        NoEngineError: it cannot be run, has no vLLM, or the study sets a variable that is the tuner's.
    """
    if engine.overridden:
        raise NoEngineError(f"engine.environment: {engine.overridden[0]} is set by the tuner and cannot be changed")
    try:
        asked = subprocess.run(
            [str(engine.python), "-c", _ASK, *PACKAGES],
            env=engine.variables(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        code = getattr(error, "returncode", None)
        reason = f"it ended with code {code} instead of answering" if code is not None else str(error)
        raise NoEngineError(f"engine.python: {engine.python} is no Python that can be run: {reason}") from error
    found = {name: str(version) for name, version in json.loads(asked.stdout).items() if version is not None}
    if "vllm" not in found:
        raise NoEngineError(f"engine.python: {engine.python} has no vLLM")
    return found


def has_synthetic_kv(engine: Engine) -> bool:
    """Whether the installed vLLM can fill its cache with made-up values in place of a prompt's own."""
    asked = subprocess.run(
        [str(engine.python), "-c", _HAS, _CONNECTOR],
        env=engine.variables(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return asked.stdout.strip() == "True"


@cache
def device() -> Device:
    """Of this host, as the driver reports it."""
    if shutil.which("nvidia-smi") is None:
        return Device("cpu", "", platform.node(), 0)
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    rows = [line.split(", ") for line in asked.stdout.strip().splitlines() if ", " in line]
    if asked.returncode != 0 or not rows:
        return Device("cpu", "", platform.node(), 0)
    return Device(rows[0][0], rows[0][1], platform.node(), len(rows))
