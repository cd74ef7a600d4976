"""A study's events as they are written: server-sent events that resume after the last one seen."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from api.auth import PortsOf, Reader
from api.ports import Ports
from api.problems import responses
from api.routes import StudyPath
from tuner.core.study import Event

router = APIRouter(prefix="/v1")

PAGE = 100  # the first event is not kept waiting for many others
LAST_WORDS_S = 1.0  # a study's last event is written just after its last state


@router.get(
    "/studies/{study_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Until the study has ended: `id` grows, `event` is the kind, `data` is JSON; last an event "
            "`end` without an id. Comment lines keep the connection alive.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 7\nevent: trial_finished\ndata: {"trial":3,"outcome":"measured","ratio":1.04}\n\n',
                }
            },
        },
        204: {"description": "It has ended and everything was sent; do not connect again."},
        **responses(404),
    },
    tags=["studies"],
)
def stream_events(
    ports: PortsOf,
    _: Reader,
    study_id: StudyPath,
    last_event_id: Annotated[int, Header(ge=0, le=2**63 - 1, description="Send what came after this one.")] = 0,
) -> Response:
    """Follow a study. A browser's EventSource and `tuner watch` resume by themselves after a broken connection."""
    study = ports.studies.get(study_id)
    if last_event_id and study.state.ended and not ports.studies.events(study_id, after=last_event_id, limit=1):
        return Response(status_code=204)
    return EventSourceResponse(_stream(ports, study_id, last_event_id), ping=ports.heartbeat_s)


def follow(ports: Ports, study_id: str, after: int) -> Response:
    """From the event after that one, or, without one, from what happens next. Raises UnknownStudyError."""
    study = ports.studies.get(study_id)
    if not after:
        while events := ports.studies.events(study_id, after=after, limit=5000):
            after = events[-1].id
    elif study.state.ended and not ports.studies.events(study_id, after=after, limit=1):
        return Response(status_code=204)
    return EventSourceResponse(_stream(ports, study_id, after), ping=ports.heartbeat_s)


async def _stream(ports: Ports, study_id: str, after: int) -> AsyncIterator[ServerSentEvent]:
    quiet_s = 0.0
    while True:
        # The state first: what was written before it was read is in the events that are read next.
        study = await run_sync(ports.studies.get, study_id)
        events = await run_sync(partial(ports.studies.events, study_id, after=after, limit=PAGE))
        for event in events:
            after = event.id
            yield _message(event)
        if events:
            quiet_s = 0.0
            continue
        if study.state.ended and quiet_s >= LAST_WORDS_S:
            yield ServerSentEvent(event="end", data=_json({"state": study.state, "reason": study.reason}))
            return
        await anyio.sleep(ports.poll_s)
        quiet_s += ports.poll_s


def _message(event: Event) -> ServerSentEvent:
    return ServerSentEvent(id=str(event.id), event=event.kind, data=_json({"at": event.at.isoformat(), **event.data}))


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
