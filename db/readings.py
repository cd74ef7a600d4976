"""The port `Readings` on SQLAlchemy: counts and narrow reads for pages and metrics."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Engine, func, select

from db import convert
from db.engine import is_current
from db.errors import DatabaseError
from db.sessions import Sessions
from db.tables import EventRow, StartRow, StudyRow, TrialRow
from tuner.core.measurement import Start
from tuner.core.ports import Census
from tuner.core.study import StudyState

RUNNING = "running"  # of a trial without an outcome


class SqlReadings:
    def __init__(self, engine: Engine, sessions: Sessions) -> None:
        self._engine = engine
        self._sessions = sessions

    def counts(self, study_ids: Sequence[str]) -> Mapping[str, Mapping[int, Mapping[str, int]]]:
        found: dict[str, dict[int, dict[str, int]]] = {study_id: {} for study_id in study_ids}
        query = (
            select(TrialRow.study_id, TrialRow.gpus, TrialRow.outcome_kind, func.count())
            .where(TrialRow.study_id.in_(study_ids))
            .group_by(TrialRow.study_id, TrialRow.gpus, TrialRow.outcome_kind)
        )
        with self._sessions.reading() as session:
            for study_id, gpus, outcome, count in session.execute(query):
                found[study_id].setdefault(gpus, {})[outcome or RUNNING] = count
        return found

    def told(self, study_id: str, kind: str, *, after: int = 0) -> Sequence[tuple[int, Mapping[str, object]]]:
        query = (
            select(EventRow.id, EventRow.data)
            .where(EventRow.study_id == study_id, EventRow.id > after, EventRow.kind == kind)
            .order_by(EventRow.id)
        )
        with self._sessions.reading() as session:
            return [(number, data) for number, data in session.execute(query)]

    def starts_of(self, study_id: str, trial: int) -> Sequence[Start]:
        query = select(StartRow).where(StartRow.study_id == study_id, StartRow.trial == trial)
        with self._sessions.reading() as session:
            return [convert.start_of(row) for row in session.scalars(query.order_by(StartRow.sequence))]

    def census(self) -> Census:
        studies = select(StudyRow.state, func.count()).group_by(StudyRow.state)
        trials = select(TrialRow.outcome_kind, func.count()).group_by(TrialRow.outcome_kind)
        held = (
            select(StartRow.ended, func.count(), func.sum(StartRow.held_s))
            .where(StartRow.held_s.is_not(None), StartRow.ended.is_not(None))
            .group_by(StartRow.ended)
        )
        ready = select(func.count(), func.sum(StartRow.ready_s)).where(StartRow.ready_s.is_not(None))
        oldest = select(func.min(StudyRow.created_at)).where(StudyRow.state == StudyState.QUEUED.value)
        with self._sessions.reading() as session:
            number, seconds = session.execute(ready).one()
            return Census(
                studies=dict(session.execute(studies).all()),
                trials={outcome or RUNNING: count for outcome, count in session.execute(trials)},
                held_s={ended or "": (count, total or 0.0) for ended, count, total in session.execute(held)},
                ready=(number, seconds or 0.0),
                oldest_queued_at=session.scalar(oldest),
            )

    def is_ready(self) -> bool:
        try:
            return is_current(self._engine)
        except DatabaseError:
            return False
