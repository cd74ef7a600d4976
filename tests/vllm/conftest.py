"""The real engine and a small model for it, made once a session."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import asking
import psutil
import pytest

from tuner.engines import guard

ENGINE_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.fixture(scope="session")
def engine_python() -> Path:
    return asking.engine_python()


@pytest.fixture(scope="session")
def tiny_model(engine_python: Path) -> Path:
    folder = asking.CACHE.parent / "tiny-llama-5m"
    subprocess.run([engine_python, asking.ROOT / "scripts/make_tiny_model.py", folder], check=True, capture_output=True)
    return folder


def engine_processes() -> list[psutil.Process]:
    """Every living process of any engine of ours: marked in its environment, or retitled by vLLM."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = guard.MARK in process.environ() or process.name().startswith("VLLM::")
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no engine process is alive, and no shared memory is new."""
    before = set(Path("/dev/shm").iterdir())
    yield
    assert engine_processes() == []
    assert set(Path("/dev/shm").iterdir()) - before == set()
