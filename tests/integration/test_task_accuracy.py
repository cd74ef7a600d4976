"""lm-eval itself, on a task and questions of our own, against a server of completions."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.fake_openai import MODEL, adding_server
from tuner.core.accuracy import fewest_questions
from tuner.core.ports import Answers, TaskSet
from tuner.core.task_accuracy import judged
from tuner.engines.engine import Deadlines, Engine
from tuner.engines.hardware import NoEngineError
from tuner.engines.helper import AnswerError
from tuner.engines.tasks import At, Tasks

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner"
LM_EVAL = Path(os.environ.get("TUNER_LM_EVAL_PYTHON") or CACHE / "lm-eval/bin/python")
QUESTIONS = 150

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LM_EVAL.exists(), reason="`make lm-eval` installs it"),
]

SUMS = """\
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "Question: {{{{a}}}} + {{{{b}}}}\\nAnswer:"
doc_to_target: "{{{{sum}}}}"
{rest}
"""
GENERATES = """\
generation_kwargs: {until: ["\\n"], do_sample: false}
num_fewshot: 0
filter_list:
  - {name: number, filter: [{function: regex, regex_pattern: "(\\\\d+)"}, {function: take_first}]}
  - {name: anything, filter: [{function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSES = """\
doc_to_choice: ["1", "2"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def tasks(folder: Path, *, kind: str = "generate_until", rest: str = GENERATES, python: Path = LM_EVAL) -> Tasks:
    data = folder / "sums.jsonl"
    rows = [{"a": number, "b": 2 * number, "sum": str(3 * number)} for number in range(QUESTIONS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "sums.yaml").write_text(SUMS.format(data=data, kind=kind, rest=rest), encoding="utf-8")
    offline = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    engine = Engine(python=python, environment=offline)
    return Tasks(engine, folder=folder, runs=folder / "runs", deadlines=Deadlines(helper_s=240.0))


def asked(concurrency: int = 4, limit: int | None = None) -> TaskSet:
    return TaskSet(tasks=("sums",), limit=limit, concurrency=concurrency)


def test_each_question_is_judged_and_paired_with_the_same_question_of_the_baseline(tmp_path: Path) -> None:
    asking = tasks(tmp_path)
    try:
        asking.require(["sums"], None, at_least=fewest_questions(0.02))
        told: dict[str, Answers] = {}
        with adding_server() as right, adding_server(lambda a, b: a % 10 == 3) as worse:
            for name, url, concurrency in (("right", right, 4), ("alone", right, 1), ("worse", worse, 4)):
                told[name] = asking.answers(At(base_url=url, model=MODEL), asked(concurrency), lambda: "")[0]
    finally:
        asking.stop()
    assert told["right"].task.startswith("sums: exact_match, number, lm-eval ")
    assert told["right"].right == (True,) * QUESTIONS
    assert told["alone"] == told["right"]
    assert [n for n, right in enumerate(told["worse"].right) if not right] == list(range(3, QUESTIONS, 10))
    assert len(set(told["right"].questions)) == QUESTIONS
    assert judged("c", told["alone"], told["right"], 0.02).passed
    found = judged("c", told["worse"], told["right"], 0.02)
    assert not found.passed
    assert found.value > 0.1
    assert "90.0% right, the baseline 100.0%, of 150 questions; 15 lost and 0 won" in found.detail


def test_a_server_that_answers_no_question_is_an_error_and_not_a_wrong_answer(tmp_path: Path) -> None:
    asking = tasks(tmp_path)
    try:
        with adding_server() as url, pytest.raises(AnswerError, match="404"):
            asking.answers(At(base_url=url, model="another"), asked(limit=3), lambda: "")
    finally:
        asking.stop()


@pytest.mark.parametrize(
    ("changes", "name", "limit", "sentence"),
    [
        ({}, "no_such_task", None, "quality.tasks: lm-eval cannot load them: .*no_such_task"),
        ({}, "sums", 20, "sums asks 20 questions; were all answered alike, 133 are needed"),
        ({"kind": "multiple_choice", "rest": CHOOSES}, "sums", None, "sums scores given answers .*prefill alone"),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_start(
    tmp_path: Path, changes: dict[str, str], name: str, limit: int | None, sentence: str
) -> None:
    with pytest.raises(NoEngineError, match=sentence):
        tasks(tmp_path, kind=changes.get("kind", "generate_until"), rest=changes.get("rest", GENERATES)).require(
            [name], limit, at_least=fewest_questions(0.02)
        )


def test_an_interpreter_without_lm_eval_is_named_with_what_to_do(tmp_path: Path) -> None:
    """This one's own environment has none."""
    with pytest.raises(NoEngineError, match=r"has no lm-eval .*pip install 'lm-eval\[api\]'.*quality.tasks_python"):
        tasks(tmp_path, python=Path(sys.executable)).require(["sums"], None, at_least=1)
