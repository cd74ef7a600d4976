"""Write what a benchmark found, and which of its goals it met, to benchmarks/results/NAME-DATE.json."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Goal:
    """goal: the bound, in words.   value: what was found."""

    name: str
    goal: str
    value: float | None
    met: bool


def write(
    name: str, *, seconds: float, versions: Mapping[str, str], results: Mapping[str, Any], goals: Sequence[Goal]
) -> Path:
    """Also prints each goal. Raises ValueError for a number that JSON has no word for."""
    date = datetime.now(UTC).date().isoformat()
    document = {
        "name": name,
        "date": date,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": dict(versions),
        "seconds": round(seconds, 1),
        "results": dict(results),
        "goals": [asdict(goal) for goal in goals],
    }
    path = RESULTS / f"{name}-{date}.json"
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for goal in goals:
        shown = "none" if goal.value is None else f"{goal.value:.4g}"
        print(f"{'met   ' if goal.met else 'MISSED'} {goal.name}: {shown} (goal {goal.goal})")
    return path
