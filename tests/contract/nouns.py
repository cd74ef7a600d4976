"""One of each noun, whole, for tests that store them."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from search_spaces.candidate import candidate_key
from search_spaces.decode_gemm import DecodeTile
from search_spaces.serving import ServingConfig
from tuner.core.access import AuditEntry, Submission
from tuner.core.compiled import CompiledKernel
from tuner.core.decision import Comparison, Confirmation, Decision, DecisionKind, QualityResult
from tuner.core.measurement import Fingerprint, Measurement, Origin, Process, Purpose, Start
from tuner.core.ports import Studies
from tuner.core.study import Lease, Study
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Outcome, Trial

_OPENED = datetime(2026, 12, 1, 8, 30, 15, 123456, tzinfo=UTC)
_ids = itertools.count(1)

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "example/model",
    "hardware": {"gpu": "cpu"},
    "space": "tiny_cpu",
    "evaluator": "vllm",
    "workload": {"input_tokens": 8, "output_tokens": 8},
    "objective": {"minimize": "ttft_p99_ms"},
}

EVERY_SERVING_SECTION: dict[str, Any] = {
    "name": "all/of \"it\" <script>alert('x')</script> \\ 100% {0}",
    "model": '/models/模型\'s "best"',
    "hardware": {"gpu": "GB300", "gpus": 16, "gpus_per_node": 4},
    "space": {
        "name": "mine",
        "knobs": {"max_num_seqs": [1, 16], "enforce_eager": [True, False, None], "block_size": [16]},
        "rules": ["max_num_seqs <= 16 or enforce_eager"],
        "baseline": {"max_num_seqs": 16},
    },
    "evaluator": "vllm",
    "recording": "rows/k3 'decode'.json",
    "workload": {
        "input_tokens": 1,
        "output_tokens": 1000,
        "concurrency": [1, 8],
        "requests": 12,
        "request_rate": 0.1,
        "repeats": 3,
        "dataset": {"sharegpt": '/data/\'s "chats".json', "sha256": "0f" * 32, "facts": {"requests": 90}},
        "acceptance": {"synthetic": {"curve": "kimi-k3-dspark-coding"}},
        "seed": 3,
    },
    "objective": {"maximize": "decode_tokens_per_s_per_user"},
    "limits": [{"metric": "ttft_p99_ms", "at_most": 2000.5}, {"metric": "acceptance_length", "at_least": 1}],
    "fix": {"enforce_eager": None, "block_size": 16},
    "only": {"max_num_seqs": [1]},
    "knobs": {"kv_cache_dtype": ["auto", "fp8"], "gpu_memory_utilization": [0.9, 1]},
    "rules": ["block_size > 8"],
    "baseline": {"block_size": 16},
    "budget": {"trials": 7, "gpu_hours": 1e-3, "start_minutes": 2.5},
    "confirm": {"finalists": 2, "starts": 6, "noise_starts": 3, "min_gain": 0.02},
    "quality": {"enabled": False, "prompts": 2, "prompt_tokens": 4, "output_tokens": 5},
    "engine": {
        "python": "/opt/vllm/bin/python",
        "version": "0.33.0",
        "options": {"compilation_config": {"level": 3, "sizes": [1, 2], "on": True, "none": None}},
        "environment": {"NCCL_DEBUG": "INFO"},
        "arguments": ["--no-x", "--y=z"],
        "trust_remote_code": True,
        "draft_models": {"dspark": "org/draft"},
        "start_timeout_s": 12.5,
        "request_timeout_s": 3,
    },
    "parallel": 4,
    "seed": 11,
}

EVERY_KERNEL_SECTION: dict[str, Any] = {
    "name": "汉" * 200,
    "model": "example/model",
    "hardware": {"gpu": "H200"},
    "space": "skinny_gemm",
    "evaluator": "kernel",
    "problems": [
        {"n": 7168, "k": 512, "m": 8, "dtype": "float8_e4m3", "name": "o_proj"},
        {"n": 512, "k": 7168, "m": 1},
    ],
    "objective": {"minimize": "kernel_us"},
}


def a_study(document: dict[str, Any] | None = None, *, age_s: float = 0, **changes: Any) -> Study:
    """age_s: how long before the others it was opened."""
    file: StudyFile = parse(document or SMALL)
    study = Study(
        id=f"s{next(_ids):07d}",
        name=file.name,
        file=file,
        file_key=file.key,
        created_at=_OPENED - timedelta(seconds=age_s),
    )
    return replace(study, **changes)


def opened(studies: Studies, owner: str = "worker") -> Lease:
    """The lease of a new study."""
    study = a_study()
    studies.create(study)
    lease = studies.claim(owner, ttl_s=20, study_id=study.id)
    assert lease is not None
    return lease


def a_trial(number: int, outcome: Outcome | None = None, *, baseline: bool = False) -> Trial:
    candidate = ServingConfig(
        max_num_seqs=number + 1,
        enforce_eager=False,
        cudagraph_capture_sizes=(1, 2, 4),
        options=(("gpu_memory_utilization", 0.9), ("lora_modules", None)),
    )
    return Trial(
        number=number,
        candidate=candidate,
        key=candidate_key(candidate),
        gpus=1,
        baseline=baseline,
        chosen_by="tpe",
        outcome=outcome,
    )


def a_start(trial: int | None = 0, *, purpose: Purpose = Purpose.SEARCH, **changes: Any) -> Start:
    start = Start(
        id=f"start-{next(_ids)}",
        trial=trial,
        gpus=1,
        candidate_key="0123456789abcdef",
        purpose=purpose,
        fingerprint=Fingerprint(engine="vllm", versions={"vllm": "0.32.0"}, gpu="cpu", gpus=1, settings={"A": "1"}),
        opened_at=_OPENED,
    )
    return replace(start, **changes)


def an_ended_start(start: Start) -> Start:
    """Every field set, and none as it was."""
    return replace(
        start,
        fingerprint=replace(start.fingerprint, driver="580.1", host="höst", settings={}),
        process=Process(pid=4_000_000, started_s=1764576000.1234567, host="höst"),
        ready_s=12.25,
        held_s=0.1 + 0.2,
        ended="stopped",
        command=("vllm", "serve", "--config", "a b'c\".yaml"),
        log_path="/runs/x y/log.txt",
        slot=3,
        excluded="its worker died",
    )


def a_measurement(start_id: str, *, repeat: int = 0, **changes: Any) -> Measurement:
    measurement = Measurement(
        start_id=start_id,
        workload_key="c1-ctx1",
        purpose=Purpose.SEARCH,
        repeat=repeat,
        origin=Origin.MEASURED,
        metrics={"ttft_p99_ms": 0.1 + 0.2, "decode_tokens_per_s": 1e-300},
        missing={"acceptance_length": "not reported"},
        samples={"ttft_ms": (1.5, 2.0, 1 / 3)},
        seconds=4.5,
    )
    return replace(measurement, **changes)


def a_confirmation(gpus: int, *, decided: bool) -> Confirmation:
    quality = (
        QualityResult(
            name="decode_against_prefill",
            candidate_key="b" * 16,
            value=0.01,
            limit=0.02,
            unit="nat",
            passed=True,
            at="M=8",
            detail="calibrated",
        ),
    )
    decision = Decision(
        kind=DecisionKind.VALIDATED,
        gpus=gpus,
        baseline_key="a" * 16,
        winner_key="b" * 16,
        sentence="12 % faster",
        comparisons=_comparisons(),
        quality=quality,
        smallest_gain=0.011,
        estimate=None,
        qualifier="for this synthetic benchmark only",
    )
    return Confirmation(
        gpus=gpus,
        baseline_key="a" * 16,
        finalists=("b" * 16, "c" * 16),
        starts=6,
        noise_starts=2,
        seed=2**31,
        quality=quality if decided else (),
        decision=decision if decided else None,
    )


def _comparisons() -> tuple[Comparison, ...]:
    one = Comparison(
        candidate_key="b" * 16,
        ratios=(1.12, 1.11, 1 / 0.9),
        gain=0.12,
        lower=0.1,
        upper=0.13,
        p=1 / 64,
        limits={"ttft_p99_ms @ c1-ctx1": 0.25},
    )
    return (one, replace(one, candidate_key="c" * 16, reasons=("the lower bound is below 1 %",)))


def a_submission(key: str = "key", **changes: Any) -> Submission:
    submission = Submission(actor="alice", key=key, body_digest="a" * 64, study_ids=("s1", "s2"), at=_OPENED)
    return replace(submission, **changes)


def an_audit_entry(**changes: Any) -> AuditEntry:
    entry = AuditEntry(at=_OPENED, actor="alice", action="submit", subject="s1", detail={"name": "small"})
    return replace(entry, **changes)


def a_compiled_kernel(**given: Any) -> CompiledKernel:
    told: dict[str, Any] = {
        "architecture": "sm_103a", "kernel_version": "86b202ecaee9", "compiler": "nvidia-cutlass-dsl 4.8.1", "m": 8,
        "tile": DecodeTile(rows=24, warps=8, early=False), "symbol": "decode_h1_24_8_2_4_1_0", "compile_s": 1.25,
        "registers": 64, "shared_bytes": 114688, "code_bytes": 4608,
    }  # fmt: skip
    return CompiledKernel(**{**told, **given})
