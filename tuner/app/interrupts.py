"""Ctrl-C and SIGTERM of the commands that run in the foreground."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_asked = threading.Event()
_at_pulses = threading.Event()


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt: typer would end the process on that one without a word."""


def install() -> None:
    """Raise Interrupted on SIGINT and SIGTERM; a shell's background job inherits an ignored SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


@contextlib.contextmanager
def at_pulses() -> Iterator[Callable[[], None]]:
    """Within, a signal raises only where what is handed out is called: a loop owns threads and transactions, and an
    exception that falls into the start of one or the middle of the other leaves neither begun nor ended."""
    _at_pulses.set()
    try:
        yield _pulse
    finally:
        _at_pulses.clear()
    _pulse()


def _pulse() -> None:
    if _asked.is_set():
        raise Interrupted


def _interrupt(_number: int, _frame: object) -> None:
    _asked.set()
    if not _at_pulses.is_set():
        raise Interrupted
