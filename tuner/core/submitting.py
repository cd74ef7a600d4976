"""Submit a study file once, however often it is sent, and cancel a study; each is in the audit log. Knows no HTTP."""

import contextlib
import hashlib
from dataclasses import dataclass, replace

from tuner.core.access import Actor, AuditEntry, KeyReusedError, Submission
from tuner.core.ports import Audit, Clock, Studies, Submissions
from tuner.core.study import Study, UnknownStudyError
from tuner.core.study_file import StudyFile
from tuner.core.use_cases import proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where changes are asked for."""

    studies: Studies
    submissions: Submissions
    audit: Audit
    clock: Clock


def submit(desk: Desk, file: StudyFile, actor: Actor, *, key: str | None = None, new: bool = False) -> list[Study]:
    """The studies of that file: unfinished ones of the same file, or new ones. With a key, the same ones each time.

    key: an Idempotency-Key, the actor's own.

    Raises:
        KeyReusedError: the key was sent with another file before.
    """
    wanted = [
        replace(study, owner=study.owner or actor.name) for study in proposed(file, desk.studies, desk.clock, new=new)
    ]
    if key is not None:
        kept = desk.submissions.keep(
            Submission(
                actor=actor.name,
                key=key,
                body_digest=_digest(file, new),
                study_ids=tuple(study.id for study in wanted),
                at=desk.clock.now(),
            )
        )
        if kept.body_digest != _digest(file, new):
            raise KeyReusedError("that Idempotency-Key was sent with another study before; send a new key")
        wanted = [replace(study, id=study_id) for study, study_id in zip(wanted, kept.study_ids, strict=True)]
    return [_created(desk, study, actor) for study in wanted]


def _digest(file: StudyFile, new: bool) -> str:
    return hashlib.sha256(f"{file.key} {new}".encode()).hexdigest()


def _created(desk: Desk, study: Study, actor: Actor) -> Study:
    with contextlib.suppress(UnknownStudyError):
        return desk.studies.get(study.id)
    _record(desk, actor, "submit", study.id, {"name": study.name, "file_key": study.file_key})
    try:
        desk.studies.create(study)
    except ValueError:  # the same request, sent twice, was faster
        return desk.studies.get(study.id)
    return study


def cancel(desk: Desk, study_id: str, actor: Actor) -> Study:
    """Ask for it; a study that runs is cancelled when its engines are gone.

    Raises:
        UnknownStudyError
        IllegalStateError: it has ended otherwise.
    """
    study = desk.studies.get(study_id)
    if not study.cancel_requested:
        _record(desk, actor, "cancel", study_id, {"state": study.state.value})
    desk.studies.request_cancel(study_id)
    return desk.studies.get(study_id)


def _record(desk: Desk, actor: Actor, action: str, subject: str, detail: dict[str, object]) -> None:
    """Before the change, so that none is missing; a change that was then refused has an entry too."""
    desk.audit.record(AuditEntry(at=desk.clock.now(), actor=actor.name, action=action, subject=subject, detail=detail))
