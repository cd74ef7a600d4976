"""Whether a tile's numbers are right, as a quality check: its error against float64 in every confirming pass. Pure.

A kernel evaluator compares each output before it times anything, so a pass that was timed has an error to show.
"""

from collections.abc import Sequence

from tuner.core.decision import QualityResult
from tuner.core.measurement import Measurement, Purpose, Start

ERROR = "error_of_allowed"  # the largest error of any output, over what rounding allows it


def output_checks(
    keys: Sequence[str], starts: Sequence[Start], measurements: Sequence[Measurement]
) -> tuple[QualityResult, ...]:
    """One for each candidate; one whose error is not known in every pass fails."""
    found = []
    for key in keys:
        mine = {start.id for start in starts if start.candidate_key == key and start.purpose is Purpose.CONFIRM}
        errors = [run.metrics.get(ERROR) for run in measurements if run.start_id in mine]
        known = [error for error in errors if error is not None]
        whole = bool(errors) and len(known) == len(errors)
        worst = max(known) if whole else None
        found.append(
            QualityResult(
                name="output against float64",
                candidate_key=key,
                value=2.0 if worst is None else worst,
                limit=1.0,
                unit="of the allowed error",
                passed=worst is not None and worst <= 1.0,
                detail="" if whole else "a pass says nothing of its error",
            )
        )
    return tuple(found)
