"""What a route reads for one answer. Knows the ports and the documents, no HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from api import documents
from api.ports import Ports
from api.problems import NotFoundError
from api.schemas import AuditPage, ComparisonDocument, StudyDocument, StudyPage, StudySummary, TrialDocument, TrialPage
from api.standing import Standings
from tuner.core.export import Files, Format, render
from tuner.core.measurement import Start
from tuner.core.study import Study, StudyState, UnknownStudyError
from tuner.core.study_file import StudyFileError
from tuner.core.use_cases import evidence_card, outlook, subject

LOG_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    ports: Ports
    standings: Standings

    def studies(self, *, state: StudyState | None, text: str, limit: int, cursor: str | None) -> StudyPage:
        try:
            found = self.ports.studies.find(state=state, text=text, limit=limit + 1, before=cursor)
        except UnknownStudyError as error:
            raise StudyFileError(f"cursor: {cursor!r} is not the end of a page") from error
        page = found[:limit]
        return StudyPage(studies=self.summaries(page), next=page[-1].id if len(found) > limit else None)

    def study(self, study_id: str) -> StudyDocument:
        study = self.ports.studies.get(study_id)
        return documents.study(self.summaries([study])[0], study)

    def summaries(self, studies: Sequence[Study]) -> list[StudySummary]:
        counts = self.ports.readings.counts([study.id for study in studies])
        return [
            documents.summary(
                study, counts[study.id], self.standings.best(study.id), self.ports.studies.confirmations(study.id)
            )
            for study in studies
        ]

    def trials(self, study_id: str, *, limit: int, cursor: int) -> TrialPage:
        study = self.ports.studies.get(study_id)
        found = self.ports.studies.trials(study.id, after=cursor, limit=limit + 1)
        page = [documents.trial(trial) for trial in found[:limit]]
        return TrialPage(trials=page, next=str(page[-1].number) if len(found) > limit else None)

    def trial(self, study_id: str, number: int) -> TrialDocument:
        study = self.ports.studies.get(study_id)
        found = self.ports.studies.trials(study.id, after=number - 1, limit=1)
        if not found or found[0].number != number:
            raise NotFoundError(f"study {study_id} has no trial {number}")
        measured = self.ports.studies.measurements(study.id, trial=number)
        return documents.trial_detail(found[0], self._starts(study_id, number), measured)

    def logs(self, study_id: str, number: int, *, last_bytes: int) -> str:
        """Of each start of the trial, oldest first, each under a line with its id. Raises NotFoundError for none."""
        text = self.log_tail(study_id, number, last_bytes=last_bytes)
        if not text:
            raise NotFoundError(f"trial {number} of study {study_id} has no log on this host")
        return text

    def log_tail(self, study_id: str, number: int, *, last_bytes: int) -> str:
        parts = []
        for start in self._starts(self.ports.studies.get(study_id).id, number):
            text = self.ports.read_log(start, last_bytes)
            if text is not None:
                parts.append(f"==> {start.id} ({start.purpose}, {start.ended or 'running'}) <==\n{text}")
        return "\n".join(parts)

    def _starts(self, study_id: str, number: int) -> Sequence[Start]:
        return self.ports.readings.starts_of(study_id, number)

    def comparison(self, study_id: str) -> ComparisonDocument:
        study = self.ports.studies.get(study_id)
        return documents.comparison(study, outlook(self.ports.studies, study))

    def config(
        self, study_id: str, format: Format | Literal["table"], *, gpus: int | None, allow_unvalidated: bool
    ) -> Files:
        if not isinstance(format, Format):
            return Files({"tiles.json": self.ports.table(study_id, allow_unvalidated)})
        study = self.ports.studies.get(study_id)
        return render(subject(self.ports.studies, study, gpus=gpus, allow_unvalidated=allow_unvalidated), format)

    def card(self, study_id: str, *, gpus: int | None) -> dict[str, object]:
        study = self.ports.studies.get(study_id)
        card = evidence_card(self.ports.studies, subject(self.ports.studies, study, gpus=gpus, allow_unvalidated=True))
        if card is None:
            raise NotFoundError(f"nothing was measured for a decision of study {study_id}")
        return card

    def audit(self, *, limit: int, cursor: int | None) -> AuditPage:
        found = self.ports.audit.entries(limit=limit + 1, before=cursor)
        page = [documents.audit(entry) for entry in found[:limit]]
        return AuditPage(entries=page, next=str(page[-1].id) if len(found) > limit else None)
