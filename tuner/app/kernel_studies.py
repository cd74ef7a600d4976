"""Kernel studies put together: what replays a recording, what times tiles on a GPU, and what is believed of tiles."""

from pathlib import Path

from search_spaces.vllm_gemm import vllm_choice
from tuner.app.errors import WrongInputError
from tuner.core.ports import Evaluator, Prior
from tuner.core.recorded import RecordedEvaluator, RecordingError, load
from tuner.core.study_file import SHIPPED_RECORDING, StudyFile
from tuner.core.workload import GemmProblem

FIRST_ANSWER_S = 180.0  # the worker imports torch and the CuTe DSL


def recorded_evaluator(file: StudyFile) -> Evaluator:
    """Raises WrongInputError where the file's recording cannot be read."""
    from kernels.sweeps import h200_recording

    if file.recording == SHIPPED_RECORDING:
        return RecordedEvaluator(h200_recording(), gpu="H200")
    problem = next((workload for workload in file.workloads if isinstance(workload, GemmProblem)), None)
    try:
        recording = load(Path(file.recording or ""), problem=problem)
    except RecordingError as error:
        raise WrongInputError(f"recording: {error}; shipped with the product is {SHIPPED_RECORDING}") from error
    return RecordedEvaluator(recording, gpu=file.hardware.gpu)


def timing_evaluator(file: StudyFile, python: Path, runs: Path) -> Evaluator:
    """Tiles of the vLLM that `python` has, each pass in a worker of its own."""
    from kernels.evaluator import KernelEvaluator, WorkerKind
    from kernels.targets import SKINNY_TARGET
    from tuner.engines.engine import Engine
    from tuner.engines.helper import AnswerError, Helper, HelperError

    engine = Engine(python=python, environment=file.engine.environment)
    return KernelEvaluator(
        WorkerKind(
            make=lambda: Helper(engine, "tuner_inside.kernel_worker", runs / "kernels", first_answer_s=FIRST_ANSWER_S),
            gone=HelperError,
            raised=AnswerError,
            options={"target": SKINNY_TARGET, "device": "cuda"},
        ),
        timeout_s=file.engine.request_timeout_s,
    )


def tile_prior(file: StudyFile) -> Prior | None:
    """What the recorded sweep says of the file's problem; a replayed problem is kept from what is learnt."""
    (workload,) = file.workloads
    if "H200" not in file.hardware.gpu.upper() or not isinstance(workload, GemmProblem):
        return None
    from kernels.sweeps import h200_experience, h200_experience_without
    from kernels.transfer import TilePrior

    replayed = file.evaluator == "recorded"
    experience = h200_experience_without(workload.n, workload.k) if replayed else h200_experience()
    baseline = vllm_choice(file.hardware.gpu, workload.n, workload.k, workload.m)
    return TilePrior(experience=experience, baseline=baseline)
