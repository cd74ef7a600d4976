"""Patterns against real logs of vLLM 0.32.0 (CPU, 2026-12-01), and against the lines that vLLM prints on a GPU."""

import shutil
from pathlib import Path

import pytest

from tuner.core.measurement import FailureKind
from tuner.engines.failures import EVIDENCE_LINES, PATTERNS, of_start, of_traffic, tail

LOGS = Path(__file__).parent / "logs"
COMMAND = ("python", "-m", "vllm", "serve")


@pytest.mark.parametrize(
    ("log", "code", "kind", "sentence"),
    [
        ("unknown_flag.log", 2, FailureKind.REJECTED_BY_ENGINE, "unrecognized arguments: --no-such-flag"),
        ("tp_does_not_divide.log", 1, FailureKind.REJECTED_BY_ENGINE, "divisible"),
        ("corrupt_model.log", 1, FailureKind.REJECTED_BY_ENGINE, "SafetensorError: Error while deserializing header"),
        ("port_in_use.log", 1, FailureKind.INFRASTRUCTURE, "ddress already in use"),
    ],
)
def test_a_start_that_failed_is_named_by_the_line_that_says_why(
    log: str, code: int, kind: FailureKind, sentence: str
) -> None:
    found = of_start(COMMAND, LOGS / log, code)
    assert found.kind is kind
    assert sentence in found.sentence
    assert not found.sentence.startswith("(")
    assert found.evidence.startswith(found.sentence)
    assert "$ python -m vllm serve" in found.evidence
    assert f"exit code {code}" in found.evidence


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "(EngineCore pid=9) ERROR 12-01 07:22:06 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to",
            "oom",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "oom"),
        ("ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired GPU memory", "oom"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate", "oom"),
        ("OSError: [Errno 28] No space left on device", "machine"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "machine"),
        ("torch.distributed.DistBackendError: NCCL error in: ncclUtils.cpp, remote process exited", "machine"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "rejected"),
        ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'int3'", "rejected"),
    ],
)
def test_a_line_of_a_gpu_engine_is_understood(tmp_path: Path, line: str, kind: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"INFO 12-01 07:00:00 [x.py:1] starting\n{line}\nmore\n")
    kinds = {
        "oom": FailureKind.OUT_OF_MEMORY,
        "machine": FailureKind.INFRASTRUCTURE,
        "rejected": FailureKind.REJECTED_BY_ENGINE,
    }
    assert of_start(COMMAND, log, 1).kind is kinds[kind]


def test_warnings_are_not_taken_for_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("(X pid=1) WARNING 12-01 07:00:00 [a.py:1] ValueError: this is only a warning\n")
    assert of_start(COMMAND, log, 1).kind is FailureKind.CRASHED


def test_an_engine_core_that_was_killed_is_a_crash_whatever_the_exit_code(tmp_path: Path) -> None:
    """vLLM's API server ends with 0 two seconds after its engine core was killed."""
    log = Path(shutil.copy(LOGS / "engine_core_killed.log", tmp_path))
    found = of_traffic(COMMAND, log, 0, "0 of 8 requests completed")
    assert found.kind is FailureKind.CRASHED
    assert "0 of 8 requests completed" in found.sentence


def test_a_run_that_is_incomplete_on_a_living_server_is_only_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO 12-01 07:00:00 [x.py:1] fine\n")
    assert of_traffic(COMMAND, log, None, "7 of 8 requests completed").kind is FailureKind.INCOMPLETE


def test_a_refusal_at_start_up_does_not_explain_a_failure_under_traffic(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: a client sent nonsense\n")
    assert of_traffic(COMMAND, log, None, "incomplete").kind is FailureKind.INCOMPLETE


def test_a_killed_start_is_said_to_be_killed(tmp_path: Path) -> None:
    found = of_start(COMMAND, tmp_path / "no log", 137)
    assert found.kind is FailureKind.CRASHED
    assert "SIGKILL" in found.sentence


def test_evidence_is_bounded_and_takes_any_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe" + b"x" * 3_000_000 + b"\n" + b"last\n" * 100)
    assert len(tail(log).splitlines()) == EVIDENCE_LINES
    assert tail(log).endswith("last")
    assert len(of_start(COMMAND, log, 1).evidence) < 20_000


def test_an_engine_that_ended_on_a_full_disk_is_the_machines_fault() -> None:
    """vLLM ends with code 1 where it cannot print. Read whole, this log would fill all memory with zeros."""
    for found in (of_start(COMMAND, Path("/dev/full"), 1), of_traffic(COMMAND, Path("/dev/full"), 1, "0 of 8")):
        assert found.kind is FailureKind.INFRASTRUCTURE
        assert found.sentence == "the engine's log /dev/full cannot be written: No space left on device"


def test_every_kind_in_the_table_is_deterministic_or_of_the_machine() -> None:
    assert {kind for _, kind in PATTERNS} == {
        FailureKind.OUT_OF_MEMORY,
        FailureKind.INFRASTRUCTURE,
        FailureKind.REJECTED_BY_ENGINE,
    }
