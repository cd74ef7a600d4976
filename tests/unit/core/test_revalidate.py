"""A validated result goes stale when its environment changes, and is measured again alone."""

from dataclasses import replace

import pytest

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tests.fake_engine import FakeEvaluator
from tests.unit.core.test_loop import Bench, speed, study_file
from tuner.core.decision import DecisionKind
from tuner.core.export import NothingToExportError
from tuner.core.measurement import Fingerprint
from tuner.core.plan import plan
from tuner.core.study_file import StudyFileError
from tuner.core.use_cases import revalidate, staleness


@pytest.fixture
def bench() -> Bench:
    made = Bench(study_file(), FakeEvaluator(speed, noise=0.002))
    made.run()
    assert made.decision.kind is DecisionKind.VALIDATED
    return made


def today(**changes: object) -> Fingerprint:
    plain = Fingerprint(engine="fake", versions={"fake": "1"}, gpu="fake", gpus=1, host="elsewhere")
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_nothing_is_stale_on_another_host_of_the_same_kind(bench: Bench) -> None:
    assert staleness(bench.studies, bench.studies.get("s1"), lambda gpus: today()) == {1: []}


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (today(versions={"fake": "2"}), "version of fake: 1 and 2"),
        (today(versions={"fake": "1", "model": "new"}), "version of model"),
        (today(driver="580.1"), "driver"),
        (today(gpu="H200"), "hardware"),
    ],
)
def test_a_change_of_version_driver_gpu_or_model_makes_it_stale(bench: Bench, now: Fingerprint, word: str) -> None:
    reasons = staleness(bench.studies, bench.studies.get("s1"), lambda gpus: now)[1]
    assert len(reasons) == 1
    assert word in reasons[0]


def test_only_the_winner_and_its_baseline_are_measured_again(bench: Bench) -> None:
    winner = bench.winner()
    again = revalidate(bench.studies, bench.studies.get("s1"), bench.clock)
    bench.evaluator.starts.clear()
    bench.study = again
    bench.run()
    tried = {candidate_key(request.candidate) for request in bench.evaluator.starts}
    assert tried == {candidate_key(winner), bench.decision.baseline_key}
    decision = bench.studies.confirmations(again.id)[0].decision
    assert decision is not None
    assert decision.kind is DecisionKind.VALIDATED
    assert decision.winner_key == candidate_key(winner)


def test_a_study_that_validated_nothing_has_nothing_to_measure_again() -> None:
    bench = Bench(study_file(), FakeEvaluator(lambda c, w: 100.0))
    bench.run()
    with pytest.raises(NothingToExportError, match="has validated nothing"):
        revalidate(bench.studies, bench.studies.get("s1"), bench.clock)


def test_candidates_of_the_files_own_replace_the_space_and_still_keep_its_rules() -> None:
    file = study_file(
        candidates=[{"max_num_seqs": 8}, {"max_num_seqs": 99}],
        space={"knobs": {"max_num_seqs": [4, 8]}, "rules": ["max_num_seqs < 50"]},
    )
    what = plan(file)
    assert what.contests[0].candidates == (ServingConfig(max_num_seqs=8),)
    assert what.points == 2
    with pytest.raises(StudyFileError, match=r"candidates\.0: 'nonsense' is not an option"):
        plan(study_file(candidates=[{"nonsense": 1}]))
