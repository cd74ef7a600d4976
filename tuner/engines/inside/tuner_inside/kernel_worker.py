"""Check and time kernels, one question at a time, in the engine's interpreter: JSON lines over the standard streams."""

import importlib
from typing import Any

from tuner_inside.channel import serve
from tuner_inside.kernel_bench import Bench


def main() -> None:
    bench: Bench | None = None

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        """`{"open": {"target": module, "device": "cuda" or "cpu", ...}}` first, then, as often as wanted,
        `{"problem": {...}, "candidate": {"kind": ..., "values": {...}}, "seed": n, "time": true}`."""
        nonlocal bench
        if "open" in question:
            options = question["open"]
            target = importlib.import_module(options["target"]).Target(options)
            bench = Bench(target, options.get("device", "cuda"))
            return bench.environment()
        if bench is None:
            raise RuntimeError("no target is open")
        return bench.measure(question)

    serve(answer)


if __name__ == "__main__":
    main()
