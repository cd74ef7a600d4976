"""What an engine may leave on the machine."""

import contextlib
from pathlib import Path

import psutil

from tuner.engines import guard


def engine_processes() -> list[psutil.Process]:
    """Every living process of any engine of ours: marked in its environment, or retitled by vLLM."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = guard.MARK in process.environ() or process.name().startswith("VLLM::")
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def shared_memory() -> set[Path]:
    """Of any program but PostgreSQL, whose servers other tests start beside these."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("PostgreSQL.")}
