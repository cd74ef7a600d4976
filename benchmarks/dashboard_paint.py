"""How soon the page of a study of many trials is there, and what it weighs, in a real Chromium.

    python -m benchmarks.dashboard_paint [--trials 10000] [--database URL]

Server and browser share this machine. A paint is the browser's own first contentful paint, from the start of the
navigation; decision, proof, best against baseline and the first trials are in that first answer. The figures follow.
"""

import argparse
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.writing import Goal, write
from tests.browser.conftest import FLAGS, Server, chromium_path, serving
from tests.browser.made import proved

LOADS = 7
PAINT_GOAL_MS, WEIGHT_GOAL_BYTES = 1000.0, 1_000_000
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
WEIGHT = "performance.getEntries().reduce((sum, e) => sum + (e.transferSize || 0), 0)"


def loads(server: Server, study_id: str) -> list[dict[str, float]]:
    """Milliseconds to the first paint and to the figures, and bytes of everything that was asked for, of each load."""
    found = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        for _ in range(LOADS):
            context = browser.new_context()
            page = context.new_page()
            begun = time.monotonic()
            page.goto(f"{server.url}/ui/studies/{study_id}")
            page.locator("#figures svg").first.wait_for(timeout=60_000)
            figures_ms = 1000 * (time.monotonic() - begun)
            found.append({"paint_ms": page.evaluate(PAINTED), "figures_ms": figures_ms, "bytes": page.evaluate(WEIGHT)})
            context.close()
        browser.close()
    return found


def summary(found: list[dict[str, float]]) -> dict[str, Any]:
    return {
        name: {"median": round(statistics.median(values), 1), "most": round(max(values), 1)}
        for name in found[0]
        for values in [[one[name] for one in found]]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    asked, begun = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(f"sqlite:///{Path(folder) / 'tuner.db'}") as server:
        study_id = proved(server.ports.studies, trials=asked.trials)
        results = summary(loads(server, study_id))
    paint, weight = results["paint_ms"]["most"], results["bytes"]["most"]
    write(
        "dashboard_paint",
        seconds=time.monotonic() - begun,
        versions={"playwright": version("playwright")},
        results={"trials": asked.trials, "loads": LOADS, **results},
        goals=[
            Goal("slowest first paint, ms", f"< {PAINT_GOAL_MS:g}", paint, paint < PAINT_GOAL_MS),
            Goal("heaviest page with its figures, bytes", f"< {WEIGHT_GOAL_BYTES}", weight, weight < WEIGHT_GOAL_BYTES),
        ],
    )


if __name__ == "__main__":
    main()
