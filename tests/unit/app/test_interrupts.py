"""A signal while a loop lives, and while none does."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from tuner.app import interrupts
from tuner.app.worker import stopped_by_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    interrupts._asked.clear()


def test_a_signal_raises_at_once_where_no_loop_lives() -> None:
    interrupts.install()
    with pytest.raises(interrupts.Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_never_falls_into_the_start_of_a_thread() -> None:
    """It did, and the loop could not end: the thread was in its books and had never begun."""
    interrupts.install()
    ran: list[int] = []
    with pytest.raises(interrupts.Interrupted), interrupts.at_pulses() as pulse:
        start_threads_under_signals(ran, pulse)
    assert ran == list(range(50))


def start_threads_under_signals(ran: list[int], pulse: Callable[[], None]) -> None:
    for index in range(50):
        thread = threading.Thread(target=ran.append, args=(index,))
        os.kill(os.getpid(), signal.SIGINT)
        thread.start()
        thread.join()
    pulse()


def test_a_signal_after_the_last_pulse_is_not_lost() -> None:
    interrupts.install()
    with pytest.raises(interrupts.Interrupted), interrupts.at_pulses():
        os.kill(os.getpid(), signal.SIGINT)


def test_a_worker_is_told_and_not_thrown() -> None:
    asked = stopped_by_signals()
    assert not asked.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.wait(5)
