"""Studies as they lie in the tables after a run, for pages to show: one proved, one with hostile text, a long one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from search_spaces.candidate import candidate_key
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from tests.confirmations import METRIC, made
from tests.contract.nouns import a_study
from tuner.core.confirm import Slot, Terms
from tuner.core.decision import Confirmation, QualityResult
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Purpose, Start
from tuner.core.ports import Studies
from tuner.core.study import StudyState
from tuner.core.trial import Failed, Measured, Outcome, Rejected, Trial

FILE: dict[str, Any] = {
    "name": "demo: a proved winner",
    "model": "example/model",
    "hardware": {"gpu": "H200"},
    "space": "tiny_cpu",
    "evaluator": "vllm",
    "workload": {"input_tokens": 128, "output_tokens": 1000},
    "objective": {"maximize": METRIC},
    "budget": {"trials": 40},
}
HOSTILE = "<script>alert(1)</script>"
LINE = "x" * 2_000_000
OPENED = datetime(2026, 12, 1, 8, tzinfo=UTC)
FINGERPRINT = Fingerprint(
    engine="vllm", versions={"vllm": "0.33.0", "torch": "2.9"}, gpu="H200", gpus=1, driver="580.1", host="host-a",
    settings={"VLLM_EXAMPLE": "a\nb"},
)  # fmt: skip


def _candidate(number: int) -> ServingConfig:
    return ServingConfig(
        max_num_seqs=(8, 16, 32, 64)[number % 4],
        enforce_eager=bool(number // 4 % 2),
        options=(("num_speculative_tokens", number // 8), ("note", "one\ntwo")),
    )


def _speed(candidate: ServingConfig, random: np.random.Generator) -> float:
    values = candidate.values()
    eager = 0.8 if values["enforce_eager"] else 1.0
    seqs = {8: 1.06, 16: 1.02, 32: 1.0, 64: 0.97}[int(str(values["max_num_seqs"]))]
    drafts = 1 + 0.04 * float(str(values["options.num_speculative_tokens"])) if _drafts(candidate) else 1.0
    return 100 * eager * seqs * drafts * float(random.lognormal(0, 0.01))


def _drafts(candidate: ServingConfig) -> bool:
    return "options.num_speculative_tokens" in candidate.values()


def _run(start: str, value: float, number: int) -> Measurement:
    return Measurement(
        start_id=start,
        workload_key="c1-ctx1",
        purpose=Purpose.SEARCH,
        repeat=0,
        origin=Origin.MEASURED,
        metrics={METRIC: value, "decode_tokens_per_s_per_gpu": 900 + 40 * (number % 7) - 2 * value, "ttft_p99_ms": 50},
        missing={"acceptance_length": "was nan", "e2e_p99_ms": "was inf"},
        samples={
            "tpot_ms": tuple(1000 / value * (1 + i / 1000) for i in range(20)),
            "acceptance_by_position": (0.91, 0.74, 0.6),
        },
        seconds=12.5,
    )


def proved(studies: Studies, *, trials: int = 32, name: str = FILE["name"], log_path: str = "") -> str:
    """Done, with a decision from the same arithmetic as a real one. Returns its id."""
    random = np.random.default_rng(3)
    study = replace(a_study({**FILE, "name": "x"}), name=name, owner="alice")
    studies.create(study)
    lease = studies.claim("host-a:1", ttl_s=3600, study_id=study.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    keys: list[str] = []
    baseline = 0.0
    for number in range(trials):
        candidate = _candidate(number)
        if number >= 32:
            candidate = replace(candidate, options=(*candidate.options, ("seed", number)))
        keys.append(candidate_key(candidate))
        studies.add_trial(
            lease,
            Trial(
                number=number, candidate=candidate, key=keys[-1], gpus=1, baseline=number == 0, chosen_by="TPESampler"
            ),
        )  # fmt: skip
        start = Start(
            id=f"{study.id}-t{number}", trial=number, gpus=1, candidate_key=keys[-1], purpose=Purpose.SEARCH,
            fingerprint=FINGERPRINT, opened_at=OPENED + timedelta(minutes=number), ready_s=21.5, held_s=60.0,
            ended="stopped", command=("vllm", "serve", "example/model"), log_path=log_path,
        )  # fmt: skip
        value = _speed(candidate, random)
        baseline = baseline or value
        outcome: Outcome = Measured(measurements=(_run(start.id, value, number),))
        told: dict[str, object] = {"trial": number, "gpus": 1, "outcome": "measured", "feasible": True}
        if number in (5, 13):
            outcome = Rejected(reasons=(Reason(rule="memory", sentence="needs more memory than there is", source="x"),))
            told["outcome"] = "rejected"
        elif number in (6, 22):
            long = f"{HOSTILE} {LINE}" if number == 22 else "the engine ended with code 1"
            outcome = Failed(kind=FailureKind.CRASHED, sentence=long, evidence=long)
            told["outcome"] = "failed"
        else:
            studies.open_start(lease, start)
            studies.add_measurement(lease, _run(start.id, value, number))
            told |= {"ratio": value / baseline, "feasible": number % 9 != 4}
        studies.finish_trial(lease, number, outcome)
        studies.add_event(study.id, "trial_finished", told)
    studies.set_state(lease, StudyState.CONFIRMING)
    winner = keys[24]
    confirmed = Confirmation(
        gpus=1, baseline_key=keys[0], finalists=(winner,), starts=6, noise_starts=3, seed=1
    )  # fmt: skip
    terms = Terms(objective=study.file.objective, min_gain=study.file.confirm.min_gain)

    def value(slot: Slot) -> float:
        return float(random.lognormal(0, 0.004)) * (112 if slot.candidate_key == winner else 100)

    run = made(confirmed, value)
    quality = tuple(
        QualityResult(
            name="decode_against_prefill", candidate_key=winner, value=0.004, limit=0.02, unit="nats", passed=True,
            at=f"graph of {size}",
        )
        for size in (1, 8, 32)
    )  # fmt: skip
    decision = run.decide(terms, quality)
    for start in run.starts:
        mine = replace(start, id=f"{study.id}-{start.id}", held_s=75.0, ready_s=21.0, fingerprint=FINGERPRINT)
        studies.open_start(lease, mine)
        for one in run.measurements:
            if one.start_id == start.id:
                studies.add_measurement(lease, replace(one, start_id=mine.id, purpose=mine.purpose))
    studies.save_confirmation(lease, replace(confirmed, quality=quality, decision=decision))
    studies.set_state(lease, StudyState.DONE)
    studies.release(lease)
    return study.id
