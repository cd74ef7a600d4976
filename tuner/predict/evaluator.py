"""The `predicted` evaluator: metrics from the step model, in the place of an engine. Deterministic."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from search_spaces.serving import ServingConfig
from tuner.core.acceptance import AcceptanceError
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose
from tuner.core.ports import Answers, Generated, Running, Scored, StartRequest, TaskSet
from tuner.core.study_file import StudyFile
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload
from tuner.predict import PredictError
from tuner.predict.constants import GPU, MODEL, VLLM, calibration
from tuner.predict.traffic import metrics, traffic


def refuse_unknown(file: StudyFile) -> None:
    """Raises PredictError for a model or a GPU that nothing was calibrated on."""
    if file.model != MODEL or file.hardware.gpu != GPU:
        raise PredictError(
            f"evaluator: predictions exist for {MODEL} on {GPU}, not for {file.model} on {file.hardware.gpu}"
        )


class PredictedEvaluator:
    """Raises PredictError for a model or a GPU that nothing was calibrated on."""

    origin = Origin.PREDICTED

    def __init__(self, file: StudyFile) -> None:
        refuse_unknown(file)
        self._calibration = calibration().key

    def fingerprint(self, gpus: int) -> Fingerprint:
        """versions: the calibration, and the vLLM that it speaks of, whatever the study names."""
        return Fingerprint(
            engine="predicted", versions={"calibration": self._calibration, "vllm": VLLM}, gpu=GPU, gpus=gpus
        )

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        del started  # there is no process
        if isinstance(request.candidate, ServingConfig):
            yield _Prediction(request, request.candidate, self.fingerprint(request.candidate.gpus))
        else:
            yield _refused("only serving configurations are predicted")

    def close(self) -> None:
        """Nothing is open."""


class _Prediction:
    ready_s = 0.0
    process = None
    command: Sequence[str] = ()
    log_path = ""

    def __init__(self, request: StartRequest, config: ServingConfig, fingerprint: Fingerprint) -> None:
        self._request = request
        self._config = config
        self.fingerprint = fingerprint

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        if not isinstance(workload, ServingWorkload):
            return _refused("only serving workloads are predicted")
        try:
            found = metrics(self._config, workload, traffic(self._config, workload, calibration().constants))
        except (PredictError, AcceptanceError) as error:
            return _refused(str(error))
        return Measurement(
            start_id=self._request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.PREDICTED,
            metrics=found,
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        return _refused(f"a prediction has no output ({len(prompts)} x {max_tokens} tokens, {concurrency} at once)")

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return _refused(f"a prediction scores nothing ({len(outputs)} outputs)")

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        return _refused(f"a prediction answers no question of {', '.join(asked.tasks)}")


def _refused(sentence: str) -> Failed:
    return Failed(kind=FailureKind.REJECTED_BY_ENGINE, sentence=sentence)
