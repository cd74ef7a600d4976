"""Ask aiconfigurator for decode steps. Runs in an interpreter of its own that has aiconfigurator and nothing of ours.

Reads a JSON list of settings on standard input, writes one of answers on standard output. Each answer has `tpot_ms` or
`error`, and `seconds`; the first setting pays for loading the tables.
"""

import contextlib
import io
import json
import sys
import time
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    settings = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
        from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

        for setting in settings:
            began = time.perf_counter()
            answer: dict[str, Any] = {}
            try:
                found = cli_estimate("moonshotai/Kimi-K3", "gb300", mode="static_gen", backend_name="vllm", **setting)
                answer["tpot_ms"] = float(found.tpot)
            except (ValueError, RuntimeError, KeyError) as error:
                answer["error"] = f"{type(error).__name__}: {error}"[:300]
            answers.append({**answer, "seconds": time.perf_counter() - began})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
