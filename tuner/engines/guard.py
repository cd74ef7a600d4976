"""Run one command so that nothing of it can outlive us: `python guard.py STATUS_FD GRACE_S SCRATCH COMMAND...`.

Runs as a process of its own, standard library only. It is the reaper of everything that the command starts (vLLM's
engine cores live on for minutes after their server was killed), and stops all of it when its standard input ends: the
tuner closed it, or was killed. SIGTERM does the same. Writes the command's exit code to STATUS_FD as soon as it has
one, 128 + n where signal n ended it, and exits with it once the others are gone. SCRATCH is the environment variable
that names a folder of its own to the command, with a path short enough for sockets, and is removed at the end.

The command and its descendants are in this process's session and carry TUNER_GUARD in their environment, so that they
can be found even where this process was killed itself; a process that retitles itself overwrites its environment.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MARK = "TUNER_GUARD"
SHARED_MEMORY = Path("/dev/shm")


def main(status: int, grace_s: float, scratch: str, command: list[str]) -> int:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told, tell = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(_nonblocking(tell))
    folder = tempfile.mkdtemp(prefix="tuner-")
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={scratch: folder, **os.environ, MARK: str(os.getpid())},
        # One thread, so a function between fork and exec is safe; the bond holds as long as this thread lives.
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
    )
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin, told], [], [], 1.0)
        if sys.stdin in readable and not os.read(sys.stdin.fileno(), 4096):
            break
        if told in readable and {signal.SIGTERM, signal.SIGINT} & set(os.read(told, 4096)):
            break
    if child.poll() is not None:
        os.write(status, b"%d\n" % _code(child))
    shared = _end_all(grace_s, child.pid)
    child.wait()
    remove(shared)
    shutil.rmtree(folder, ignore_errors=True)
    return _code(child)


def _code(child: "subprocess.Popen[bytes]") -> int:
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _nonblocking(descriptor: int) -> int:
    os.set_blocking(descriptor, False)
    return descriptor


def _end_all(grace_s: float, command: int) -> set[int]:
    """Stop every descendant; return the shared memory that they had mapped."""
    shared: set[int] = set()
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while True:
        living = _descendants()
        if not living:
            return shared
        for pid in living:
            shared |= mapped(pid)
            if time.monotonic() > deadline:
                _signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
                _signal(pid, signal.SIGCONT)  # a stopped process cannot hear the first
        _collect(command)
        time.sleep(0.05)


def _collect(command: int) -> None:
    """Wait for orphans that were handed to us; the command itself is left for its own wait, which keeps its code."""
    for pid in _children(os.getpid()):
        if pid != command and _state(pid) == "Z":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _descendants() -> set[int]:
    """Living ones; the dead that only wait to be collected do not count."""
    found: set[int] = set()
    heap = [os.getpid()]
    while heap:
        for pid in _children(heap.pop()):
            if pid not in found:
                found.add(pid)
                heap.append(pid)
    return {pid for pid in found if _state(pid) not in ("Z", "X", "")}


def _children(pid: int) -> list[int]:
    try:
        texts = [(thread / "children").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(word) for text in texts for word in text.split()]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def mapped(pid: int) -> set[int]:
    """Shared memory and semaphores that a process has mapped, as inodes: a semaphore is mapped under a name that is
    gone by then, and stays under another."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {int(line.split(maxsplit=5)[4]) for line in lines if f"{SHARED_MEMORY}/" in line}


def remove(shared: set[int]) -> None:
    """Unlink those that no living process has mapped."""
    if not shared:
        return
    used = {inode for path in Path("/proc").iterdir() if path.name.isdigit() for inode in mapped(int(path.name))}
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_ino in shared - used:
                path.unlink()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
