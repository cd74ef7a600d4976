"""The pages: each reads what REST reads and renders a template. Errors are pages too."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlencode

import jinja2
from anyio.to_thread import run_sync
from fastapi import APIRouter, Form, Header, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from api import documents
from api.auth import PortsOf, UnauthorizedError
from api.events import follow
from api.ports import Ports
from api.reading import LOG_BYTES as WHOLE_LOG_BYTES
from api.reading import Reading
from api.routes import Gpus, Number, ReadingOf, StudyPath, get_config
from api.schemas import StudyDocument
from api.ui import assets, figures, tiles, views
from api.ui.rows import ALL_OUTCOMES, ORDERS, ROWS, Order, outcomes_of, page_of, rows_of
from api.ui.visitors import COOKIE, Changing, Looking
from tuner.core.access import digest_of
from tuner.core.apart import apart
from tuner.core.decision import DecisionKind
from tuner.core.export import Format
from tuner.core.study import Study, StudyState
from tuner.core.submitting import cancel
from tuner.core.trial import Trial
from tuner.core.use_cases import outlook

LOG_BYTES = 16_384
AT_ONCE = 500  # trials of a study whose page has its figures in it; with more they follow
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

router = APIRouter(include_in_schema=False)

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("api.ui"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.globals.update(
    decisions=views.DECISIONS, origins=views.ORIGINS, states=views.STATES, words=views.words, number=views.number,
    percent=views.percent, unit=views.unit, moment=views.moment, short=views.short, clip=views.clip,
)  # fmt: skip


def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(f"{name}.html").render(values), status_code=status, headers=SECURITY)


def error_page(status: int, detail: str) -> HTMLResponse:
    return page("error", status, title=HTTPStatus(status).phrase, detail=detail)


@router.get("/")
def root() -> RedirectResponse:
    return RedirectResponse("/ui/")


@router.get("/ui/static/{path:path}")
def static(request: Request, path: str) -> Response:
    return assets.answer(path, request.headers.get("if-none-match", ""))


@router.get("/ui/")
def studies(
    reading: ReadingOf,
    actor: Looking,
    state: StudyState | None = None,
    text: Annotated[str, Query(max_length=200)] = "",
    cursor: Annotated[str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}$")] = None,
) -> HTMLResponse:
    found = reading.studies(state=state, text=text, limit=ROWS, cursor=cursor)
    asked = {"text": text, **({"state": state.value} if state else {})}
    following = urlencode({**asked, "cursor": found.next}) if found.next else ""
    return page(
        "studies", actor=actor, studies=found.studies, following=following, state=state, text=text,
        all_states=list(StudyState), live=any(not s.state.ended for s in found.studies),
        here="/ui/?" + urlencode({**asked, **({"cursor": cursor} if cursor else {})}),
    )  # fmt: skip


@router.get("/ui/studies/{study_id}")
def study(
    request: Request,
    reading: ReadingOf,
    ports: PortsOf,
    actor: Looking,
    study_id: StudyPath,
    outcome: Annotated[str, Query(pattern=r"^[a-z_]{0,32}$")] = "",
    order: Order = Order.NUMBER,
    after: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> HTMLResponse:
    document = reading.study(study_id)
    study = ports.studies.get(study_id)
    confirmed = {c.gpus: c for c in ports.studies.confirmations(study_id)}
    plots = {
        gpus: [
            (
                comparison,
                views.pairs(comparison.ratios, comparison.lower, comparison.upper, study.file.confirm.min_gain),
            )
            for comparison in c.decision.comparisons
        ]
        for gpus, c in confirmed.items()
        if c.decision is not None
    }
    total = sum(sum(contest.trials.model_dump().values()) for contest in document.contests)
    later = total if total > AT_ONCE else 0
    if later and order is Order.NUMBER and not outcome:
        first = ports.studies.trials(study_id, limit=ROWS)
        shown = ports.studies.trials(study_id, after=after - 1, limit=ROWS) if after else first
        rows, compared = page_of(study_id, shown, after, total), compared_of(ports, document, first)
    else:
        compared = ports.studies.trials(study_id)
        ratios = {t.trial: t.ratio for t in figures.told(ports, study_id)} if order is Order.BEST else {}
        rows = rows_of(study_id, compared, ratios, outcome, order, after)
    drawn = {} if later else figures.drawn(ports, study, compared)
    return page(
        "study", actor=actor, study=document, plots=plots, later=later, group=group_of(reading, study),
        comparison=documents.comparison(study, outlook(ports.studies, study, compared)),
        checks={gpus: views.checks(c.quality) for gpus, c in confirmed.items()},
        why_not={c.gpus: why_no_export(c.decision.kind if c.decision else None) for c in document.contests},
        objective=study.file.objective.metric, live=not document.state.ended, **drawn,
        rows=rows, outcomes=ALL_OUTCOMES if later else outcomes_of(compared), outcome=outcome, order=order,
        orders=ORDERS, here=f"{request.url.path}?{request.url.query}", stream=f"/ui/studies/{study_id}/events",
    )  # fmt: skip


def group_of(reading: Reading, study: Study) -> tiles.Group | None:
    if study.group is None:
        return None
    members = reading.ports.studies.group(study.group)
    return tiles.group([(summary, one.file) for summary, one in zip(reading.summaries(members), members, strict=True)])


def compared_of(ports: Ports, study: StudyDocument, first: Sequence[Trial]) -> Sequence[Trial]:
    """Baseline and best of every GPU count, without the trials between them; all trials where that does not find them.

    first: of the study's trials, its baselines as a rule among them; the best so far is known without reading one.
    """
    if {trial.gpus for trial in first if trial.baseline} != {contest.gpus for contest in study.contests}:
        return ports.studies.trials(study.study)
    best = [contest.best.trial for contest in study.contests if contest.best]
    found = {trial.number: trial for trial in first}
    found |= {t.number: t for n in best for t in ports.studies.trials(study.study, after=n - 1, limit=1)}
    return [found[number] for number in sorted(found)]


@router.get("/ui/studies/{study_id}/figures")
def study_figures(reading: ReadingOf, ports: PortsOf, actor: Looking, study_id: StudyPath) -> HTMLResponse:
    """What must read every trial: on its own where they are many, so that the study's page is there at once."""
    study, trials = ports.studies.get(study_id), ports.studies.trials(study_id)
    return page(
        "study_figures", actor=actor, study=reading.study(study_id), objective=study.file.objective.metric,
        **figures.drawn(ports, study, trials),
    )  # fmt: skip


@router.get("/ui/studies/{study_id}/events")
async def stream(
    ports: PortsOf, _: Looking, study_id: StudyPath, last_event_id: Annotated[int, Header(ge=0, le=2**63 - 1)] = 0
) -> Response:
    """The same stream as REST's, for a browser's cookie; what had happened when the page was made is left out."""
    return await run_sync(follow, ports, study_id, last_event_id)


def why_no_export(kind: DecisionKind | None) -> str:
    """Empty where the decision has something to export."""
    if kind in (DecisionKind.VALIDATED, DecisionKind.NO_VALIDATED_IMPROVEMENT):
        return ""
    return "nothing is decided yet" if kind is None else "nothing measured and confirmed"


@router.get("/ui/studies/{study_id}/trials/{number}")
def trial(reading: ReadingOf, actor: Looking, study_id: StudyPath, number: Number) -> HTMLResponse:
    found = reading.trial(study_id, number)
    log = reading.log_tail(study_id, number, last_bytes=LOG_BYTES)
    return page(
        "trial", actor=actor, study=reading.study(study_id), trial=found, log=log, live=found.outcome == "running",
        here=f"/ui/studies/{study_id}/trials/{number}",
    )  # fmt: skip


@router.get("/ui/compare")
def compare(
    reading: ReadingOf, ports: PortsOf, actor: Looking, ids: Annotated[list[str], Query(min_length=2, max_length=6)]
) -> HTMLResponse:
    found = [ports.studies.get(study_id) for study_id in ids]
    starts = {one.id: ports.studies.starts(one.id) for one in found}
    first = found[0]
    reasons = [(other, apart(first.file, other.file, starts[first.id], starts[other.id])) for other in found[1:]]
    return page(
        "compare", actor=actor, studies=[reading.study(one.id) for one in found], apart=reasons,
        comparisons=[reading.comparison(one.id) for one in found], live=False,
    )  # fmt: skip


@router.get("/ui/studies/{study_id}/config")
def config(reading: ReadingOf, _: Looking, study_id: StudyPath, format: Format, gpus: Gpus = None) -> Response:
    return get_config(reading, _, study_id, format, gpus)


@router.get("/ui/studies/{study_id}/card")
def card(reading: ReadingOf, _: Looking, study_id: StudyPath, gpus: Gpus = None) -> dict[str, Any]:
    return reading.card(study_id, gpus=gpus)


@router.get("/ui/studies/{study_id}/trials/{number}/logs")
def logs(reading: ReadingOf, _: Looking, study_id: StudyPath, number: Number) -> PlainTextResponse:
    return PlainTextResponse(reading.logs(study_id, number, last_bytes=WHOLE_LOG_BYTES))


@router.post("/ui/studies/{study_id}/cancel")
def cancel_study(ports: PortsOf, actor: Changing, study_id: StudyPath) -> RedirectResponse:
    cancel(ports.desk, study_id, actor)
    return RedirectResponse(f"/ui/studies/{study_id}", status_code=303)


@router.get("/ui/sign-in")
def sign_in_form() -> HTMLResponse:
    return page("sign_in", wrong=False)


@router.post("/ui/sign-in", response_model=None)
def sign_in(request: Request, ports: PortsOf, token: Annotated[str, Form(max_length=500)]) -> Response:
    if ports.tokens.find(digest_of(token.strip())) is None:
        return page("sign_in", 401, wrong=True)
    answer = RedirectResponse("/ui/", status_code=303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token.strip(), httponly=True, samesite="strict", secure=secure, path="/ui")
    return answer


@router.post("/ui/sign-out")
def sign_out() -> RedirectResponse:
    answer = RedirectResponse("/ui/sign-in", status_code=303)
    answer.delete_cookie(COOKIE, path="/ui")
    return answer


def for_a_reader(error: Exception, status: int, detail: str) -> Response:
    """What a browser gets where REST answers with a problem."""
    if isinstance(error, UnauthorizedError):
        return RedirectResponse("/ui/sign-in", status_code=303)
    return error_page(status, detail)
