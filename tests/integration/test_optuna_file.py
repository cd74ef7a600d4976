"""`tuner export-optuna`: what Optuna itself reads from the file."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from search_spaces.rule import Reason
from tests.contract.nouns import a_measurement, a_start, a_study, a_trial
from tests.fakes import FakeClock, MemoryStudies
from tuner.app.errors import WrongInputError
from tuner.app.optuna_file import export_optuna
from tuner.core.measurement import FailureKind
from tuner.core.study import Study, StudyState
from tuner.core.trial import Failed, Measured, Rejected


def a_run_study() -> tuple[MemoryStudies, Study]:
    """Two measured, one failed with a line break and quotes, one rejected, one still running."""
    studies = MemoryStudies(FakeClock())
    study = a_study()
    studies.create(study)
    lease = studies.claim("w", ttl_s=60, study_id=study.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    for number in (0, 1):
        start = a_start(number)
        studies.add_trial(lease, a_trial(number, baseline=number == 0))
        studies.open_start(lease, start)
        studies.add_measurement(lease, a_measurement(start.id))
        studies.finish_trial(lease, number, Measured(measurements=(a_measurement(start.id),)))
    failed = Failed(kind=FailureKind.CRASHED, sentence="it said 'no'\nand \"ended\"")
    rejected = Rejected(reasons=(Reason(rule="r", sentence="too large", source="here"),))
    for number, outcome in ((2, failed), (3, rejected), (4, None)):
        studies.add_trial(lease, a_trial(number))
        if outcome is not None:
            studies.finish_trial(lease, number, outcome)
    return studies, studies.get(study.id)


def test_optuna_loads_every_trial_that_has_an_outcome(tmp_path: Path) -> None:
    studies, study = a_run_study()
    file = tmp_path / "study.db"
    assert export_optuna(studies, study, file) == 4
    loaded = optuna.load_study(storage=f"sqlite:///{file}", study_name=f"{study.name} (1 GPUs)")
    assert [t.state for t in loaded.trials] == [TrialState.COMPLETE] * 2 + [TrialState.FAIL] * 2
    assert loaded.best_value == pytest.approx(1.0)
    assert loaded.trials[0].user_attrs["baseline"] is True
    assert loaded.trials[1].params["max_num_seqs"] == "2"
    assert loaded.trials[2].user_attrs["reason"] == "it said 'no'\nand \"ended\""
    assert loaded.trials[3].user_attrs["rejected"] == ["too large"]


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    studies, study = a_run_study()
    file = tmp_path / "mine.db"
    file.write_text("mine")
    with pytest.raises(WrongInputError, match="exists"):
        export_optuna(studies, study, file)
    assert file.read_text() == "mine"
