"""The loop on a fake engine and in-memory tables: what is tried, what is written, what is decided."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tests.fake_engine import FakeEvaluator
from tests.fakes import FakeClock, MemoryStudies
from tuner.core.decision import Decision, DecisionKind
from tuner.core.loop import Loop, Parts, StudyFailedError
from tuner.core.measurement import FailureKind, Origin, Process, Purpose
from tuner.core.ports import Studies
from tuner.core.starts import LEASE_S, StudyCancelledError
from tuner.core.study import LeaseLostError, Study, StudyState
from tuner.core.study_file import StudyFile, parse
from tuner.core.trial import Failed, Measured, Trial
from tuner.core.use_cases import outlook
from tuner.core.workload import Workload

KNOBS = {"max_num_seqs": [4, 1, 8, 16], "max_num_batched_tokens": [512, 1024]}


def study_file(**changes: Any) -> StudyFile:
    return parse(
        {
            "name": "fake",
            "model": "m",
            "hardware": {"gpu": "cpu"},
            "space": {"knobs": KNOBS},
            "evaluator": "vllm",
            "workload": {"input_tokens": 8, "output_tokens": 8, "concurrency": [1, 2], "repeats": 2},
            "objective": {"maximize": "decode_tokens_per_s_per_user"},
            "budget": {"trials": 8},
            **changes,
        }
    )


def speed(candidate: Candidate, workload: Workload) -> float:
    """Best at 8 sequences, 20 % over the baseline's 4."""
    assert isinstance(candidate, ServingConfig)
    return {4: 100.0, 1: 60.0, 8: 120.0, 16: 90.0}[candidate.max_num_seqs or 4]


class Bench:
    """A study in memory and the parts to run it with."""

    def __init__(self, file: StudyFile, evaluator: FakeEvaluator, **parts: Any) -> None:
        self.clock = FakeClock()
        self.studies: Studies = MemoryStudies(self.clock)
        self.study = Study(
            id="s1", name=file.name, file=file, file_key=file.key, created_at=datetime(2026, 12, 1, tzinfo=UTC)
        )
        self.studies.create(self.study)
        self.evaluator = evaluator
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.reaped: list[Process] = []
        self._parts = parts

    def run(self) -> None:
        lease = self.studies.claim("test", ttl_s=LEASE_S, study_id=self.study.id)
        assert lease is not None
        loop = Loop(
            self.study,
            lease,
            Parts(
                studies=self.studies,
                evaluator=self.evaluator,
                clock=self.clock,
                reap=lambda process: self.reaped.append(process) is None,
                progress=lambda kind, data: self.events.append((kind, data)),
                **self._parts,
            ),
        )
        try:
            loop.run()
        finally:
            self.studies.release(loop.lease)

    @property
    def state(self) -> StudyState:
        return self.studies.get("s1").state

    @property
    def decision(self) -> Decision:
        decision = self.studies.confirmations("s1")[0].decision
        assert decision is not None
        return decision

    @property
    def trials(self) -> list[Trial]:
        return list(self.studies.trials("s1"))

    def winner(self) -> ServingConfig:
        found = next(t.candidate for t in self.trials if t.key == self.decision.winner_key)
        assert isinstance(found, ServingConfig)
        return found


def test_a_clear_winner_is_validated_on_fresh_starts() -> None:
    bench = Bench(study_file(), FakeEvaluator(speed, noise=0.002))
    bench.run()
    assert bench.state is StudyState.DONE
    assert bench.decision.kind is DecisionKind.VALIDATED, bench.decision
    assert bench.winner().max_num_seqs == 8
    assert bench.decision.comparisons[0].gain == pytest.approx(0.2, abs=0.02)
    purposes = [start.purpose for start in bench.studies.starts("s1")]
    assert purposes.count(Purpose.NOISE) == 2
    assert purposes.count(Purpose.CONFIRM) == 10
    assert purposes.count(Purpose.QUALITY) == 3


def test_the_baseline_comes_first_and_each_candidate_is_measured_once() -> None:
    bench = Bench(study_file(), FakeEvaluator(speed))
    bench.run()
    assert bench.trials[0].baseline
    assert [trial.number for trial in bench.trials] == list(range(8))
    search = [request for request in bench.evaluator.starts if request.purpose is Purpose.SEARCH]
    assert len(search) == len({candidate_key(request.candidate) for request in search}) == 8
    assert all(isinstance(t.outcome, Measured) and len(t.outcome.measurements) == 4 for t in bench.trials)


def test_no_difference_is_no_validated_improvement() -> None:
    bench = Bench(study_file(), FakeEvaluator(lambda c, w: 100.0, noise=0.01, seed=4))
    bench.run()
    assert bench.decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert bench.decision.winner_key is None or bench.decision.winner_key == bench.decision.baseline_key


def test_a_winner_with_a_broken_decode_path_is_not_validated() -> None:
    evaluator = FakeEvaluator(speed, noise=0.002)
    evaluator.wrong = {candidate_key(ServingConfig(max_num_seqs=8, max_num_batched_tokens=b)) for b in (512, 1024)}
    bench = Bench(study_file(), evaluator)
    bench.run()
    assert bench.decision.kind is DecisionKind.NO_VALIDATED_IMPROVEMENT
    assert any(not result.passed for result in bench.decision.quality)


@pytest.mark.parametrize(("forgotten", "passes"), [(0, True), (12, False)])
def test_a_winner_that_loses_answers_to_a_task_is_not_validated(forgotten: int, passes: bool) -> None:
    """200 questions; both sides answer 90 % rightly, but for what the winner forgets. No further start is made."""
    evaluator = FakeEvaluator(speed, noise=0.002)
    best = [ServingConfig(max_num_seqs=8, max_num_batched_tokens=b) for b in (512, 1024)]
    evaluator.forgets = dict.fromkeys(map(candidate_key, best), forgotten)
    bench = Bench(study_file(quality={"tasks": ["sums", "words"], "margin": 0.03}), evaluator)
    bench.run()
    assert (bench.decision.kind is DecisionKind.VALIDATED) == passes, bench.decision
    judged = [result for result in bench.decision.quality if result.name == "task_accuracy"]
    assert [(result.at, result.passed) for result in judged] == [
        ("sums: exact_match", passes),
        ("words: exact_match", passes),
    ]
    assert [start.purpose for start in bench.studies.starts("s1")].count(Purpose.QUALITY) == 3
    stored = [run for run in bench.studies.measurements("s1", purpose=Purpose.QUALITY) if "right" in run.samples]
    assert len(stored) == 2 * 2
    if not passes:
        assert "task_accuracy at sums" in bench.decision.sentence


MANY = {"max_num_seqs": [4, 1, 2, 8, 16, 32], "max_num_batched_tokens": [512, 1024, 2048], "block_size": [16, 32, 64]}


def many(**changes: Any) -> StudyFile:
    return study_file(space={"knobs": MANY}, **{"budget": {"trials": 53}, **changes})


def test_a_search_of_noise_stops_before_its_budget_and_says_why() -> None:
    bench = Bench(many(), FakeEvaluator(lambda c, w: 100.0, noise=0.01, seed=1))
    bench.run()
    assert len(bench.trials) < 40
    reasons = [str(data["reason"]) for kind, data in bench.events if kind == "search_stopped"]
    assert len(reasons) == 1
    assert reasons[0].startswith(f"the search stopped with {53 - len(bench.trials) + 1} trials left: they are expected")
    assert outlook(bench.studies, bench.study)[0].stopped == reasons[0]
    assert bench.state is StudyState.DONE


def test_a_search_that_may_not_stop_spends_its_budget() -> None:
    evaluator = FakeEvaluator(lambda c, w: 100.0, noise=0.01, seed=1)
    bench = Bench(many(budget={"trials": 53, "stop_early": False}), evaluator)
    bench.run()
    assert len(bench.trials) == 54
    assert not any(kind == "search_stopped" for kind, _ in bench.events)


def test_a_search_that_stopped_is_still_stopped_when_its_study_is_resumed() -> None:
    """Interrupted at the first start of the confirmation."""
    evaluator = FakeEvaluator(lambda c, w: 100.0, noise=0.01, seed=1)
    bench = Bench(many(), evaluator)

    def breaking(candidate: Candidate, workload: Workload) -> float:
        if any(request.purpose is Purpose.NOISE for request in evaluator.starts):
            raise KeyboardInterrupt
        return 100.0

    evaluator.speed = breaking
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    before = len(bench.trials)
    evaluator.speed, evaluator.starts = (lambda c, w: 100.0), []
    bench.run()
    assert len(bench.trials) == before
    assert [kind for kind, _ in bench.events].count("search_stopped") == 1


def test_limits_that_nothing_keeps_are_infeasible_and_the_nearest_point_is_named() -> None:
    bench = Bench(study_file(limits=[{"metric": "ttft_p99_ms", "at_most": 1}]), FakeEvaluator(speed))
    bench.run()
    assert bench.decision.kind is DecisionKind.INFEASIBLE
    assert bench.winner().max_num_seqs == 8
    assert {request.purpose for request in bench.evaluator.starts} == {Purpose.SEARCH}


@pytest.mark.parametrize("origin", [Origin.PREDICTED, Origin.RECORDED])
def test_what_is_not_measured_is_never_validated(origin: Origin) -> None:
    bench = Bench(study_file(), FakeEvaluator(speed, origin=origin))
    bench.run()
    assert bench.decision.kind is DecisionKind.NOT_MEASURED
    assert bench.winner().max_num_seqs == 8
    assert bench.decision.estimate == pytest.approx(0.2)


def test_a_failure_of_luck_is_tried_again_and_one_of_kind_is_not() -> None:
    lucky = candidate_key(ServingConfig(max_num_seqs=16, max_num_batched_tokens=512))
    doomed = candidate_key(ServingConfig(max_num_seqs=1, max_num_batched_tokens=512))
    evaluator = FakeEvaluator(speed)
    evaluator.fails = {
        lucky: [Failed(kind=FailureKind.CRASHED, sentence="died")],
        doomed: [Failed(kind=FailureKind.OUT_OF_MEMORY, sentence="no room", evidence="log")] * 3,
    }
    bench = Bench(study_file(), evaluator)
    bench.run()
    outcomes = {trial.key: trial for trial in bench.trials}
    assert isinstance(outcomes[lucky].outcome, Measured)
    assert outcomes[lucky].attempts == 2
    assert outcomes[doomed].outcome == Failed(kind=FailureKind.OUT_OF_MEMORY, sentence="no room", evidence="log")
    assert outcomes[doomed].attempts == 1


def test_a_baseline_that_cannot_start_fails_the_study_with_its_reason() -> None:
    evaluator = FakeEvaluator(speed)
    evaluator.fails = {
        candidate_key(ServingConfig(max_num_seqs=4, max_num_batched_tokens=512)): [
            Failed(kind=FailureKind.REJECTED_BY_ENGINE, sentence="unknown flag")
        ]
    }
    bench = Bench(study_file(), evaluator)
    with pytest.raises(StudyFailedError, match="baseline for 1 GPUs could not be measured: unknown flag"):
        bench.run()
    assert bench.evaluator.running == 0


def test_a_machine_that_keeps_failing_ends_the_study_instead_of_burning_its_candidates() -> None:
    evaluator = FakeEvaluator(speed)
    broken = Failed(kind=FailureKind.INFRASTRUCTURE, sentence="no space left on device")
    some = [ServingConfig(max_num_seqs=s, max_num_batched_tokens=b) for s in (1, 8, 16) for b in (512, 1024)]
    keys = [candidate_key(candidate) for candidate in some]
    evaluator.fails = {key: [broken] * 9 for key in keys}
    bench = Bench(study_file(), evaluator)
    with pytest.raises(StudyFailedError, match="4 trials in a row failed for reasons of the machine: no space left"):
        bench.run()


def test_an_interrupted_study_goes_on_without_measuring_anything_twice() -> None:
    """Interrupted in the middle of the third trial; the second life finishes it."""
    evaluator = FakeEvaluator(speed, noise=0.002)
    bench = Bench(study_file(), evaluator)
    calls = 0

    def breaking(candidate: Candidate, workload: Workload) -> float:
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return speed(candidate, workload)

    evaluator.speed = breaking
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert all(start.ended is not None for start in bench.studies.starts("s1"))
    first_life = [m for m in evaluator.measured if True]
    unfinished = [trial for trial in bench.trials if trial.outcome is None]
    assert len(unfinished) == 1
    evaluator.speed = speed
    evaluator.measured = []
    bench.run()
    assert bench.decision.kind is DecisionKind.VALIDATED
    written = bench.studies.measurements("s1", purpose=Purpose.SEARCH)
    places = [(m.start_id, m.workload_key, m.repeat) for m in written]
    assert len(places) == len(set(places)) == 8 * 4
    again = {(key, w, r) for key, w, r in evaluator.measured[:2]} & set(first_life[:10])
    assert not again


def test_open_starts_of_a_dead_worker_are_reaped_and_closed_as_lost() -> None:
    bench = Bench(study_file(), FakeEvaluator(speed))
    hold = threading.Event()
    bench.evaluator.hold = hold
    lease = bench.studies.claim("dead", ttl_s=LEASE_S, study_id="s1")
    assert lease is not None
    parts = Parts(studies=bench.studies, evaluator=bench.evaluator, clock=bench.clock, reap=lambda _: True)
    thread = threading.Thread(target=lambda: _swallow(Loop(bench.study, lease, parts).run), daemon=True)
    thread.start()
    while not any(start.process for start in bench.studies.starts("s1")):
        threading.Event().wait(0.01)
    bench.clock.sleep(LEASE_S + 1)
    bench.evaluator = FakeEvaluator(speed)
    bench.run()
    assert bench.state is StudyState.DONE
    assert [process.pid for process in bench.reaped] == [1]
    assert [start.ended for start in bench.studies.starts("s1")].count("lost") == 1
    hold.set()
    thread.join(timeout=10)
    assert len(bench.studies.measurements("s1", purpose=Purpose.SEARCH)) == 8 * 4


def _swallow(run: Any) -> None:
    with pytest.raises(LeaseLostError):
        run()


def test_cancelling_stops_every_engine_first() -> None:
    bench = Bench(study_file(), FakeEvaluator(speed))
    bench.evaluator.hold = threading.Event()

    def cancel() -> None:
        while not bench.evaluator.running:
            threading.Event().wait(0.01)
        bench.studies.request_cancel("s1")
        bench.clock.sleep(LEASE_S / 2)

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(StudyCancelledError):
        bench.run()
    thread.join()
    assert bench.evaluator.running == 0


def test_parallel_trials_are_bounded_and_all_are_written() -> None:
    bench = Bench(study_file(parallel=3), FakeEvaluator(speed))
    bench.run()
    assert 1 <= bench.evaluator.most_running <= 3
    assert all(isinstance(trial.outcome, Measured) for trial in bench.trials)


def test_the_baseline_is_measured_again_as_the_study_goes() -> None:
    knobs = {"max_num_seqs": [4, 1, 8, 16], "max_num_batched_tokens": [512, 1024, 2048, 4096, 8192]}
    bench = Bench(study_file(space={"knobs": knobs}, budget={"trials": 20}), FakeEvaluator(speed))
    bench.run()
    drift = [start for start in bench.studies.starts("s1") if start.purpose is Purpose.DRIFT]
    assert len(drift) == 2


def test_repeats_are_not_spent_on_a_candidate_that_cannot_win() -> None:
    """Ten repeats, and candidates far below the best: each is dropped after its first pass over the workloads."""
    workload = {"input_tokens": 8, "output_tokens": 8, "concurrency": [1, 2], "repeats": 10}
    flutter = iter(range(10_000))

    def noisy(candidate: Candidate, workload: Workload) -> float:
        return speed(candidate, workload) * (1 + 0.001 * (next(flutter) % 3))

    bench = Bench(study_file(workload=workload, seed=3), FakeEvaluator(noisy))
    bench.run()
    runs = {
        t.candidate.values()["max_num_seqs"]: len(t.outcome.measurements)
        for t in bench.trials
        if isinstance(t.outcome, Measured)
    }
    assert runs[1] == runs[16] == 2
    assert runs[8] == 20
    assert isinstance(bench.trials[0].outcome, Measured)
    assert len(bench.trials[0].outcome.measurements) == 20
    assert bench.decision.kind is DecisionKind.VALIDATED
    assert bench.winner().max_num_seqs == 8


def test_a_study_that_fails_leaves_no_start_open_and_no_engine_running() -> None:
    """Three at a time, and the machine is broken: those still running are stopped and closed, not forgotten."""
    broken = Failed(kind=FailureKind.INFRASTRUCTURE, sentence="no space left on device")
    evaluator = FakeEvaluator(speed)
    some = [ServingConfig(max_num_seqs=s, max_num_batched_tokens=b) for s in (1, 8, 16) for b in (512, 1024)]
    evaluator.fails = {candidate_key(candidate): [broken] * 9 for candidate in some}
    bench = Bench(study_file(parallel=3), evaluator)
    with pytest.raises(StudyFailedError):
        bench.run()
    assert evaluator.running == 0
    assert all(start.ended is not None for start in bench.studies.starts("s1"))


def test_what_the_pulse_raises_ends_the_loop_with_every_start_closed() -> None:
    """A signal whose exception was lost in a finalizer is noticed at the next wait."""
    calls = iter(range(100))

    def pulse() -> None:
        if next(calls) == 6:
            raise KeyboardInterrupt

    bench = Bench(study_file(), FakeEvaluator(speed), pulse=pulse)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.evaluator.running == 0
    assert all(start.ended is not None for start in bench.studies.starts("s1"))
    assert bench.state is StudyState.RUNNING
