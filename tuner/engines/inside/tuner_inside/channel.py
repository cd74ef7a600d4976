"""Questions and answers as JSON lines over the standard streams, for a long-lived process in the engine's interpreter.

What the libraries print goes to standard error, so that it can never be taken for an answer.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer each line until standard input ends.

    An answer is `{"ok": value}` or `{"error": type, "message": text, "trace": text}`; numbers that JSON cannot hold
    become null.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply: dict[str, Any] = {"ok": strict(answer(question))}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - every failure of the library is an answer
            reply = {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()[-8000:]}
        out.write(json.dumps(reply, allow_nan=False) + "\n")
        out.flush()


def strict(value: Any) -> Any:
    """The value without NaN and infinities, and without types of numpy."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
