"""Small stand-ins for what the core asks from outside. Each passes the contract suite of its port."""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tuner.core.decision import Confirmation
from tuner.core.measurement import Measurement, Purpose, Start
from tuner.core.ports import Clock
from tuner.core.study import (
    Event,
    IllegalStateError,
    Lease,
    LeaseLostError,
    Study,
    StudyState,
    UnknownStudyError,
)
from tuner.core.trial import Measured, Outcome, Trial


class FakeClock:
    """Stands still until it is told to move, or somebody sleeps."""

    def __init__(self) -> None:
        self._now = datetime(2026, 12, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._now.timestamp()

    def sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class MemoryStudies:
    """The tables in dictionaries; for tests of the core, which then need no database."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._studies: dict[str, Study] = {}
        self._tokens: dict[str, int] = {}
        self._leases: dict[str, Lease] = {}
        self._trials: dict[tuple[str, int], Trial] = {}
        self._starts: dict[str, tuple[str, Start]] = {}
        self._measurements: list[Measurement] = []
        self._confirmations: dict[tuple[str, int], Confirmation] = {}
        self._events: list[Event] = []

    def create(self, study: Study) -> None:
        with self._lock:
            if study.id in self._studies:
                raise ValueError(f"there is a study {study.id} already")
            self._studies[study.id] = study
            self._tokens[study.id] = 0

    def get(self, study_id: str) -> Study:
        with self._lock:
            if study_id not in self._studies:
                raise UnknownStudyError(f"there is no study {study_id!r}")
            return self._studies[study_id]

    def find(
        self, *, state: StudyState | None = None, text: str = "", limit: int = 50, before: str | None = None
    ) -> Sequence[Study]:
        with self._lock:
            found = [
                study
                for study in reversed(self._oldest_first())
                if state in (None, study.state)
                and any(text.lower() in part.lower() for part in (study.name, study.owner))
            ]
            if before is not None:
                last = _age(self.get(before))
                found = [study for study in found if _age(study) < last]
            return found[:limit]

    def unfinished(self, file_key: str) -> Study | None:
        with self._lock:
            newest_first = reversed(self._oldest_first())
            return next((s for s in newest_first if s.file_key == file_key and not s.state.ended), None)

    def group(self, group: str) -> Sequence[Study]:
        with self._lock:
            return [study for study in self._oldest_first() if study.group == group]

    def claim(self, owner: str, *, ttl_s: float, study_id: str | None = None) -> Lease | None:
        with self._lock:
            for study in self._oldest_first():
                if study_id in (None, study.id) and not study.state.ended and not self._is_held(study.id):
                    self._tokens[study.id] += 1
                    return self._hold(study.id, owner, ttl_s)
            return None

    def heartbeat(self, lease: Lease, *, ttl_s: float) -> Lease:
        with self._lock:
            self._fence(lease)
            return self._hold(lease.study_id, lease.owner, ttl_s)

    def release(self, lease: Lease) -> None:
        with self._lock:
            self._fence(lease)
            del self._leases[lease.study_id]

    def set_state(self, lease: Lease, state: StudyState, reason: str = "") -> None:
        with self._lock:
            self._fence(lease)
            study = self.get(lease.study_id)
            if not study.state.may_become(state):
                raise IllegalStateError(f"study {study.id} is {study.state} and cannot become {state}")
            self._studies[study.id] = replace(study, state=state, reason=reason)

    def request_cancel(self, study_id: str) -> None:
        with self._lock:
            study = self.get(study_id)
            if study.state is StudyState.CANCELLED:
                return
            if study.state.ended:
                raise IllegalStateError(f"study {study_id} is {study.state} and cannot be cancelled")
            study = replace(study, cancel_requested=True)
            if study.state is StudyState.QUEUED and not self._is_held(study_id):
                self._leases.pop(study_id, None)
                study = replace(study, state=StudyState.CANCELLED, reason="cancelled before it began")
            self._studies[study_id] = study

    def add_trial(self, lease: Lease, trial: Trial) -> None:
        with self._lock:
            self._fence(lease)
            if any(t.number == trial.number or t.key == trial.key for t in self.trials(lease.study_id)):
                raise ValueError(f"trial {trial.number}, or a trial of candidate {trial.key}, is there already")
            self._trials[lease.study_id, trial.number] = trial

    def retry_trial(self, lease: Lease, number: int) -> None:
        with self._lock:
            trial = self._trial(lease, number)
            self._trials[lease.study_id, number] = replace(trial, attempts=trial.attempts + 1, outcome=None)

    def finish_trial(self, lease: Lease, number: int, outcome: Outcome) -> None:
        with self._lock:
            trial = self._trial(lease, number)
            if trial.outcome is not None:
                raise ValueError(f"trial {number} has an outcome already")
            self._trials[lease.study_id, number] = replace(trial, outcome=outcome)

    def trials(self, study_id: str, *, after: int = -1, limit: int | None = None) -> Sequence[Trial]:
        with self._lock:
            mine = [trial for (study, _), trial in sorted(self._trials.items(), key=_place) if study == study_id]
            page = [trial for trial in mine if trial.number > after][:limit]
            return [
                replace(trial, outcome=Measured(measurements=tuple(self._search_runs(study_id, trial))))
                if isinstance(trial.outcome, Measured)
                else trial
                for trial in page
            ]

    def open_start(self, lease: Lease, start: Start) -> None:
        with self._lock:
            self._fence(lease)
            if start.id in self._starts:
                raise ValueError(f"there is a start {start.id} already")
            if start.trial is not None:
                self._trial(lease, start.trial)
            self._starts[start.id] = (lease.study_id, start)

    def update_start(self, lease: Lease, start: Start) -> None:
        with self._lock:
            self._fence(lease)
            self._own(lease, start.id)
            self._starts[start.id] = (lease.study_id, start)

    def starts(self, study_id: str) -> Sequence[Start]:
        with self._lock:
            return [start for study, start in self._starts.values() if study == study_id]

    def add_measurement(self, lease: Lease, measurement: Measurement) -> None:
        with self._lock:
            self._fence(lease)
            self._own(lease, measurement.start_id)
            if any(_run(m) == _run(measurement) for m in self._measurements):
                raise ValueError(f"{_run(measurement)} is written already")
            for name, values in measurement.samples.items():
                if not all(map(math.isfinite, values)):
                    raise ValueError(f"sample {name!r} is not finite")
            self._measurements.append(measurement)

    def measurements(
        self, study_id: str, *, purpose: Purpose | None = None, start_id: str | None = None, trial: int | None = None
    ) -> Sequence[Measurement]:
        with self._lock:
            starts = {s.id for s in self.starts(study_id) if trial in (None, s.trial) and start_id in (None, s.id)}
            return [m for m in self._measurements if m.start_id in starts and purpose in (None, m.purpose)]

    def save_confirmation(self, lease: Lease, confirmation: Confirmation) -> None:
        with self._lock:
            self._fence(lease)
            self._confirmations[lease.study_id, confirmation.gpus] = confirmation

    def confirmations(self, study_id: str) -> Sequence[Confirmation]:
        with self._lock:
            return [c for (study, _), c in sorted(self._confirmations.items(), key=_place) if study == study_id]

    def add_event(self, study_id: str, kind: str, data: Mapping[str, object]) -> None:
        with self._lock:
            self.get(study_id)
            try:
                json.dumps(data, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"not strict JSON: {error}") from error
            event = Event(id=len(self._events) + 1, study_id=study_id, at=self._clock.now(), kind=kind, data=dict(data))
            self._events.append(event)

    def events(self, study_id: str, *, after: int = 0, limit: int = 500) -> Sequence[Event]:
        with self._lock:
            return [event for event in self._events if event.study_id == study_id and event.id > after][:limit]

    def _oldest_first(self) -> list[Study]:
        return sorted(self._studies.values(), key=_age)

    def _is_held(self, study_id: str) -> bool:
        lease = self._leases.get(study_id)
        return lease is not None and lease.expires_at > self._clock.now()

    def _hold(self, study_id: str, owner: str, ttl_s: float) -> Lease:
        expires_at = self._clock.now() + timedelta(seconds=ttl_s)
        lease = Lease(study_id=study_id, owner=owner, token=self._tokens[study_id], expires_at=expires_at)
        self._leases[study_id] = lease
        return lease

    def _fence(self, lease: Lease) -> None:
        held = self._leases.get(lease.study_id)
        if held is None or (held.owner, held.token) != (lease.owner, lease.token):
            raise LeaseLostError(f"{lease.owner!r} does not hold study {lease.study_id} any more")

    def _trial(self, lease: Lease, number: int) -> Trial:
        self._fence(lease)
        if (lease.study_id, number) not in self._trials:
            raise ValueError(f"study {lease.study_id} has no trial {number}")
        return self._trials[lease.study_id, number]

    def _own(self, lease: Lease, start_id: str) -> None:
        if start_id not in self._starts or self._starts[start_id][0] != lease.study_id:
            raise ValueError(f"study {lease.study_id} has no start {start_id}")

    def _search_runs(self, study_id: str, trial: Trial) -> Sequence[Measurement]:
        return self.measurements(study_id, purpose=Purpose.SEARCH, trial=trial.number)


def _age(study: Study) -> tuple[datetime, str]:
    return study.created_at, study.id


def _place(item: tuple[tuple[str, int], object]) -> tuple[str, int]:
    return item[0]


def _run(measurement: Measurement) -> tuple[str, str, Purpose, int]:
    return measurement.start_id, measurement.workload_key, measurement.purpose, measurement.repeat
