"""What a study's events say that no other table does: why a search ended before its trials were spent."""

from tuner.core.ports import Studies

SEARCH_STOPPED = "search_stopped"  # its data are `gpus` and `reason`


def searches_stopped(studies: Studies, study_id: str) -> dict[int, str]:
    """By GPU count, the reason."""
    found: dict[int, str] = {}
    after = 0
    while page := studies.events(study_id, after=after):
        after = page[-1].id
        found |= {int(str(e.data["gpus"])): str(e.data["reason"]) for e in page if e.kind == SEARCH_STOPPED}
    return found
