"""The port `Studies` on SQLAlchemy: each method is one transaction. Rows become nouns in `convert`.

On SQLite reading transactions never wait, and writing ones queue (see `engine`). On PostgreSQL a writer locks its
study's lease row first and then its study row, always in that order.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import tenacity
from sqlalchemy import Engine, Update, and_, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from db import convert, leases
from db.engine import WRITING
from db.errors import explained, is_away
from db.tables import ConfirmationRow, EventRow, LeaseRow, MeasurementRow, StartRow, StudyRow, TrialRow
from tuner.core.decision import Confirmation
from tuner.core.measurement import Measurement, Purpose, Start
from tuner.core.ports import Clock
from tuner.core.study import Event, IllegalStateError, Lease, Study, StudyState, UnknownStudyError
from tuner.core.trial import Outcome, Trial


class SqlStudies:
    """Any method raises DatabaseError where the database says no.

    wait_s: how long a transaction that has not begun waits for a server that is away, as while it restarts. One that
    has begun is never repeated: whether its commit came through could not be known.
    stop: once set, nothing is waited for.
    """

    def __init__(
        self, engine: Engine, clock: Clock, *, wait_s: float = 0.0, stop: threading.Event | None = None
    ) -> None:
        stop = stop or threading.Event()
        self._url = engine.url
        self._clock = clock
        self._begin = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_away),
            wait=tenacity.wait_random(0.2, 0.5),
            stop=tenacity.stop_after_delay(wait_s) | tenacity.stop_when_event_set(stop),
            sleep=tenacity.sleep_using_event(stop),
            reraise=True,
        )
        self._reads = sessionmaker(engine)
        self._writes = sessionmaker(engine.execution_options(**WRITING), expire_on_commit=False)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        with explained(self._url), self._reads() as session:
            self._begin(session.connection)
            yield session

    @contextlib.contextmanager
    def _writing(self, lease: Lease | None = None) -> Iterator[Session]:
        """With a lease: nothing is written unless it is still good."""
        with explained(self._url), self._writes.begin() as session:
            self._begin(session.connection)
            if lease is not None:
                leases.fence(session, lease)
            yield session

    def create(self, study: Study) -> None:
        """Raises ValueError where a study has that id."""
        with self._writing() as session, _refused(f"there is a study {study.id} already"):
            session.add(convert.study_row(study))
            session.flush()
            session.add(LeaseRow(study_id=study.id, token=0))

    def get(self, study_id: str) -> Study:
        with self._reading() as session:
            return convert.study_of(_study(session, study_id))

    def find(
        self, *, state: StudyState | None = None, text: str = "", limit: int = 50, before: str | None = None
    ) -> Sequence[Study]:
        """`text`: in name or owner, case ignored (on SQLite that of ASCII letters).

        Raises UnknownStudyError for `before`."""
        query = select(StudyRow).order_by(StudyRow.created_at.desc(), StudyRow.id.desc()).limit(limit)
        if state is not None:
            query = query.where(StudyRow.state == state.value)
        if text:
            holds = (column.icontains(text, autoescape=True) for column in (StudyRow.name, StudyRow.owner))
            query = query.where(or_(*holds))
        with self._reading() as session:
            if before is not None:
                last = _study(session, before)
                same_time = and_(StudyRow.created_at == last.created_at, StudyRow.id < last.id)
                query = query.where(or_(StudyRow.created_at < last.created_at, same_time))
            return [convert.study_of(row) for row in session.scalars(query)]

    def unfinished(self, file_key: str) -> Study | None:
        query = (
            select(StudyRow)
            .where(StudyRow.file_key == file_key, StudyRow.state.in_(leases.UNENDED))
            .order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
            .limit(1)
        )
        with self._reading() as session:
            row = session.scalars(query).one_or_none()
            return None if row is None else convert.study_of(row)

    def group(self, group: str) -> Sequence[Study]:
        """In order of creation."""
        query = select(StudyRow).where(StudyRow.group == group).order_by(StudyRow.created_at, StudyRow.id)
        with self._reading() as session:
            return [convert.study_of(row) for row in session.scalars(query)]

    def claim(self, owner: str, *, ttl_s: float, study_id: str | None = None) -> Lease | None:
        with self._writing() as session:
            return leases.claim(session, owner, now=self._clock.now(), ttl_s=ttl_s, study_id=study_id)

    def heartbeat(self, lease: Lease, *, ttl_s: float) -> Lease:
        with self._writing() as session:
            return leases.renew(session, lease, now=self._clock.now(), ttl_s=ttl_s)

    def release(self, lease: Lease) -> None:
        with self._writing() as session:
            leases.give_back(session, lease)

    def set_state(self, lease: Lease, state: StudyState, reason: str = "") -> None:
        with self._writing(lease) as session:
            row = _study(session, lease.study_id, lock=True)
            if not StudyState(row.state).may_become(state):
                raise IllegalStateError(f"study {row.id} is {row.state} and cannot become {state}")
            row.state, row.reason = state.value, reason

    def request_cancel(self, study_id: str) -> None:
        """Asked for twice is asked for once. Raises UnknownStudyError; IllegalStateError where it is done or failed."""
        with self._writing() as session:
            lease = leases.lock(session, study_id)
            row = _study(session, study_id, lock=True)
            state = StudyState(row.state)
            if state is StudyState.CANCELLED:
                return
            if state.ended:
                raise IllegalStateError(f"study {study_id} is {state} and cannot be cancelled")
            row.cancel_requested = True
            if state is StudyState.QUEUED and lease is not None and not leases.is_held(lease, self._clock.now()):
                leases.free(lease)
                row.state, row.reason = StudyState.CANCELLED.value, "cancelled before it began"

    def add_trial(self, lease: Lease, trial: Trial) -> None:
        """Raises ValueError where the study has that number, or that candidate, already."""
        sentence = f"study {lease.study_id} has trial {trial.number}, or a trial of candidate {trial.key}, already"
        with self._writing(lease) as session, _refused(sentence):
            session.add(convert.trial_row(lease.study_id, trial))
            session.flush()

    def retry_trial(self, lease: Lease, number: int) -> None:
        """Raises ValueError where there is no such trial."""
        values = {"attempts": TrialRow.attempts + 1, "outcome_kind": None, "outcome": None}
        with self._writing(lease) as session:
            changed = update(TrialRow).where(TrialRow.study_id == lease.study_id, TrialRow.number == number)
            if _count(session, changed.values(values)) == 0:
                raise ValueError(f"study {lease.study_id} has no trial {number}")

    def finish_trial(self, lease: Lease, number: int, outcome: Outcome) -> None:
        """Raises ValueError where there is no such trial, or it has an outcome already."""
        kind, body = convert.outcome_columns(outcome)
        with self._writing(lease) as session:
            changed = update(TrialRow).where(
                TrialRow.study_id == lease.study_id, TrialRow.number == number, TrialRow.outcome_kind.is_(None)
            )
            if _count(session, changed.values(outcome_kind=kind, outcome=body)) == 0:
                raise ValueError(f"study {lease.study_id} has no trial {number} that is still without an outcome")

    def trials(self, study_id: str, *, after: int = -1, limit: int | None = None) -> Sequence[Trial]:
        query = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number > after).order_by(TrialRow.number)
        with self._reading() as session:
            rows = session.scalars(query.limit(limit)).all()
            if not rows:
                return []
            # Through the starts, whose index narrows to these trials: a page costs the same in a long study.
            runs = (
                select(StartRow.trial, MeasurementRow)
                .join(MeasurementRow, MeasurementRow.start_id == StartRow.id)
                .where(
                    StartRow.study_id == study_id,
                    StartRow.trial.between(rows[0].number, rows[-1].number),
                    MeasurementRow.purpose == Purpose.SEARCH.value,
                )
                .order_by(MeasurementRow.sequence)
            )
            measured: dict[int | None, list[Measurement]] = {}
            for number, row in session.execute(runs):
                measured.setdefault(number, []).append(convert.measurement_of(row))
            return [convert.trial_of(row, measured.get(row.number, ())) for row in rows]

    def open_start(self, lease: Lease, start: Start) -> None:
        """Raises ValueError where a start has that id, or there is no such trial."""
        sentence = f"there is a start {start.id} already, or study {lease.study_id} has no trial {start.trial}"
        with self._writing(lease) as session, _refused(sentence):
            session.add(convert.start_row(lease.study_id, start))
            session.flush()

    def update_start(self, lease: Lease, start: Start) -> None:
        """Raises ValueError where the study has no such start."""
        changed = update(StartRow).where(StartRow.id == start.id, StartRow.study_id == lease.study_id)
        with self._writing(lease) as session:
            if _count(session, changed.values(convert.start_columns(start))) == 0:
                raise ValueError(f"study {lease.study_id} has no start {start.id}")

    def starts(self, study_id: str) -> Sequence[Start]:
        """In order of opening."""
        query = select(StartRow).where(StartRow.study_id == study_id).order_by(StartRow.sequence)
        with self._reading() as session:
            return [convert.start_of(row) for row in session.scalars(query)]

    def add_measurement(self, lease: Lease, measurement: Measurement) -> None:
        """Raises ValueError where that run is written already, or the study has no such start."""
        m = measurement
        run = f"run {m.repeat} of {m.workload_key} for {m.purpose} in start {m.start_id}"
        with self._writing(lease) as session, _refused(f"{run} is written already"):
            owner = session.scalars(select(StartRow.study_id).where(StartRow.id == m.start_id)).one_or_none()
            if owner != lease.study_id:
                raise ValueError(f"study {lease.study_id} has no start {m.start_id}")
            session.add(convert.measurement_row(lease.study_id, m))
            session.flush()

    def measurements(
        self, study_id: str, *, purpose: Purpose | None = None, start_id: str | None = None, trial: int | None = None
    ) -> Sequence[Measurement]:
        query = select(MeasurementRow).order_by(MeasurementRow.sequence)
        if start_id is None and trial is None:
            query = query.where(MeasurementRow.study_id == study_id)
        else:  # through the starts alone, or SQLite walks the whole study in the order asked for
            query = query.join(StartRow, StartRow.id == MeasurementRow.start_id).where(StartRow.study_id == study_id)
        if start_id is not None:
            query = query.where(StartRow.id == start_id)
        if trial is not None:
            query = query.where(StartRow.trial == trial)
        if purpose is not None:
            query = query.where(MeasurementRow.purpose == purpose.value)
        with self._reading() as session:
            return [convert.measurement_of(row) for row in session.scalars(query)]

    def save_confirmation(self, lease: Lease, confirmation: Confirmation) -> None:
        with self._writing(lease) as session:
            session.merge(convert.confirmation_row(lease.study_id, confirmation))

    def confirmations(self, study_id: str) -> Sequence[Confirmation]:
        query = select(ConfirmationRow).where(ConfirmationRow.study_id == study_id).order_by(ConfirmationRow.gpus)
        with self._reading() as session:
            return [convert.confirmation_of(row) for row in session.scalars(query)]

    def add_event(self, study_id: str, kind: str, data: Mapping[str, object]) -> None:
        """Raises UnknownStudyError. The study's row is locked, so ids are in order of commit within a study and who
        asks for those after one misses none."""
        with self._writing() as session:
            _study(session, study_id, lock=True)
            session.add(convert.event_row(study_id, self._clock.now(), kind, data))

    def events(self, study_id: str, *, after: int = 0, limit: int = 500) -> Sequence[Event]:
        """In order of their ids."""
        query = select(EventRow).where(EventRow.study_id == study_id, EventRow.id > after)
        with self._reading() as session:
            return [convert.event_of(row) for row in session.scalars(query.order_by(EventRow.id).limit(limit))]


def _study(session: Session, study_id: str, *, lock: bool = False) -> StudyRow:
    """Raises UnknownStudyError."""
    row = session.get(StudyRow, study_id, with_for_update={"key_share": True} if lock else None)
    if row is None:
        raise UnknownStudyError(f"there is no study {study_id!r}")
    return row


def _count(session: Session, changed: Update) -> int:
    """Rows that it changed."""
    return session.connection().execute(changed).rowcount


@contextlib.contextmanager
def _refused(sentence: str) -> Iterator[None]:
    """Turn a broken constraint into a ValueError."""
    try:
        yield
    except IntegrityError as error:
        raise ValueError(sentence) from error
