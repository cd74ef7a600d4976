"""What kind of failure a log and an exit code speak of. One table; each pattern has a real log as a test."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from tuner.core.measurement import FailureKind
from tuner.core.trial import Failed

EVIDENCE_LINES = 40
EVIDENCE_BYTES = 16_384

# The first that is found, in any line that is no warning, decides; that line is the sentence.
PATTERNS: Sequence[tuple[str, FailureKind]] = (
    (r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory", FailureKind.OUT_OF_MEMORY),
    (r"No available memory for the cache blocks|larger than the available KV cache memory", FailureKind.OUT_OF_MEMORY),
    (
        r"Free memory on device .* is less than desired|less than desired .* memory utilization",
        FailureKind.OUT_OF_MEMORY,
    ),
    (r"DefaultCPUAllocator: can't allocate memory|^MemoryError|Cannot allocate memory", FailureKind.OUT_OF_MEMORY),
    (r"[Aa]ddress already in use", FailureKind.INFRASTRUCTURE),
    (r"No space left on device", FailureKind.INFRASTRUCTURE),
    (r"CUDA error: (device|uncorrectable|unspecified launch)|NCCL error|NVRM: Xid", FailureKind.INFRASTRUCTURE),
    (r"error: unrecognized arguments|error: argument |invalid choice:", FailureKind.REJECTED_BY_ENGINE),
    (r"^(pydantic_core\.\S+\.)?ValidationError|\d validation errors? for \w+", FailureKind.REJECTED_BY_ENGINE),
    (r"^(\w+\.)*(SafetensorError|OSError|RepositoryNotFoundError|HFValidationError)\b", FailureKind.REJECTED_BY_ENGINE),
    (r"^(ValueError|AssertionError|NotImplementedError|KeyError|TypeError)\b", FailureKind.REJECTED_BY_ENGINE),
)
_OF_START_ONLY = (FailureKind.REJECTED_BY_ENGINE,)
_PREFIX = re.compile(r"^(\(\w+(-\d+)? pid=\d+\)\s*)?((?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tail(log: Path) -> str:
    """The last lines of a log, whatever bytes are in it; empty where there is none."""
    return "\n".join(_end_of(log, EVIDENCE_BYTES).splitlines()[-EVIDENCE_LINES:])


def evidence(command: Sequence[str], log: Path, exit_code: int | None) -> str:
    ended = "still running" if exit_code is None else f"exit code {exit_code}"
    return f"$ {shlex.join(command)}\n{ended}; {log}\n{tail(log)}"


def of_start(command: Sequence[str], log: Path, exit_code: int) -> Failed:
    """Why a server ended before it was ready."""
    shown = evidence(command, log, exit_code)
    found = _first(log, without=())
    if found is not None:
        return Failed(kind=found[0], sentence=found[1], evidence=f"{found[1]}\n{shown}")
    full = _full(log)
    if full:
        return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=full, evidence=f"{full}\n{shown}")
    kind = FailureKind.REJECTED_BY_ENGINE if exit_code == 2 else FailureKind.CRASHED
    how = "was killed (SIGKILL)" if exit_code == 137 else f"ended with code {exit_code}"
    return Failed(kind=kind, sentence=f"the engine {how} before it was ready", evidence=shown)


def of_traffic(
    command: Sequence[str],
    log: Path,
    exit_code: int | None,
    sentence: str,
    *,
    otherwise: FailureKind = FailureKind.INCOMPLETE,
) -> Failed:
    """Why a run on a server that was ready did not yield numbers.

    otherwise: the kind where the engine lives and its log names no cause.

    A code of 0 proves nothing: an API server whose engine core was killed ends with it.
    """
    shown = evidence(command, log, exit_code)
    found = _first(log, without=_OF_START_ONLY)
    if found is not None:
        return Failed(kind=found[0], sentence=found[1], evidence=f"{found[1]}\n{shown}")
    full = _full(log) if exit_code is not None else ""
    if full:
        return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=full, evidence=f"{full}\n{shown}")
    if exit_code is not None or "EngineDeadError" in _whole(log):
        return Failed(kind=FailureKind.CRASHED, sentence=f"the engine died under traffic: {sentence}", evidence=shown)
    return Failed(kind=otherwise, sentence=sentence, evidence=shown)


def _first(log: Path, *, without: Sequence[FailureKind]) -> tuple[FailureKind, str] | None:
    lines = _lines(_whole(log))
    for pattern, kind in PATTERNS:
        if kind not in without:
            for place, line in enumerate(lines):
                if re.search(pattern, line):
                    further = lines[place + 1 : place + 3] if "validation error" in line else []  # pydantic's reason
                    return kind, " ".join([line, *further])[:500]
    return None


def _full(log: Path) -> str:
    """Why an engine that has ended may have said nothing; empty where its log takes another byte. vLLM ends with code 1
    where it cannot print."""
    try:
        with log.open("r+b") as stream:
            stream.seek(0, 2)
            stream.write(b"\n")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"the engine's log {log} cannot be written: {error.strerror}"
    if shutil.disk_usage(log.parent).free == 0:
        return f"the disk of the engine's log {log} is full"
    return ""


def _whole(log: Path) -> str:
    """Up to the last 4 MiB: a start's log is far smaller, a log under traffic need not be."""
    return _end_of(log, 4 * 2**20)


def _end_of(log: Path, size_bytes: int) -> str:
    """Never more than so much, also of a device or of a log that grows meanwhile."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - size_bytes))
            return stream.read(size_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _lines(text: str) -> list[str]:
    """Without the process, level, time and colours that vLLM puts in front; warnings and remarks left out."""
    found = []
    for line in _COLOUR.sub("", text).splitlines():
        prefix = _PREFIX.match(line)
        assert prefix is not None
        if prefix["level"] in (None, "ERROR", "CRITICAL"):
            found.append(line[prefix.end() :].strip())
    return found
