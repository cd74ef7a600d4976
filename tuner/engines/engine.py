"""The interpreter that has vLLM, and the environment that its processes see. Knows no server and no study."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"

# What of our own environment an engine needs to find its libraries, caches and devices. Everything else stays here:
# a variable that only this shell has would make a configuration that nobody can repeat.
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "TZ",
    "USER",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_TOKEN",
    "SSL_CERT_FILE",
    "OPENBLAS_CORETYPE",
)

# What every engine process has, whatever a study says.
PATH = "PYTHONPATH"
RESERVED = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """python: the interpreter.   environment: what the study sets.   arguments: appended to the command line.
    path: further folders for PYTHONPATH, where vLLM was unpacked rather than installed."""

    python: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    path: tuple[Path, ...] = ()

    @property
    def overridden(self) -> list[str]:
        """Variables that a study sets and that it cannot change."""
        return [name for name, value in self.environment.items() if RESERVED.get(name, value) != value or name == PATH]

    def variables(self, further: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of one of its processes.

        PYTHONSAFEPATH keeps the working directory off its path; PYTHONPATH holds our plug-in and nothing else of ours,
        since a package named `kernels` of another project may be installed there.
        """
        return {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "TOKENIZERS_PARALLELISM": "false",
            **self.environment,
            **(further or {}),
            PATH: os.pathsep.join(map(str, (INSIDE, *self.path))),
            **RESERVED,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds. start: from the start to the first healthy answer.   run: one benchmark run.
    request: one generation or score, and how long an engine under traffic may stand still.
    helper: the first answer of a helper process, whose imports are slow.
    devices: until enough GPUs are free."""

    start_s: float = 600.0
    run_s: float = 7200.0
    request_s: float = 600.0
    helper_s: float = 180.0
    devices_s: float = 600.0
