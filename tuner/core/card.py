"""The evidence card: a decision with everything that it rests on, raw samples included. Reads and writes JSON.

A card stands by itself: `verify` recomputes every number in it from its own raw samples, with no database and no trust
in who wrote it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from search_spaces.candidate import candidate_key
from search_spaces.knob import Scalar
from search_spaces.serving import ServingConfig
from tuner.core import confirm, export
from tuner.core.accepted import by_position
from tuner.core.decision import CardError, Confirmation, Decision, QualityResult
from tuner.core.measurement import Measurement, Origin, Purpose, Start
from tuner.core.quality_run import UNCHECKED, evaluated
from tuner.core.study_file import StudyFile, StudyFileError, parse
from tuner.core.trial import Failed
from tuner.core.workload import Workload

FORMAT = "tuner evidence card 1"
TOLERANCE = 1e-9  # relative; the arithmetic is the same, only the text of a number lies between

# Metrics of one run from its raw samples; None for a run whose samples are not of that kind.
Recompute = Callable[[Measurement, Workload, int], Mapping[str, float] | None]

_STARTS = TypeAdapter(list[Start])
_MEASUREMENTS = TypeAdapter(list[Measurement])
_CONFIRMATION = TypeAdapter(Confirmation)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A number in the card that does not follow from its samples. where: path to it."""

    where: str
    stated: object
    recomputed: object


def make(
    subject: export.Subject,
    confirmation: Confirmation,
    starts: Sequence[Start],
    measurements: Sequence[Measurement],
) -> dict[str, Any]:
    """JSON-ready. starts, measurements: of the study; those of this GPU count's confirmation and quality are kept."""
    used = [start for start in starts if start.gpus == confirmation.gpus and _is_evidence(start)]
    ids = {start.id for start in used}
    runs = [measurement for measurement in measurements if measurement.start_id in ids]
    return {
        "card": FORMAT,
        "status": export.heading(subject),
        "study": {
            "id": subject.study.id,
            "file_key": subject.study.file.key,
            "file": subject.study.file.model_dump(mode="json"),
        },
        "origin": subject.origin,
        "gpus": confirmation.gpus,
        "candidate": subject.candidate.values(),
        "baseline": subject.baseline.values(),
        "summary": [{"label": label, "text": text} for label, text in export.evidence(subject)],
        "not_proved": export.not_proved(subject),
        "reproduce": [
            "tuner run STUDY_FILE --new   # the file under study.file",
            f"tuner verify CARD            # or, where the tables are at hand: tuner show {subject.study.id}",
        ],
        "environment": dict(subject.environment),
        "acceptance_by_position": _accepted(used, runs),
        "confirmation": _CONFIRMATION.dump_python(confirmation, mode="json"),
        "starts": _STARTS.dump_python(used, mode="json"),
        "measurements": _MEASUREMENTS.dump_python(runs, mode="json"),
    }


def to_json(card: Mapping[str, Any]) -> str:
    return json.dumps(card, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def verify(text: str, recompute: Recompute) -> list[Mismatch]:
    """Every number of a card that does not follow from the raw samples in it; empty where all do.

    Raises:
        CardError: not a card of this format.
    """
    card = _read(text)
    try:
        file = parse(card["study"]["file"])
        confirmation = _CONFIRMATION.validate_python(card["confirmation"])
        starts = _STARTS.validate_python(card["starts"])
        runs = _MEASUREMENTS.validate_python(card["measurements"])
    except (KeyError, TypeError, ValidationError, ValueError, StudyFileError) as error:
        raise CardError(f"not a whole evidence card: {error}") from error
    strays = {run.start_id for run in runs} - {start.id for start in starts}
    if strays:
        raise CardError(f"not a whole evidence card: start {min(strays)} was measured and is not listed")
    found: list[Mismatch] = []
    _compare("study.file_key", card["study"]["file_key"], file.key, found)
    found += _metrics(file, starts, runs, recompute)
    _compare("acceptance_by_position", card.get("acceptance_by_position", {}), _accepted(starts, runs), found)
    quality = _quality(confirmation, starts, runs, file.quality.margin)
    if quality is not None:
        stated = [result for result in confirmation.quality if result.name != UNCHECKED]  # of that nothing is stored
        _compare("confirmation.quality", _plain(stated), _plain(quality), found)
    if confirmation.decision is not None:
        decision = _decision(file, confirmation, starts, runs)
        if decision is not None:
            _compare("confirmation.decision", _plain(confirmation.decision), _plain(decision), found)
        _compare("status", card["status"], export.heading_of(confirmation.decision, Origin(card["origin"])), found)
    _compare("baseline", confirmation.baseline_key, _key(card["baseline"]), found)
    return found


def _accepted(starts: Sequence[Start], runs: Sequence[Measurement]) -> dict[str, dict[str, list[float]]]:
    """By candidate and workload; only of what drafts."""
    found = {}
    for key in dict.fromkeys(start.candidate_key for start in starts):
        own = {start.id for start in starts if start.candidate_key == key}
        shares = by_position([run for run in runs if run.start_id in own])
        if shares:
            found[key] = {workload: list(values) for workload, values in shares.items()}
    return found


def _is_evidence(start: Start) -> bool:
    return start.slot is not None or start.purpose is Purpose.QUALITY


def _read(text: str) -> dict[str, Any]:
    try:
        card = json.loads(text)
    except ValueError as error:
        raise CardError(f"not JSON: {error}") from error
    if not isinstance(card, dict) or card.get("card") != FORMAT:
        raise CardError(f"not an evidence card of the format {FORMAT!r}")
    return card


def _metrics(
    file: StudyFile, starts: Sequence[Start], runs: Sequence[Measurement], recompute: Recompute
) -> list[Mismatch]:
    workloads = {workload.key: workload for workload in file.workloads}
    gpus = {start.id: start.gpus for start in starts}
    found: list[Mismatch] = []
    for run in runs:
        workload = workloads.get(run.workload_key)
        fresh = recompute(run, workload, gpus[run.start_id]) if workload is not None else None
        for name, value in (fresh or {}).items():
            if name not in run.metrics and name not in run.missing:
                continue  # a metric that its version did not know
            where = f"measurements.{run.start_id}.{run.workload_key}.{run.repeat}.{name}"
            _compare(where, run.metrics.get(name), value, found)
    return found


def _quality(
    confirmation: Confirmation, starts: Sequence[Start], runs: Sequence[Measurement], margin: float
) -> tuple[QualityResult, ...] | None:
    """None where no output was stored."""
    told = [run for run in runs if run.purpose is Purpose.QUALITY]
    asked = [s for s in starts if s.purpose is Purpose.QUALITY and any(run.start_id == s.id for run in told)]
    results: list[QualityResult] = []
    for place in range(0, len(asked) - 2, 3):
        three = asked[place : place + 3]
        ids = [start.id for start in three]
        made = evaluated(three[1].candidate_key, ids, [run for run in told if run.start_id in ids], margin)
        results += () if isinstance(made, Failed) else made
    return tuple(results) if asked and confirmation.quality else None


def _decision(
    file: StudyFile, confirmation: Confirmation, starts: Sequence[Start], runs: Sequence[Measurement]
) -> Decision | None:
    """None where nothing was confirmed, so that there is nothing to recompute."""
    if not confirmation.finalists:
        return None
    return confirm.decide(confirmation, starts, runs, confirm.Terms.of(file), quality=confirmation.quality)


def _key(values: Mapping[str, Scalar]) -> str:
    return candidate_key(ServingConfig.from_values(values))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _compare(where: str, stated: Any, recomputed: Any, found: list[Mismatch]) -> None:
    """Numbers to within the tolerance, everything else exactly; mappings and lists item by item."""
    if isinstance(stated, Mapping) and isinstance(recomputed, Mapping):
        for name in dict.fromkeys([*stated, *recomputed]):
            _compare(f"{where}.{name}", stated.get(name), recomputed.get(name), found)
    elif isinstance(stated, list | tuple) and isinstance(recomputed, list | tuple) and len(stated) == len(recomputed):
        for place, (one, other) in enumerate(zip(stated, recomputed, strict=True)):
            _compare(f"{where}.{place}", one, other, found)
    elif isinstance(stated, float | int) and isinstance(recomputed, float | int):
        if not math.isclose(stated, recomputed, rel_tol=TOLERANCE, abs_tol=1e-12):
            found.append(Mismatch(where, stated, recomputed))
    elif stated != recomputed:
        found.append(Mismatch(where, stated, recomputed))
