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


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no engine process is alive, and no shared memory is new."""
    before = set(Path("/dev/shm").iterdir())
    yield
    alive = []
    for process in psutil.process_iter():
        try:
            if guard.MARK in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.Error:
            continue
    assert alive == []
    assert set(Path("/dev/shm").iterdir()) - before == set()
