"""What kind of failure a log and an exit code speak of. One table; each pattern has a real log as a test."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed

EVIDENCE_LINES = 40
EVIDENCE_BYTES = 16_384

# The first that is found decides; the sentence is the line that it was found in.
PATTERNS: Sequence[tuple[str, FailureKind]] = (
    (r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory", FailureKind.OUT_OF_MEMORY),
    (r"No available memory for the cache blocks|larger than the available KV cache memory", FailureKind.OUT_OF_MEMORY),
    (r"Free memory on device .* is less than desired", FailureKind.OUT_OF_MEMORY),
    (r"DefaultCPUAllocator: can't allocate memory|MemoryError|Cannot allocate memory", FailureKind.OUT_OF_MEMORY),
    (r"[Aa]ddress already in use", FailureKind.INFRASTRUCTURE),
    (r"No space left on device", FailureKind.INFRASTRUCTURE),
    (r"CUDA error: (device|uncorrectable|unspecified launch)|NCCL error|NVRM: Xid", FailureKind.INFRASTRUCTURE),
    (r"error: unrecognized arguments|error: argument |invalid choice:", FailureKind.REJECTED_BY_ENGINE),
    (
        r"pydantic_core\._pydantic_core\.ValidationError|validation errors? for \w+Config",
        FailureKind.REJECTED_BY_ENGINE,
    ),
    (r"^\S*\s*(ValueError|AssertionError|NotImplementedError|KeyError|TypeError): ", FailureKind.REJECTED_BY_ENGINE),
    (r"(OSError|RepositoryNotFoundError|HFValidationError|SafetensorError).*", FailureKind.REJECTED_BY_ENGINE),
)


def tail(log: Path) -> str:
    """The last lines of a log, whatever bytes are in it; empty where there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - EVIDENCE_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-EVIDENCE_LINES:])


def evidence(command: Sequence[str], log: Path, exit_code: int | None) -> str:
    ended = "still running" if exit_code is None else f"exit code {exit_code}"
    return f"$ {shlex.join(command)}\n{ended}; {log}\n{tail(log)}"


def of_start(command: Sequence[str], log: Path, exit_code: int) -> Failed:
    """Why a server ended before it was ready."""
    text = _whole(log)
    for pattern, kind in PATTERNS:
        found = re.search(f"^.*({pattern}).*$", text, re.MULTILINE)
        if found is not None:
            return Failed(kind=kind, sentence=_plain(found.group(0)), evidence=evidence(command, log, exit_code))
    kind = FailureKind.REJECTED_BY_ENGINE if exit_code == 2 else FailureKind.CRASHED
    if exit_code == 137:
        return Failed(
            kind=kind,
            sentence="the engine was killed (SIGKILL) before it was ready",
            evidence=evidence(command, log, exit_code),
        )
    sentence = f"the engine ended with code {exit_code} before it was ready"
    return Failed(kind=kind, sentence=sentence, evidence=evidence(command, log, exit_code))


def of_traffic(command: Sequence[str], log: Path, exit_code: int | None, sentence: str) -> Failed:
    """Why a run on a server that was ready did not yield numbers.

    A code of 0 proves nothing: an API server whose engine core was killed ends with it.
    """
    text = _whole(log)
    for pattern, kind in PATTERNS:
        if kind is FailureKind.REJECTED_BY_ENGINE:
            continue
        found = re.search(f"^.*({pattern}).*$", text, re.MULTILINE)
        if found is not None:
            return Failed(kind=kind, sentence=_plain(found.group(0)), evidence=evidence(command, log, exit_code))
    if exit_code is not None or "EngineDeadError" in text:
        return Failed(
            kind=FailureKind.CRASHED,
            sentence=f"the engine died under traffic: {sentence}",
            evidence=evidence(command, log, exit_code),
        )
    return Failed(kind=FailureKind.INCOMPLETE, sentence=sentence, evidence=evidence(command, log, exit_code))


def _whole(log: Path) -> str:
    """Up to the last 4 MiB: a start's log is far smaller, a log under traffic need not be."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 4 * 2**20))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _plain(line: str) -> str:
    """Without the process prefix and colours that vLLM puts in front of its lines."""
    without_colour = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return re.sub(r"^\((\w+) pid=\d+\)\s*", "", without_colour).strip()[:500]
