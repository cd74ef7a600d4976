"""The ports `Tokens`, `Submissions` and `Audit` on SQLAlchemy: each method is one transaction."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError

from db.sessions import Sessions
from db.tables import AuditRow, SubmissionRow, TokenRow
from tuner.core.access import AccessToken, AuditEntry, Scope, Submission

KEPT = timedelta(days=7)  # a retry that comes later is a new request


class SqlTokens:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, token: AccessToken) -> None:
        try:
            with self._sessions.writing() as session:
                session.add(
                    TokenRow(name=token.name, scope=token.scope.value, digest=token.digest, created_at=token.created_at)
                )
        except IntegrityError as error:
            raise ValueError(f"there is a token named {token.name!r} already") from error

    def find(self, digest: str) -> AccessToken | None:
        with self._sessions.reading() as session:
            row = session.scalars(select(TokenRow).where(TokenRow.digest == digest)).one_or_none()
            return None if row is None else _token(row)

    def revoke(self, name: str) -> bool:
        with self._sessions.writing() as session:
            row = session.get(TokenRow, name)
            if row is not None:
                session.delete(row)
            return row is not None

    def all(self) -> Sequence[AccessToken]:
        with self._sessions.reading() as session:
            return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.name))]

    def any(self) -> bool:
        with self._sessions.reading() as session:
            return session.scalar(select(func.count()).select_from(TokenRow)) != 0


class SqlSubmissions:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def keep(self, submission: Submission) -> Submission:
        """Of two at once under one key, one is stored and both get that one."""
        try:
            with self._sessions.writing() as session:
                session.execute(delete(SubmissionRow).where(SubmissionRow.at < submission.at - KEPT))
                row = session.get(SubmissionRow, (submission.actor, submission.key))
                if row is not None:
                    return _submission(row)
                session.add(
                    SubmissionRow(
                        actor=submission.actor,
                        key=submission.key,
                        body_digest=submission.body_digest,
                        study_ids=list(submission.study_ids),
                        at=submission.at,
                    )
                )
                session.flush()
                return submission
        except IntegrityError:
            with self._sessions.reading() as session:
                return _submission(session.get_one(SubmissionRow, (submission.actor, submission.key)))


class SqlAudit:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def record(self, entry: AuditEntry) -> None:
        with self._sessions.writing() as session:
            session.add(
                AuditRow(
                    at=entry.at,
                    actor=entry.actor,
                    action=entry.action,
                    subject=entry.subject,
                    detail=dict(entry.detail),
                )
            )

    def entries(self, *, limit: int = 50, before: int | None = None) -> Sequence[AuditEntry]:
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        with self._sessions.reading() as session:
            return [
                AuditEntry(
                    id=row.id, at=row.at, actor=row.actor, action=row.action, subject=row.subject, detail=row.detail
                )
                for row in session.scalars(query)
            ]


def _token(row: TokenRow) -> AccessToken:
    return AccessToken(name=row.name, scope=Scope(row.scope), digest=row.digest, created_at=row.created_at)


def _submission(row: SubmissionRow) -> Submission:
    return Submission(
        actor=row.actor, key=row.key, body_digest=row.body_digest, study_ids=tuple(row.study_ids), at=row.at
    )
