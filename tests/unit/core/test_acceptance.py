"""Acceptance has a source, follows the draft length, and is checked against what the engine reports."""

import pytest

from search_spaces.candidate import Candidate
from search_spaces.serving import ServingConfig
from tests.fake_engine import FakeEvaluator, FakeRunning
from tests.unit.core.test_loop import Bench, study_file
from tuner.core.acceptance import CURVES, REAL, Acceptance, AcceptanceError, mismatch
from tuner.core.measurement import FailureKind, Measurement, Purpose
from tuner.core.trial import Failed, Measured
from tuner.core.workload import Workload


def test_every_curve_is_labelled_and_grows_with_the_draft_length() -> None:
    for curve in CURVES.values():
        assert curve.source
        assert curve.text
        lengths = list(curve.lengths.values())
        assert lengths == sorted(lengths)
        assert all(1 < length <= drafts + 1 for drafts, length in curve.lengths.items())
        assert curve.length(0) == 1.0


def test_sources_that_disagree_are_both_there() -> None:
    golden, launch = CURVES["kimi-k3-dspark-coding"], CURVES["kimi-k3-dspark-launch-coding"]
    assert (golden.length(7), launch.length(7)) == (3.78, 4.73)
    with pytest.raises(AcceptanceError, match=r"has no value for 3 drafts \(known: 7\)"):
        launch.length(3)


def test_the_length_follows_the_draft_length_and_real_acceptance_has_none() -> None:
    curve = Acceptance(curve="kimi-k3-dspark-coding")
    assert [curve.length(drafts) for drafts in (0, 3, 7)] == [1.0, 2.87, 3.78]
    assert REAL.length(7) is None
    assert REAL.length(0) == 1.0
    assert len({curve.source, REAL.source, Acceptance(fixed_length=6).source}) == 3


@pytest.mark.parametrize(
    ("asked", "reported", "word"),
    [
        (3.78, 3.77, ""),
        (2.87, 2.83, ""),
        (3.78, 3.2, "accepted 3.20 tokens a step where 3.78"),
        (3.78, 6.0, "accepted 6.00"),
        (3.78, None, "reported no acceptance"),
        (1.0, None, ""),
        (None, 2.0, ""),
    ],
)
def test_what_the_engine_reports_is_held_against_what_was_asked(
    asked: float | None, reported: float | None, word: str
) -> None:
    assert (word in mismatch(asked, reported)) if word else mismatch(asked, reported) == ""


def test_a_trial_that_accepts_something_else_fails_as_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#42508, InferenceX#2811: an acceptance that does not fit the sampler makes another question of the number."""
    plain = FakeRunning.measure

    def measure(self: FakeRunning, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        found = plain(self, workload, purpose=purpose, repeat=repeat)
        assert isinstance(found, Measurement)
        config = self.request.candidate
        assert isinstance(config, ServingConfig)
        reported = {0: 1.0, 3: 2.87, 7: 6.0}[config.num_speculative_tokens]
        return Measurement(
            start_id=found.start_id,
            workload_key=found.workload_key,
            purpose=purpose,
            repeat=repeat,
            origin=found.origin,
            metrics={**found.metrics, "acceptance_length": reported},
        )

    monkeypatch.setattr(FakeRunning, "measure", measure)

    def speed(candidate: Candidate, workload: Workload) -> float:
        return 100.0

    knobs = {
        "num_speculative_tokens": [0, 3, 7],
        "speculative_method": ["dspark"],
        "draft_sample_method": ["greedy"],
        "rejection_sample_method": ["standard"],
    }
    workload = {
        "input_tokens": 8,
        "output_tokens": 8,
        "acceptance": {"synthetic": {"curve": "kimi-k3-dspark-coding"}},
    }
    file = study_file(hardware={"gpu": "H200"}, space={"knobs": knobs}, workload=workload)
    bench = Bench(file, FakeEvaluator(speed))
    bench.run()
    outcomes = {t.candidate.values().get("num_speculative_tokens", 0): t.outcome for t in bench.trials}
    assert isinstance(outcomes[0], Measured)
    assert isinstance(outcomes[3], Measured)
    failed = outcomes[7]
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.WRONG_OUTPUT
    assert "accepted 6.00 tokens a step where 3.78 were asked for" in failed.sentence
