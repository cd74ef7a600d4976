"""Every error as application/problem+json (RFC 9457); the one table of status codes. Knows no route."""

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from api.auth import ForbiddenError, UnauthorizedError
from api.body import BodyError, BodyTooLargeError, MediaTypeError
from search_spaces.space import SpaceError
from tuner.core.acceptance import AcceptanceError
from tuner.core.access import KeyReusedError
from tuner.core.export import NothingToExportError
from tuner.core.study import IllegalStateError, UnknownStudyError
from tuner.core.study_file import StudyFileError
from tuner.core.vllm_args import RenderError

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger("api")

Handler = Callable[[Request, Exception], JSONResponse]


class NotFoundError(LookupError):
    """What was asked for is not there; the message says what."""


STATUS: Mapping[type[Exception], tuple[int, str]] = {
    BodyError: (400, "unreadable-body"),
    UnauthorizedError: (401, "unauthorized"),
    ForbiddenError: (403, "forbidden"),
    UnknownStudyError: (404, "unknown-study"),
    NotFoundError: (404, "not-found"),
    IllegalStateError: (409, "illegal-state"),
    NothingToExportError: (409, "nothing-to-export"),
    BodyTooLargeError: (413, "body-too-large"),
    MediaTypeError: (415, "media-type"),
    KeyReusedError: (422, "idempotency-key-reused"),
    StudyFileError: (422, "wrong-study-file"),
    SpaceError: (422, "wrong-space"),
    AcceptanceError: (422, "wrong-acceptance"),
    RenderError: (422, "not-renderable"),
}
UNAVAILABLE = (503, "unavailable")


class FieldProblem(BaseModel):
    """One key, header or parameter that is wrong."""

    key: str
    message: str


class Problem(BaseModel):
    """RFC 9457. `type` names the kind of problem and is stable; `detail` is a sentence for a person."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:tuner:problem:unknown-study",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "there is no study 'x'",
                }
            ]
        }
    )

    type: str
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    errors: list[FieldProblem] = []


def problem(
    status: int,
    slug: str,
    detail: str,
    *,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    body = Problem(
        type=f"urn:tuner:problem:{slug}" if slug else "about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_encodable(detail),
        errors=list(errors),
    )
    content = body.model_dump(mode="json", exclude_defaults=True)
    return JSONResponse(content, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def install(
    app: FastAPI,
    unavailable: tuple[type[Exception], ...],
    wrap: Callable[[Handler], Callable[[Request, Exception], Response]],
) -> None:
    """wrap: gives a handler's answer another form where a request asks for one."""
    for kind in STATUS:
        app.add_exception_handler(kind, wrap(_known))
    for kind in unavailable:
        app.add_exception_handler(kind, wrap(_unavailable))
    app.add_exception_handler(RequestValidationError, wrap(_invalid))
    app.add_exception_handler(HTTPException, wrap(_http))
    app.add_exception_handler(Exception, wrap(_bug))


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's OpenAPI entry; what any route may answer is among them."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({401, 403, 422, 500, 503, *statuses})
    }


def _known(_request: Request, error: Exception) -> JSONResponse:
    status, slug = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    lines = str(error).splitlines() if isinstance(error, StudyFileError) else []
    errors = [
        FieldProblem(key=_encodable(k), message=_encodable(m)) for k, _, m in (x.partition(": ") for x in lines) if m
    ]
    return problem(status, slug, str(error), errors=errors, headers=headers)


def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    _log.warning("unavailable: %s", error)
    return problem(*UNAVAILABLE, "the database cannot answer now; try again", headers={"Retry-After": "5"})


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [
        FieldProblem(key=_encodable(".".join(map(str, found["loc"]))), message=_encodable(found["msg"]))
        for found in error.errors()
    ]
    detail = "; ".join(f"{found.key}: {found.message}" for found in errors)
    return problem(422, "invalid-request", detail, errors=errors)


def _http(_request: Request, error: Exception) -> JSONResponse:
    """Unknown paths, wrong methods, bodies that are too large."""
    assert isinstance(error, HTTPException)
    return problem(error.status_code, "", str(error.detail), headers=error.headers)


def _bug(_request: Request, error: Exception) -> JSONResponse:
    _log.error("a bug", exc_info=error)
    return problem(500, "internal-error", f"{type(error).__name__}: this is a bug; the server's log has its trace")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
