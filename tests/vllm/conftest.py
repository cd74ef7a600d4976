"""The real engine and a small model for it, made once a session."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import asking
import faults
import pytest
from leftovers import engine_processes, shared_memory

ENGINE_ENVIRONMENT = faults.ENVIRONMENT


@pytest.fixture(scope="session")
def engine_python() -> Path:
    return asking.engine_python()


@pytest.fixture(scope="session")
def tiny_model(engine_python: Path) -> Path:
    return _made(engine_python, "tiny-llama-5m", layers=4)


@pytest.fixture(scope="session")
def small_model(engine_python: Path) -> Path:
    """Slower: where a stream is read faster than the engine makes it, its times are the engine's."""
    return _made(engine_python, "tiny-llama-12-layers", layers=12)


@pytest.fixture(scope="session")
def slow_model(engine_python: Path) -> Path:
    """Slow enough for whole studies on two cores, of which the server and its reader have one."""
    return _made(engine_python, "tiny-llama-24-layers", layers=24)


def _made(python: Path, name: str, *, layers: int) -> Path:
    folder = asking.CACHE.parent / name
    command = [python, asking.ROOT / "scripts/make_tiny_model.py", folder, str(layers)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no engine process is alive, and no shared memory is new."""
    before = shared_memory()
    yield
    assert engine_processes() == []
    assert shared_memory() - before == set()
