"""Studies and trials: each route parses, calls one use case and returns. Status codes are in `problems`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from api import documents
from api.auth import Admin, PortsOf, Reader, Writer
from api.body import LIMIT_BYTES, BodyTooLargeError, read_study_file
from api.problems import responses
from api.reading import LOG_BYTES, Reading
from api.schemas import (
    AuditPage,
    ComparisonDocument,
    Me,
    SpaceList,
    StudyDocument,
    StudyPage,
    Submitted,
    TrialDocument,
    TrialPage,
)
from tuner.core.export import Format
from tuner.core.study import StudyState
from tuner.core.study_file import with_dataset
from tuner.core.submitting import cancel, submit

router = APIRouter(prefix="/v1")

StudyPath = Annotated[str, Path(pattern=r"^[0-9A-Za-z_-]{1,64}$", description="A study's id.", examples=["5f0c9a1e"])]
Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="A trial's number, from 0.", examples=[0])]
Limit = Annotated[int, Query(ge=1, le=200, description="Entries on one page.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Sent again with the same file within a week, the answer is the same and nothing is opened twice.",
    ),
]
Gpus = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Whose decision; the largest GPU count's without.")]


def reading_of(request: Request) -> Reading:
    reading: Reading = request.app.state.reading
    return reading


ReadingOf = Annotated[Reading, Depends(reading_of)]

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A study file, as `tuner run` reads it.",
        "content": {
            media_type: {"schema": {"$ref": "#/components/schemas/StudyFile"}}
            for media_type in ("application/json", "application/yaml")
        },
    }
}


async def body_of(request: Request) -> bytes:
    """Raises BodyTooLargeError as soon as it is."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LIMIT_BYTES:
            raise BodyTooLargeError(f"a study file has at most {LIMIT_BYTES} bytes")
    return bytes(body)


@router.post(
    "/studies",
    status_code=202,
    responses={202: {"headers": {"Location": {"schema": {"type": "string"}}}}, **responses(400, 413, 415)},
    openapi_extra=_BODY,
    tags=["studies"],
)
def submit_study(
    request: Request,
    response: Response,
    ports: PortsOf,
    actor: Writer,
    body: Annotated[bytes, Depends(body_of)],
    key: Key = None,
    new: Annotated[bool, Query(description="Open another study although one of this file is unfinished.")] = False,
) -> Submitted:
    """Queue the studies of a file. Without `new`, an unfinished study of the same file is the answer."""
    file = read_study_file(request.headers.get("content-type", ""), body)
    ports.policy.check(file)
    file = with_dataset(file)
    ports.examine(file)
    answer = documents.submitted(submit(ports.desk, file, actor, key=key, new=new))
    response.headers["Location"] = answer.studies[0].url
    return answer


@router.get("/studies", responses=responses(), tags=["studies"])
def list_studies(
    reading: ReadingOf,
    _: Reader,
    state: StudyState | None = None,
    text: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="Part of the name or owner.")
    ] = "",
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}$")] = None,
) -> StudyPage:
    """Newest first."""
    return reading.studies(state=state, text=text, limit=limit, cursor=cursor)


@router.get("/studies/{study_id}", responses=responses(404), tags=["studies"])
def get_study(reading: ReadingOf, _: Reader, study_id: StudyPath) -> StudyDocument:
    """State, counts, decisions and the study file."""
    return reading.study(study_id)


@router.post("/studies/{study_id}/cancel", status_code=202, responses=responses(404, 409), tags=["studies"])
def cancel_study(reading: ReadingOf, ports: PortsOf, actor: Writer, study_id: StudyPath) -> StudyDocument:
    """Ask for it. The state becomes `cancelled` when every engine of the study is gone."""
    cancel(ports.desk, study_id, actor)
    return reading.study(study_id)


@router.get("/studies/{study_id}/trials", responses=responses(404), tags=["trials"])
def list_trials(
    reading: ReadingOf,
    _: Reader,
    study_id: StudyPath,
    limit: Limit = 50,
    cursor: Annotated[int, Query(ge=-1, le=2**31 - 1, description="`next` of the page before.")] = -1,
) -> TrialPage:
    """In order of number."""
    return reading.trials(study_id, limit=limit, cursor=cursor)


@router.get("/studies/{study_id}/trials/{number}", responses=responses(404), tags=["trials"])
def get_trial(reading: ReadingOf, _: Reader, study_id: StudyPath, number: Number) -> TrialDocument:
    """With every start, its environment, and every measurement with raw samples."""
    return reading.trial(study_id, number)


@router.get(
    "/studies/{study_id}/trials/{number}/logs",
    response_class=PlainTextResponse,
    responses=responses(404),
    tags=["trials"],
)
def get_logs(
    reading: ReadingOf,
    _: Reader,
    study_id: StudyPath,
    number: Number,
    last_bytes: Annotated[int, Query(ge=1, le=LOG_BYTES, description="Of each start.")] = 65_536,
) -> PlainTextResponse:
    """The end of the engines' logs, where this host has them."""
    return PlainTextResponse(reading.logs(study_id, number, last_bytes=last_bytes))


@router.get("/studies/{study_id}/comparison", responses=responses(404), tags=["results"])
def get_comparison(reading: ReadingOf, _: Reader, study_id: StudyPath) -> ComparisonDocument:
    """The best of each GPU count against its own baseline, and the GPU counts side by side."""
    return reading.comparison(study_id)


@router.get(
    "/studies/{study_id}/config",
    response_class=Response,
    responses={
        200: {
            "content": {
                media_type: {"schema": {"type": "string"}} for media_type in ("application/yaml", "text/x-shellscript")
            }
            | {"application/json": {"schema": {"type": "object"}}}
        },
        **responses(404, 409),
    },
    tags=["results"],
)
def get_config(
    reading: ReadingOf,
    _: Reader,
    study_id: StudyPath,
    format: Annotated[
        Format | Literal["table"],
        Query(
            description="`json` holds options, environment, launch lines and evidence; `table` is a kernel study's "
            "tuned tiles, or with a group in place of the study those of all its studies."
        ),
    ] = Format.VLLM,
    gpus: Gpus = None,
    allow_unvalidated: Annotated[bool, Query(description="The best candidate although nothing was proved.")] = False,
) -> Response:
    """The configuration that was decided on. 409 while nothing is measured and confirmed."""
    files = reading.config(study_id, format, gpus=gpus, allow_unvalidated=allow_unvalidated)
    disposition = {"Content-Disposition": f'inline; filename="{files.main}"'}
    return Response(
        files.texts[files.main], media_type=_MEDIA_TYPES[files.main.rpartition(".")[2]], headers=disposition
    )


_MEDIA_TYPES = {"yaml": "application/yaml", "json": "application/json", "sh": "text/x-shellscript"}


@router.get("/studies/{study_id}/card", responses=responses(404, 409), tags=["results"])
def get_card(reading: ReadingOf, _: Reader, study_id: StudyPath, gpus: Gpus = None) -> dict[str, Any]:
    """The evidence card: every number of the decision with its raw samples; `tuner verify` recomputes it."""
    return reading.card(study_id, gpus=gpus)


@router.get("/spaces", responses=responses(), tags=["service"])
def list_spaces(ports: PortsOf, _: Reader) -> SpaceList:
    """The built-in spaces by name."""
    return SpaceList(spaces=list(ports.spaces))


@router.get("/me", responses=responses(), tags=["service"])
def get_me(actor: Reader) -> Me:
    """Whose token this is and what it may do."""
    return Me(name=actor.name, scope=actor.scope)


@router.get("/audit", responses=responses(), tags=["service"])
def list_audit(
    reading: ReadingOf,
    _: Admin,
    limit: Limit = 50,
    cursor: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> AuditPage:
    """Every change that was asked for, newest first."""
    return reading.audit(limit=limit, cursor=cursor)
