"""The best trial so far of each GPU count, kept up from events, so that a long study costs what is new in it.

What the search saw as it went, for a glance; a decision is made from fresh measurements and stands in the study.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from tuner.core.ports import Readings

KEPT = 512  # studies


@dataclass(frozen=True, slots=True)
class Best:
    """ratio: to the baseline, better above 1."""

    trial: int
    ratio: float


class Standings:
    """A cache of what the tables say: any server, at any time, finds the same."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, dict[int, Best]]] = OrderedDict()

    def best(self, study_id: str) -> dict[int, Best]:
        """GPU count to its best feasible trial; a count that has none is left out."""
        with self._lock:
            last, best = self._known.get(study_id, (0, {}))
        best = dict(best)
        for number, data in self._readings.told(study_id, "trial_finished", after=last):
            last = number
            gpus, trial, ratio = data.get("gpus"), data.get("trial"), data.get("ratio")
            if not isinstance(gpus, int) or not isinstance(trial, int) or not isinstance(ratio, float):
                continue
            if data.get("feasible") and (gpus not in best or ratio > best[gpus].ratio):
                best[gpus] = Best(trial, ratio)
        with self._lock:
            self._known[study_id] = (last, best)
            self._known.move_to_end(study_id)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return dict(best)
