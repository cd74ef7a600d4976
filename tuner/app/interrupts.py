"""Ctrl-C and SIGTERM of the commands that run in the foreground."""

import signal
import threading

_asked = threading.Event()


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt: typer would end the process on that one without a word."""


def install() -> None:
    """Raise Interrupted on SIGINT and SIGTERM; a shell's background job inherits an ignored SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def pulse() -> None:
    """Raise Interrupted where a signal came: the one that its handler raised is lost in a finalizer or a callback."""
    if _asked.is_set():
        raise Interrupted


def _interrupt(_number: int, _frame: object) -> None:
    _asked.set()
    raise Interrupted
