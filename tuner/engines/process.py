"""Start a command under a guard, stop it whole, and find what a dead worker left behind. Knows no vLLM."""

import contextlib
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tuner.core.measurement import Process
from tuner.engines import guard

GRACE_S = 10.0  # between SIGTERM and SIGKILL; vLLM ended within 3 s on a CPU (0.32.0, 2026-12-01)
GONE_S = 20.0  # after that a process hangs in the kernel, and its device is not to be used again


class StillThereError(RuntimeError):
    """A process could not be ended; the message names it."""


class Guarded:
    """A command and everything that it starts. Output goes to `log`; `stop` returns when all of it is gone."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        log: Path,
        grace_s: float = GRACE_S,
        locks: Sequence[int] = (),
        scratch: str = "TMPDIR",
    ) -> None:
        """locks: descriptors that the guard, and it alone, keeps open until the last process is gone, us killed or not.
        scratch: the environment variable that gets the path of a folder which is removed at the end.

        Raises OSError where the log cannot be written or the command's guard cannot be started.
        """
        self.command = tuple(command)
        self.log = log
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._ended: int | None = None
        self._status, told = os.pipe()
        os.set_blocking(self._status, False)
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(told), str(grace_s), scratch, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                start_new_session=True,
                pass_fds=(told, *locks),
            )
        os.close(told)
        self.process = identify(self._guard.pid)

    @property
    def exit_code(self) -> int | None:
        """None while the command runs; 128 + n where signal n ended it. Its children may still be on their way out."""
        if self._ended is None:
            with contextlib.suppress(BlockingIOError, OSError):
                told = os.read(self._status, 16)
                self._ended = int(told) if told else None
            if self._ended is None:
                self._ended = self._guard.poll()
        return self._ended

    def members(self) -> list[psutil.Process]:
        """Every living process of it, the guard not counted."""
        return marked(self._guard.pid)

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guard.wait(timeout_s)
        return None

    def stop(self) -> int:
        """End all of it and wait. May be called from any thread, and again.

        Raises:
            StillThereError: something outlived SIGKILL.
        """
        with self._lock:
            if self._guard.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._guard.stdin.close()
            if self.wait(self._grace_s + GONE_S) is None:
                self._guard.kill()
                self._guard.wait()
            end(marked(self._guard.pid))
            if self._status >= 0:
                code = self.exit_code
                os.close(self._status)
                self._status = -1
                return self._guard.returncode if code is None else code
            return self._guard.returncode


def identify(pid: int) -> Process:
    return Process(pid=pid, started_s=psutil.Process(pid).create_time(), host=platform.node())


def marked(guard_pid: int) -> list[psutil.Process]:
    """Living processes that were started under that guard, wherever they hang in the tree now, without the guard."""
    found = []
    for process in psutil.process_iter():
        if process.pid == guard_pid:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            ours = os.getsid(process.pid) == guard_pid or process.environ().get(guard.MARK) == str(guard_pid)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL each, wait, and remove the shared memory that only they had. Raises StillThereError."""
    shared = {inode for process in processes for inode in guard.mapped(process.pid)}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    if alive:
        raise StillThereError(f"process {alive[0].pid} ({alive[0].name()}) survived SIGKILL")
    guard.remove(shared)


def reap(process: Process) -> bool:
    """End what is left of a start whose worker died; true where anything was alive.

    A number that another process has by now, or a process of another host, is left alone.
    """
    if process.host != platform.node():
        return False
    left = [p for p in marked(process.pid) if p.create_time() >= process.started_s - 1]
    was_alive = bool(left)
    with contextlib.suppress(psutil.NoSuchProcess):
        guarding = psutil.Process(process.pid)
        if abs(guarding.create_time() - process.started_s) < 1:
            was_alive = True
            guarding.terminate()
            deadline = time.monotonic() + GRACE_S + GONE_S
            while guarding.is_running() and guarding.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.1)
            left.append(guarding)
    end([p for p in left if p.is_running() and p.pid != os.getpid()])
    return was_alive
