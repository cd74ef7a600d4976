"""What an engine accepted of its drafts, position by position, from the runs that reported it. Pure reading."""

import math
from collections.abc import Mapping, Sequence

from tuner.core.measurement import Measurement

BY_POSITION = "acceptance_by_position"  # the sample: share of the drafts of which that position was accepted


def by_position(runs: Sequence[Measurement]) -> dict[str, tuple[float, ...]]:
    """By workload, the share of drafts accepted at least up to each position; runs are weighed by their drafts.

    Runs without such samples, or with another number of positions than the first, are left out.
    """
    told: dict[str, list[Mapping[str, Sequence[float]]]] = {}
    for run in runs:
        if run.samples.get(BY_POSITION) and run.samples.get("drafts"):
            told.setdefault(run.workload_key, []).append(run.samples)
    found = {}
    for key, every in told.items():
        positions = len(every[0][BY_POSITION])
        same = [samples for samples in every if len(samples[BY_POSITION]) == positions]
        drafts = math.fsum(samples["drafts"][0] for samples in same)
        found[key] = tuple(
            math.fsum(s[BY_POSITION][place] * s["drafts"][0] for s in same) / drafts for place in range(positions)
        )
    return found
