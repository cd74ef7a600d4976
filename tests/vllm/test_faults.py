"""Every fault is called by its name, with evidence, and nothing is left of the engine: on the real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FAULTS, Fault, Laboratory

from tuner.core.measurement import FailureKind

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def laboratory(engine_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    made = Laboratory(engine_python, tiny_model, tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=() if f.everyday else pytest.mark.slow) for f in FAULTS],
)
def test_a_fault_is_called_by_its_name_and_leaves_nothing(laboratory: Laboratory, fault: Fault) -> None:
    assert laboratory.inject(fault).wrong(fault) == ""


def test_every_way_to_fail_is_among_the_faults() -> None:
    assert {f.kind for f in FAULTS if f.kind} == set(FailureKind) - {FailureKind.INCOMPLETE}
