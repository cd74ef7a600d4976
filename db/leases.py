"""Who may write a study, and the check that stands before every write. Knows nothing of what is written.

A lease is one row for each study. A claim takes a free or expired one and raises its token; a write is allowed to
whoever shows the row's owner and token, and the row stays locked until that write is committed, so a claim comes
either before it, and the write is refused, or after it. Expiry alone takes nothing away: a worker that was slow, and
that nobody has replaced, goes on.
"""

from datetime import datetime, timedelta

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.orm import Session

from db.tables import LeaseRow, StudyRow
from tuner.core.study import Lease, LeaseLostError, StudyState

_FENCE = (
    select(LeaseRow.owner, LeaseRow.token)
    .where(LeaseRow.study_id == bindparam("study"))
    .with_for_update(of=LeaseRow, key_share=True)
)
UNENDED = tuple(state.value for state in StudyState if not state.ended)


def claim(session: Session, owner: str, *, now: datetime, ttl_s: float, study_id: str | None) -> Lease | None:
    """Take the oldest study that may be taken, or just `study_id`; None where there is none.

    Looking for any study, PostgreSQL passes over rows that another claim or write has locked; for a named one it
    waits, or a mere write to it would look like a holder. SQLite has one writer at a time.
    """
    query = (
        select(LeaseRow)
        .join(StudyRow, StudyRow.id == LeaseRow.study_id)
        .where(StudyRow.state.in_(UNENDED), or_(LeaseRow.owner.is_(None), LeaseRow.expires_at <= now))
        .order_by(StudyRow.created_at, StudyRow.id)
        .limit(1)
        .with_for_update(of=LeaseRow, key_share=True, skip_locked=study_id is None)
    )
    if study_id is not None:
        query = query.where(LeaseRow.study_id == study_id)
    while (row := session.scalars(query).one_or_none()) is not None:
        # PostgreSQL looks again at the row that it waited for, not at the study beside it: it may just have ended.
        state = session.scalars(select(StudyRow.state).where(StudyRow.id == row.study_id)).one()
        if state in UNENDED:
            row.owner, row.token, row.expires_at = owner, row.token + 1, now + timedelta(seconds=ttl_s)
            return Lease(study_id=row.study_id, owner=owner, token=row.token, expires_at=row.expires_at)
        session.expire_all()
    return None


def fence(session: Session, lease: Lease) -> None:
    """Lock the lease's row until the transaction ends. Columns, not an object: it stands before every write.

    Raises:
        LeaseLostError: it is not that owner's any more, or was taken again since.
    """
    found = session.execute(_FENCE, {"study": lease.study_id}).one_or_none()
    if found is None or (found.owner, found.token) != (lease.owner, lease.token):
        holder = "nobody" if found is None or found.owner is None else f"{found.owner!r}, token {found.token}"
        raise LeaseLostError(
            f"{lease.owner!r} does not hold study {lease.study_id} any more (token {lease.token}; {holder} does); "
            "nothing was written"
        )


def renew(session: Session, lease: Lease, *, now: datetime, ttl_s: float) -> Lease:
    """Raises LeaseLostError."""
    fence(session, lease)
    expires_at = now + timedelta(seconds=ttl_s)
    session.execute(update(LeaseRow).where(LeaseRow.study_id == lease.study_id).values(expires_at=expires_at))
    return Lease(study_id=lease.study_id, owner=lease.owner, token=lease.token, expires_at=expires_at)


def give_back(session: Session, lease: Lease) -> None:
    """Raises LeaseLostError."""
    fence(session, lease)
    row = lock(session, lease.study_id)
    assert row is not None
    free(row)


def free(row: LeaseRow) -> None:
    """Nobody holds it now; who held it can write no more, since the next claim's token differs."""
    row.owner, row.expires_at = None, None


def lock(session: Session, study_id: str) -> LeaseRow | None:
    """The row of that study, locked until the transaction ends; None where there is no such study."""
    return session.get(LeaseRow, study_id, with_for_update={"key_share": True}, populate_existing=True)


def is_held(row: LeaseRow, now: datetime) -> bool:
    return row.owner is not None and row.expires_at is not None and row.expires_at > now
