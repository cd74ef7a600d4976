"""The GPUs of this host: who holds which, and whether their memory came back. Knows no engine and no study.

A GPU is held through a lock on a file, which every tuner on the host respects. The lock also hangs on the guard of the
engine that uses the GPU, so it outlives a tuner that was killed, until the last process of the engine is gone.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.5
# A driver keeps some memory of a process for a moment, and a display may come and go; a model that is left is larger.
SLACK_MIB = 512

Usage = Callable[[], Mapping[int, int]]


class NoDeviceError(RuntimeError):
    """The GPUs that a start needs are not to be had; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """indices: in the order of nvidia-smi.   locks: open descriptors, one a GPU.   before_mib: memory in use before."""

    indices: tuple[int, ...]
    locks: tuple[int, ...]
    before_mib: Mapping[int, int]

    @property
    def variables(self) -> dict[str, str]:
        """For an engine that is to see these GPUs and no other; empty on a host without any."""
        if not self.indices:
            return {}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, self.indices))}


NONE = Held(indices=(), locks=(), before_mib={})


class Devices:
    """visible: the value of CUDA_VISIBLE_DEVICES that narrows the choice; None for every GPU.
    usage: GPU to MiB in use.   folder: of the locks, the same for every tuner of the host.
    patience_s: how long to wait for a free GPU.   back_s: how long for the memory of one that is given back."""

    def __init__(
        self,
        *,
        visible: str | None,
        patience_s: float,
        back_s: float = 60.0,
        usage: Usage | None = None,
        folder: Path | None = None,
    ) -> None:
        self._usage = usage or memory_mib
        self._folder = folder or Path(tempfile.gettempdir())
        self._patience_s = patience_s
        self._back_s = back_s
        self._visible = _visible(visible, sorted(self._usage()))
        self._out_of_use: dict[int, tuple[int, str]] = {}

    def hold(self, count: int, *, stopped: Callable[[], bool]) -> Held:
        """So many GPUs that nobody else holds; waits while they are held by others. None on a host without GPUs.

        stopped: asked while it waits; true ends the wait.

        Raises:
            NoDeviceError: there are not so many, they stay held, or their memory did not come back.
        """
        if not self._visible:
            return NONE
        if count > len(self._visible):
            raise NoDeviceError(f"{count} GPUs are needed, and this host offers {len(self._visible)}")
        deadline = time.monotonic() + self._patience_s
        while True:
            usage = self._usage()
            self._recover(usage)
            usable = [index for index in self._visible if index not in self._out_of_use]
            if len(usable) < count:
                reasons = "; ".join(reason for _, reason in self._out_of_use.values())
                raise NoDeviceError(f"{count} GPUs are needed, and {len(usable)} can be used: {reasons}")
            locks = self._locked(usable, count)
            if len(locks) == count:
                held = tuple(sorted(locks))
                before = {index: usage.get(index, 0) for index in held}
                return Held(indices=held, locks=tuple(locks[index] for index in held), before_mib=before)
            _close(locks.values())
            if stopped() or time.monotonic() > deadline:
                raise NoDeviceError(f"{count} GPUs are needed; another start on this host held them for too long")
            time.sleep(POLL_S)

    def give_back(self, held: Held, *, trouble: str = "") -> str:
        """Wait until the memory is free again and let go; the sentence says what is wrong, empty where nothing is.

        A GPU whose memory does not come back, or whose engine could not be ended (`trouble`), is not used again until
        its memory is what it was before.
        """
        deadline = time.monotonic() + self._back_s
        kept = self._kept(held)
        while kept and not trouble and time.monotonic() < deadline:
            time.sleep(POLL_S)
            kept = self._kept(held)
        for index in held.indices if trouble else kept:
            reason = trouble or f"{kept[index]} MiB of GPU {index} did not come back after its engine was gone"
            self._out_of_use[index] = (held.before_mib.get(index, 0), reason)
        _close(held.locks)
        return trouble or "; ".join(self._out_of_use[index][1] for index in kept)

    def _kept(self, held: Held) -> dict[int, int]:
        """GPU to MiB that are in use beyond what was, where that is more than noise."""
        if not held.indices:
            return {}
        usage = self._usage()
        more = {index: usage.get(index, 0) - held.before_mib.get(index, 0) for index in held.indices}
        return {index: mib for index, mib in more.items() if mib > SLACK_MIB}

    def _recover(self, usage: Mapping[int, int]) -> None:
        for index, (before, _) in list(self._out_of_use.items()):
            if usage.get(index, 0) - before <= SLACK_MIB:
                del self._out_of_use[index]

    def _locked(self, usable: Sequence[int], count: int) -> dict[int, int]:
        """As many of them as can be locked now, at most `count`: GPU to descriptor."""
        found: dict[int, int] = {}
        for index in usable:
            if len(found) == count:
                break
            descriptor = _open(self._folder / f"tuner-gpu-{index}.lock")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found[index] = descriptor
            except BlockingIOError:
                os.close(descriptor)
        return found


def memory_mib() -> dict[int, int]:
    """Memory in use of each GPU, as the driver reports it; empty on a host without one."""
    if shutil.which("nvidia-smi") is None:
        return {}
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    rows = [line.split(", ") for line in asked.stdout.splitlines()] if asked.returncode == 0 else []
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _visible(variable: str | None, indices: Sequence[int]) -> tuple[int, ...]:
    """Names other than numbers (a UUID, a slice of a GPU) are left to whoever set them: nothing is held then."""
    if variable is None:
        return tuple(indices)
    words = [word.strip() for word in variable.split(",") if word.strip()]
    if not all(word.isdigit() for word in words):
        return ()
    return tuple(index for index in indices if index in {int(word) for word in words})


def _open(path: Path) -> int:
    """Another user's file in a folder for all can be opened, and locked, where it is not asked to be created."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
