"""Why the numbers of two studies cannot stand beside each other. Reads what was asked and what it was measured on."""

from collections.abc import Iterable

from tuner.core.comparability import fingerprint_differences
from tuner.core.measurement import Start
from tuner.core.study_file import StudyFile

ASKED = ("model", "hardware", "evaluator", "workload", "problems", "objective")


def apart(a: StudyFile, b: StudyFile, starts_a: Iterable[Start] = (), starts_b: Iterable[Start] = ()) -> list[str]:
    """A sentence for each difference; empty where the studies asked the same of the same machine and software."""
    there, here = a.model_dump(mode="json"), b.model_dump(mode="json")
    found = [f"{name}: {_short(there[name], here[name])}" for name in ASKED if there[name] != here[name]]
    first, second = next(iter(starts_a), None), next(iter(starts_b), None)
    if first is not None and second is not None:
        found += fingerprint_differences(first.fingerprint, second.fingerprint, same_candidate=False)
    return found


def _short(a: object, b: object) -> str:
    """Of two sections, only the keys that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return ", ".join(f"{key} {a.get(key)} and {b.get(key)}" for key in keys)
    return f"{a} and {b}"
