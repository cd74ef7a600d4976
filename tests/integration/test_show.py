"""What `tuner show` says of a study that was run on the fake engine."""

import io
from typing import Any

from rich.console import Console

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tests.fake_engine import FakeEvaluator
from tests.unit.core.test_loop import Bench, many, speed, study_file
from tuner.app.reading import print_study, study_document
from tuner.core.measurement import Purpose
from tuner.core.workload import Workload


def shown(bench: Bench) -> tuple[str, dict[str, Any]]:
    """As text, and the contest as a document."""
    out = io.StringIO()
    print_study(Console(file=out, width=400, soft_wrap=True), bench.studies, "s1")
    return out.getvalue(), study_document(bench.studies, "s1")["contests"][0]


def test_task_accuracy_and_acceptance_by_position_are_shown() -> None:
    bench = Bench(study_file(quality={"tasks": ["sums"]}), FakeEvaluator(speed, noise=0.002))
    bench.run()
    text, contest = shown(bench)
    assert "passed task_accuracy of " in text
    assert "90.0% right, the baseline 90.0%, of 200 questions" in text
    assert "by position: 0.80, 0.50, 0.25; 2.55 tokens a step (real)" in text
    assert contest["winner"]["acceptance_by_position"]["c1-ctx8"] == (0.8, 0.5, 0.25)
    assert [result["passed"] for result in contest["quality"] if result["name"] == "task_accuracy"] == [True]
    assert contest["search_stopped"] is None


def test_a_failed_check_of_the_output_is_shown_with_its_figures() -> None:
    evaluator = FakeEvaluator(speed, noise=0.002)
    best = [ServingConfig(max_num_seqs=8, max_num_batched_tokens=b) for b in (512, 1024)]
    evaluator.forgets = dict.fromkeys(map(candidate_key, best), 30)
    bench = Bench(study_file(quality={"tasks": ["sums"]}), evaluator)
    bench.run()
    text, contest = shown(bench)
    assert "FAILED task_accuracy of " in text
    assert "27 lost and 0 won" in text
    assert contest["decision"] == "no_validated_improvement"


def test_gpu_hours_are_shown_beside_their_budget() -> None:
    """Every start of the fake engine is held for a minute here."""
    file = study_file(budget={"trials": 8, "gpu_hours": 5})
    bench = Bench(file, FakeEvaluator(speed, noise=0.002))
    fake = bench.evaluator.speed

    def slow(candidate: Candidate, workload: Workload) -> float:
        bench.clock.sleep(15)  # two workloads, two repeats
        return fake(candidate, workload)

    bench.evaluator.speed = slow
    bench.run()
    starts = [start for start in bench.studies.starts("s1") if start.purpose is not Purpose.QUALITY]
    assert f"GPU hours: {len(starts) / 60:.2f} of 5" in shown(bench)[0]


def test_why_a_search_stopped_is_shown() -> None:
    bench = Bench(many(), FakeEvaluator(lambda candidate, workload: 100.0, noise=0.01, seed=1))
    bench.run()
    text, contest = shown(bench)
    assert "the search stopped with " in text
    assert contest["search_stopped"] in text
