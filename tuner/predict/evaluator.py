"""The `predicted` evaluator: metrics from the step model, in the place of an engine. Deterministic."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from search_spaces.serving import ServingConfig
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose
from tuner.core.ports import Generated, Running, Scored, StartRequest
from tuner.core.study_file import StudyFile
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload
from tuner.predict import PredictError, memory
from tuner.predict.step_time import Step, step

MODELS, GPUS = ("moonshotai/Kimi-K3",), ("GB300",)
MODEL_VERSION = "1"
# A rough prefill, for the TTFT limits only: 2 x 104 G active parameters a token at 2.5 PFLOP/s BF16, a third achieved.
ACTIVE_PARAMETERS, FLOPS, PREFILL_SHARE, PREFILL_LEAST_MS = 104e9, 2.5e15, 0.33, 30.0


class PredictedEvaluator:
    """Raises PredictError for a model or a GPU that no constant was set on."""

    origin = Origin.PREDICTED

    def __init__(self, file: StudyFile) -> None:
        if file.model not in MODELS or file.hardware.gpu not in GPUS:
            raise PredictError(
                f"evaluator: predictions exist for {', '.join(MODELS)} on {', '.join(GPUS)}, "
                f"not for {file.model} on {file.hardware.gpu}"
            )
        self._vllm = file.engine.version or "0.33.0"

    def fingerprint(self, gpus: int) -> Fingerprint:
        return Fingerprint(
            engine="predicted", versions={"step model": MODEL_VERSION, "vllm": self._vllm}, gpu="GB300", gpus=gpus
        )

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        del started  # there is no process
        yield _Prediction(request, self.fingerprint(request.candidate.gpus))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Nothing is open."""


class _Prediction:
    ready_s = 0.0
    process = None
    command: Sequence[str] = ()
    log_path = ""

    def __init__(self, request: StartRequest, fingerprint: Fingerprint) -> None:
        self._request = request
        self.fingerprint = fingerprint

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        config = self._request.candidate
        if not isinstance(config, ServingConfig) or not isinstance(workload, ServingWorkload):
            return _refused("only serving configurations are predicted")
        length = workload.acceptance.length(config.num_speculative_tokens)
        if length is None:
            return _refused("workload.acceptance: how much of your text's drafts are accepted cannot be predicted")
        return Measurement(
            start_id=self._request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.PREDICTED,
            metrics=metrics(config, workload, length),
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return _refused(f"a prediction has no output ({len(prompts)} x {max_tokens} tokens, {concurrency} at once)")

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return _refused(f"a prediction scores nothing ({len(outputs)} outputs)")


def metrics(config: ServingConfig, workload: ServingWorkload, acceptance_length: float) -> dict[str, float]:
    running = min(workload.concurrency, config.max_num_seqs or workload.concurrency)
    context = workload.prompt_tokens + workload.output_tokens // 2
    found: Step = step(config, requests=running, context=context)
    tpot_ms = found.ms / acceptance_length
    prefill_ms = max(
        PREFILL_LEAST_MS,
        1000 * 2 * ACTIVE_PARAMETERS * workload.prompt_tokens / (FLOPS * PREFILL_SHARE * config.tensor_parallel_size),
    )
    waves = math.ceil(workload.concurrency / running) - 1
    wait_ms = waves * (prefill_ms + tpot_ms * workload.output_tokens)
    rate = running * 1000 / tpot_ms
    return {
        "step_time_ms": found.ms,
        "tpot_mean_ms": tpot_ms,
        "acceptance_length": acceptance_length,
        "decode_tokens_per_s_per_user": 1000 / tpot_ms,
        "decode_tokens_per_s": rate,
        "decode_tokens_per_s_per_gpu": rate / config.gpus,
        "output_tokens_per_s": rate
        * (tpot_ms * workload.output_tokens)
        / (tpot_ms * workload.output_tokens + prefill_ms * running),
        "mean_running_requests": float(running),
        "ttft_mean_ms": prefill_ms + wait_ms / 2,
        "ttft_p50_ms": prefill_ms + wait_ms / 2,
        "ttft_p99_ms": prefill_ms * min(running, 8) + wait_ms,
        "specialized_share": float(found.path != "auto"),
        "memory_bytes": sum(memory.bytes_needed(config, requests=running, context=workload.max_model_len).values()),
    }


def _refused(sentence: str) -> Failed:
    return Failed(kind=FailureKind.REJECTED_BY_ENGINE, sentence=sentence)
