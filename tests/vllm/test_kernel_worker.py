"""The kernel worker in the engine's interpreter, on a CPU, with planted defects: none is ever timed as good."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import QUIET, SCRIPTS

from kernels.evaluator import KernelEvaluator, WorkerKind
from search_spaces.gemm import SkinnyTile
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import StartRequest
from tuner.core.recorded import METRIC
from tuner.core.trial import Failed
from tuner.core.workload import GemmProblem, ServingWorkload, Workload
from tuner.engines.engine import Engine
from tuner.engines.helper import AnswerError, Helper, HelperError

pytestmark = pytest.mark.vllm

PROBLEM = GemmProblem(n=48, k=96, m=3)
RIGHT = 1


def kind(engine_python: Path, folder: Path, target: str = "planted_kernels") -> WorkerKind:
    engine = Engine(python=engine_python, environment=QUIET, path=(SCRIPTS,))
    return WorkerKind(
        make=lambda: Helper(engine, "tuner_inside.kernel_worker", folder, first_answer_s=60),
        gone=HelperError,
        raised=AnswerError,
        options={"target": target, "device": "cpu"},
    )


@pytest.fixture
def evaluator(engine_python: Path, tmp_path: Path) -> Iterator[KernelEvaluator]:
    made = KernelEvaluator(kind(engine_python, tmp_path), timeout_s=10)
    yield made
    made.close()


def measured(
    evaluator: KernelEvaluator, planted: int, *, fresh: bool = False, workload: Workload = PROBLEM
) -> Measurement | Failed:
    tile = SkinnyTile(block_size=32, outputs_per_block=planted)
    request = StartRequest(
        start_id=f"s{planted}", candidate=tile, purpose=Purpose.SEARCH, workloads=(workload,), fresh=fresh
    )
    with evaluator.start(request, started=lambda *_: None) as running:
        assert not isinstance(running, Failed), running.sentence
        return running.measure(workload, purpose=Purpose.SEARCH, repeat=0)


def test_a_right_kernel_is_timed_with_its_samples_and_its_environment(evaluator: KernelEvaluator) -> None:
    got = measured(evaluator, RIGHT)
    assert isinstance(got, Measurement), got
    assert got.origin is Origin.MEASURED
    assert len(got.samples[METRIC]) == 7
    assert got.metrics[METRIC] > 0
    assert got.metrics["error_of_allowed"] <= 1
    print_ = evaluator.fingerprint(1)
    assert print_.gpu == "cpu"
    assert print_.versions["kernel"] == "planted"
    assert "torch" in print_.versions


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        (2, "differ from float64"),
        (3, "1 of 144 outputs were not written"),
        (4, "changed its weights"),
        (5, "changed its input x"),
        (6, "outside its output"),
        (10, "differ from float64"),
    ],
)
def test_a_wrong_kernel_is_no_number_and_the_next_one_is_timed(
    evaluator: KernelEvaluator, planted: int, words: str
) -> None:
    got = measured(evaluator, planted)
    assert isinstance(got, Failed), got
    assert got.kind is FailureKind.WRONG_OUTPUT
    assert words in got.sentence
    assert isinstance(measured(evaluator, RIGHT), Measurement)


def test_a_kernel_that_cannot_be_built_is_refused(evaluator: KernelEvaluator) -> None:
    got = measured(evaluator, 11)
    assert isinstance(got, Failed)
    assert got.kind is FailureKind.REJECTED_BY_ENGINE


@pytest.mark.parametrize(("planted", "failure"), [(8, FailureKind.CRASHED), (9, FailureKind.CRASHED)])
def test_a_kernel_that_takes_the_worker_down_fails_alone(
    evaluator: KernelEvaluator, planted: int, failure: FailureKind
) -> None:
    assert isinstance(measured(evaluator, RIGHT), Measurement)
    got = measured(evaluator, planted)
    assert isinstance(got, Failed)
    assert got.kind is failure
    assert isinstance(measured(evaluator, RIGHT), Measurement)


def test_a_kernel_that_hangs_is_killed_and_the_study_goes_on(engine_python: Path, tmp_path: Path) -> None:
    evaluator = KernelEvaluator(kind(engine_python, tmp_path), timeout_s=10)
    try:
        evaluator.fingerprint(1)  # the imports are done
        assert isinstance(measured(evaluator, RIGHT), Measurement)
        got = measured(evaluator, 7)
        assert isinstance(got, Failed)
        assert got.kind is FailureKind.HUNG
        assert isinstance(measured(evaluator, RIGHT), Measurement)
    finally:
        evaluator.close()
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_a_fresh_start_is_a_process_of_its_own(evaluator: KernelEvaluator) -> None:
    first = measured(evaluator, RIGHT, fresh=True)
    second = measured(evaluator, RIGHT, fresh=True)
    assert isinstance(first, Measurement)
    assert isinstance(second, Measurement)


def test_a_target_that_is_not_there_is_a_failure_of_the_machine(engine_python: Path, tmp_path: Path) -> None:
    evaluator = KernelEvaluator(kind(engine_python, tmp_path, target="no_such_target"), timeout_s=10)
    tile = SkinnyTile(block_size=32, outputs_per_block=1)
    request = StartRequest(start_id="s", candidate=tile, purpose=Purpose.SEARCH, workloads=(PROBLEM,))
    with evaluator.start(request, started=lambda *_: None) as running:
        assert isinstance(running, Failed)
        assert running.kind is FailureKind.INFRASTRUCTURE
        assert "no_such_target" in running.sentence
    evaluator.close()


def test_another_dtype_and_a_serving_workload_are_refused(evaluator: KernelEvaluator) -> None:
    serving = ServingWorkload(input_tokens=1, output_tokens=1, context_tokens=1, concurrency=1, requests=1)
    for workload in (serving, GemmProblem(n=48, k=96, m=3, dtype="float16")):
        got = measured(evaluator, RIGHT, workload=workload)
        assert isinstance(got, Failed)
        assert got.kind is FailureKind.REJECTED_BY_ENGINE
