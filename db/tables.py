"""The tables. Declarations only; `convert` knows what the rows mean, `migrations/` how the tables came to be.

JSON columns hold strict JSON (no NaN), written by the engine's own serialiser. Times are aware, in UTC.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime; SQLite has no such type, so there the text is UTC without saying so."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class AnyText(TypeDecorator[str]):
    """Text out of logs and exceptions: what a database cannot hold as text (NUL, half a character) becomes `?`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - theirs
        return value.replace("\0", "?").encode("utf-8", "replace").decode("utf-8") if value is not None else None


class Base(MappedAsDataclass, DeclarativeBase, kw_only=True):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy as it stands
        datetime: UtcDateTime(),
        float: Double(),
        Mapping[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(),
    }


Id = String(64)
Word = String(32)
Sequence = BigInteger().with_variant(Integer, "sqlite")


class StudyRow(Base):
    __tablename__ = "studies"
    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "state", "created_at"),
        Index(None, "file_key", "created_at"),
        Index(None, "group"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(AnyText)
    file: Mapped[Mapping[str, Any]]
    file_key: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(Word)
    group: Mapped[str | None] = mapped_column(Id)
    owner: Mapped[str] = mapped_column(AnyText)
    reason: Mapped[str] = mapped_column(AnyText)
    cancel_requested: Mapped[bool]


class LeaseRow(Base):
    """One for each study, made with it. owner, expires_at: None while nobody holds it. token: of the last claim, 0
    before the first; it never falls, so a claim can be told from every earlier one."""

    __tablename__ = "leases"

    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    token: Mapped[int]
    owner: Mapped[str | None] = mapped_column(AnyText, default=None)
    expires_at: Mapped[datetime | None] = mapped_column(default=None)


class TrialRow(Base):
    """outcome_kind: None while it runs. outcome: reasons or evidence; a measured one's numbers are in their table."""

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("study_id", "key"), Index(None, "study_id", "gpus", "outcome_kind"))

    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(AnyText)
    values: Mapped[Mapping[str, Any]]
    gpus: Mapped[int]
    baseline: Mapped[bool]
    attempts: Mapped[int]
    chosen_by: Mapped[str] = mapped_column(AnyText)
    outcome_kind: Mapped[str | None] = mapped_column(Word)
    outcome: Mapped[Mapping[str, Any] | None]


class StartRow(Base):
    __tablename__ = "starts"
    __table_args__ = (
        ForeignKeyConstraint(["study_id", "trial"], ["trials.study_id", "trials.number"]),
        UniqueConstraint("id"),
        Index(None, "study_id", "trial"),
    )

    sequence: Mapped[int] = mapped_column(Sequence, primary_key=True, init=False)
    id: Mapped[str] = mapped_column(Id)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    trial: Mapped[int | None]
    gpus: Mapped[int]
    candidate_key: Mapped[str] = mapped_column(Id)
    purpose: Mapped[str] = mapped_column(Word)
    fingerprint: Mapped[Mapping[str, Any]]
    opened_at: Mapped[datetime]
    process: Mapped[Mapping[str, Any] | None]
    ready_s: Mapped[float | None]
    held_s: Mapped[float | None]
    ended: Mapped[str | None] = mapped_column(Word)
    command: Mapped[list[str]]
    log_path: Mapped[str] = mapped_column(AnyText)
    slot: Mapped[int | None]
    excluded: Mapped[str] = mapped_column(AnyText)


class MeasurementRow(Base):
    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("start_id", "workload_key", "purpose", "repeat"),
        Index(None, "study_id", "purpose", "sequence"),
    )

    sequence: Mapped[int] = mapped_column(Sequence, primary_key=True, init=False)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    start_id: Mapped[str] = mapped_column(ForeignKey("starts.id"))
    workload_key: Mapped[str] = mapped_column(AnyText)
    purpose: Mapped[str] = mapped_column(Word)
    repeat: Mapped[int]
    origin: Mapped[str] = mapped_column(Word)
    metrics: Mapped[Mapping[str, Any]]
    missing: Mapped[Mapping[str, Any]]
    samples: Mapped[Mapping[str, Any]]
    seconds: Mapped[float]


class ConfirmationRow(Base):
    __tablename__ = "confirmations"

    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    gpus: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[Mapping[str, Any]]


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index(None, "study_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Sequence, primary_key=True, init=False)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(AnyText)
    data: Mapped[Mapping[str, Any]]


class TokenRow(Base):
    """digest: SHA-256 of the secret, which is kept nowhere."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("digest"),)

    name: Mapped[str] = mapped_column(Id, primary_key=True)
    scope: Mapped[str] = mapped_column(Word)
    digest: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime]


class SubmissionRow(Base):
    __tablename__ = "submissions"

    actor: Mapped[str] = mapped_column(Id, primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_digest: Mapped[str] = mapped_column(Id)
    study_ids: Mapped[list[str]]
    at: Mapped[datetime] = mapped_column(index=True)


class AuditRow(Base):
    """Rows are added and never changed."""

    __tablename__ = "audit"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(Sequence, primary_key=True, init=False)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(Id)
    action: Mapped[str] = mapped_column(Word)
    subject: Mapped[str] = mapped_column(Id)
    detail: Mapped[Mapping[str, Any]]


class CompiledKernelRow(Base):
    """Of no study: what a compiler says of a kernel is the same for all."""

    __tablename__ = "compiled_kernels"

    architecture: Mapped[str] = mapped_column(Word, primary_key=True)
    kernel_version: Mapped[str] = mapped_column(Id, primary_key=True)
    compiler: Mapped[str] = mapped_column(Id, primary_key=True)
    symbol: Mapped[str] = mapped_column(Id, primary_key=True)
    m: Mapped[int]
    kind: Mapped[str] = mapped_column(AnyText)
    values: Mapped[Mapping[str, Any]]
    compile_s: Mapped[float]
    registers: Mapped[int]
    local_bytes: Mapped[int]
    shared_bytes: Mapped[int]
    code_bytes: Mapped[int]
    refused: Mapped[str] = mapped_column(AnyText)
