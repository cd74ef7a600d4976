"""Nothing of a guarded command outlives it, however it ends."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from tuner.core.measurement import Process
from tuner.engines.process import Guarded, identify, marked, reap

# A family as an engine has: a child in a session of its own, a grandchild, and one that ignores SIGTERM.
FAMILY = "setsid sleep 600 & (sleep 600 & sleep 600) & (trap '' TERM; sleep 600) & "


@pytest.fixture
def guards() -> Iterator[list[Guarded]]:
    made: list[Guarded] = []
    yield made
    for guarded in made:
        guarded.stop()


def start(made: list[Guarded], folder: Path, script: str, *, members: int, grace_s: float = 0.5) -> Guarded:
    guarded = Guarded(
        ["bash", "-c", script], environment=dict(os.environ), cwd=folder, log=folder / "log", grace_s=grace_s
    )
    made.append(guarded)
    deadline = time.monotonic() + 10
    while len(guarded.members()) < members and time.monotonic() < deadline:
        time.sleep(0.02)
    return guarded


def gone(guarded: Guarded) -> bool:
    return marked(guarded.process.pid) == []


def test_stopping_ends_every_descendant_also_those_in_other_sessions(guards: list[Guarded], tmp_path: Path) -> None:
    guarded = start(guards, tmp_path, FAMILY + "sleep 600", members=6)
    assert len(guarded.members()) >= 6
    guarded.stop()
    assert gone(guarded)


def test_a_command_that_ends_by_itself_takes_its_children_along_and_keeps_its_code(
    guards: list[Guarded], tmp_path: Path
) -> None:
    guarded = start(guards, tmp_path, FAMILY + "exit 7", members=0)
    assert guarded.wait(15) == 7
    assert gone(guarded)


def test_a_signal_is_an_exit_code_above_128(guards: list[Guarded], tmp_path: Path) -> None:
    guarded = start(guards, tmp_path, "kill -SEGV $$", members=0)
    assert guarded.wait(15) == 128 + signal.SIGSEGV


def test_a_stopped_process_is_ended_too(guards: list[Guarded], tmp_path: Path) -> None:
    guarded = start(guards, tmp_path, "sleep 600", members=1)
    for member in guarded.members():
        member.suspend()
    guarded.stop()
    assert gone(guarded)


def test_the_family_ends_when_the_tuner_is_killed(tmp_path: Path) -> None:
    """A parent that is killed with SIGKILL cannot clean up; its guard does."""
    code = (
        "import os, sys, time; from pathlib import Path; from tuner.engines.process import Guarded;"
        f"here = Path({str(tmp_path)!r}); g = Guarded(['bash', '-c', {FAMILY + 'sleep 600'!r}],"
        " environment=dict(os.environ), cwd=here, log=here / 'log', grace_s=0.5);"
        " print(g.process.pid, flush=True); time.sleep(600)"
    )
    parent = psutil.Popen([sys.executable, "-c", code], stdout=-1, text=True)
    guard_pid = int(parent.stdout.readline())
    while len(marked(guard_pid)) < 6:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while marked(guard_pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(guard_pid) == []


def test_the_reaper_finds_a_family_whose_guard_was_killed(guards: list[Guarded], tmp_path: Path) -> None:
    guarded = start(guards, tmp_path, FAMILY + "sleep 600", members=6)
    os.kill(guarded.process.pid, signal.SIGKILL)
    assert reap(guarded.process)
    assert gone(guarded)
    assert not reap(guarded.process)


def test_the_reaper_leaves_a_number_that_somebody_else_has_by_now() -> None:
    mine = identify(os.getpid())
    assert not reap(Process(pid=mine.pid, started_s=mine.started_s - 3600, host=mine.host))
    assert not reap(Process(pid=mine.pid, started_s=mine.started_s, host="another host"))
    assert psutil.pid_exists(mine.pid)


SHARING = """
import multiprocessing, sys, time
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
semaphore = multiprocessing.get_context("spawn").Semaphore(1)
resource_tracker.unregister(memory._name, "shared_memory")
resource_tracker.unregister(semaphore._semlock.name, "semaphore")
print(memory._name, semaphore._semlock.name.replace("/", "/sem."), flush=True)
time.sleep(600)
"""


def sharing(guards: list[Guarded], folder: Path) -> tuple[Guarded, list[Path]]:
    """A family whose child has a block of shared memory and a semaphore that nothing tracks; and their files."""
    (folder / "share.py").write_text(SHARING)
    guarded = start(guards, folder, f"{sys.executable} {folder / 'share.py'} & wait", members=2)
    while not (folder / "log").read_text().endswith("\n"):
        time.sleep(0.02)
    paths = [Path(f"/dev/shm{name}") for name in (folder / "log").read_text().split()]
    assert all(path.exists() for path in paths)
    return guarded, paths


def test_shared_memory_of_the_family_is_removed_and_that_of_others_stays(guards: list[Guarded], tmp_path: Path) -> None:
    other = shared_memory.SharedMemory(create=True, size=4096)
    guarded, paths = sharing(guards, tmp_path)
    guarded.stop()
    assert [path for path in paths if path.exists()] == []
    assert (Path("/dev/shm") / other.name).exists()
    other.close()
    other.unlink()


def test_shared_memory_goes_too_where_the_guard_itself_was_killed(guards: list[Guarded], tmp_path: Path) -> None:
    guarded, paths = sharing(guards, tmp_path)
    os.kill(guarded.process.pid, signal.SIGKILL)
    assert reap(guarded.process)
    assert [path for path in paths if path.exists()] == []


def test_the_folder_for_sockets_is_the_commands_own_and_is_gone_at_the_end(tmp_path: Path) -> None:
    guarded = Guarded(
        ["bash", "-c", "touch $SOCKETS/one; echo $SOCKETS"], environment=dict(os.environ), cwd=tmp_path,
        log=tmp_path / "log", scratch="SOCKETS",
    )  # fmt: skip
    assert guarded.wait(10) == 0
    guarded.stop()
    folder = Path((tmp_path / "log").read_text().strip())
    assert folder.is_absolute()
    assert len(str(folder)) < 40
    assert not folder.exists()
