"""A helper answers, dies, hangs and is given up; it never takes us along, and never outlives us for long."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.engines.engine import Engine
from tuner.engines.helper import AnswerError, Helper, HelperDiedError, NoAnswerError

MODULE = """
import os, sys, time
from tuner_inside.channel import serve
def answer(question):
    if "raise" in question: raise ValueError(question["raise"])
    if "exit" in question: os._exit(3)
    if "leave" in question: sys.exit("parser said no")
    print("noise of a library", flush=True)
    os.system("echo noise of a child")
    time.sleep(question.get("sleep", 0))
    return {"pid": os.getpid(), "nan": float("nan"), "echo": question.get("echo")}
serve(answer)
"""


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    (tmp_path / "answering.py").write_text(MODULE)
    engine = Engine(python=Path(sys.executable), path=(tmp_path,))
    made = Helper(engine, "answering", tmp_path / "work", first_answer_s=30)
    yield made
    made.stop()


def test_answers_come_from_one_process_and_noise_is_no_answer(helper: Helper) -> None:
    first = helper.ask({"echo": "Grüße\n<b>"}, timeout_s=10)
    second = helper.ask({"echo": 2}, timeout_s=10)
    assert first["echo"] == "Grüße\n<b>"
    assert first["nan"] is None
    assert first["pid"] == second["pid"]
    assert "noise of a library" in helper.log.read_text()
    assert "noise of a child" in helper.log.read_text()


def test_what_the_library_raises_is_an_answer(helper: Helper) -> None:
    with pytest.raises(AnswerError, match="ValueError: no such option") as caught:
        helper.ask({"raise": "no such option"}, timeout_s=10)
    assert "Traceback" in caught.value.trace
    with pytest.raises(AnswerError, match="SystemExit: parser said no"):
        helper.ask({"leave": 1}, timeout_s=10)
    assert helper.ask({"echo": 1}, timeout_s=10)["echo"] == 1


def test_one_that_dies_is_started_again_at_the_next_question(helper: Helper) -> None:
    with pytest.raises(HelperDiedError):
        helper.ask({"exit": 1}, timeout_s=10)
    assert helper.ask({"echo": 1}, timeout_s=10)["echo"] == 1


def test_one_that_does_not_answer_in_time_is_ended(helper: Helper) -> None:
    pid = helper.ask({}, timeout_s=10)["pid"]
    with pytest.raises(NoAnswerError, match="did not answer within 0 s"):
        helper.ask({"sleep": 60}, timeout_s=0.2)
    assert not psutil.pid_exists(pid)


def test_a_question_is_given_up_for_a_reason(helper: Helper) -> None:
    helper.ask({}, timeout_s=10)
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match="the engine stands still"):
        helper.ask({"sleep": 60}, timeout_s=60, give_up=lambda: "the engine stands still")
    assert time.monotonic() - began < 10


def test_stopping_from_another_thread_ends_the_question(helper: Helper) -> None:
    helper.ask({}, timeout_s=10)
    threading.Timer(0.3, helper.stop).start()
    with pytest.raises(HelperDiedError):
        helper.ask({"sleep": 60}, timeout_s=60)


def test_an_interpreter_that_is_not_there_is_said_at_the_question(tmp_path: Path) -> None:
    helper = Helper(Engine(python=tmp_path / "none"), "answering", tmp_path / "work", first_answer_s=5)
    helper.warm_up()
    with pytest.raises(HelperDiedError, match="could not be started"):
        helper.ask({}, timeout_s=5)


def test_an_interpreter_without_the_library_dies_and_its_log_says_why(tmp_path: Path) -> None:
    helper = Helper(Engine(python=Path(sys.executable)), "tuner_inside.bench", tmp_path, first_answer_s=30)
    with pytest.raises(HelperDiedError, match=r"bench\.log"):
        helper.ask({}, timeout_s=5)
    assert "No module named 'vllm'" in helper.log.read_text()
    helper.stop()
