"""The service from the other side of the network: thin, typed by the service's own documents."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError

from tuner.app.errors import StoppedError, WrongInputError
from tuner.core.export import NothingToExportError

TIMEOUT_S = 30.0
SILENCE_S = 45.0  # of an event stream; the service says something every 10 s
RECONNECTS = 60  # in a row without an event between them
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """One event. id: 0 for the last one, `end`, which is not stored."""

    id: int
    kind: str
    data: dict[str, Any]


class Client:
    """Every method raises WrongInputError where the service refuses what was sent, NothingToExportError where there is
    nothing to export, StoppedError where it cannot be reached or fails."""

    def __init__(self, server: str, token: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self._server = server.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=self._server, headers=headers, timeout=TIMEOUT_S, transport=transport)
        except httpx.InvalidURL as error:
            raise WrongInputError(f"--server {server!r} is no URL: {error}") from error

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def submit(self, document: bytes, *, key: str, new: bool = False) -> dict[str, Any]:
        """document: a study file in YAML.   key: sent again with the same file, it opens nothing twice."""
        headers = {"Content-Type": "application/yaml", "Idempotency-Key": key}
        return self._json("POST", "/v1/studies", params={"new": new}, content=document, headers=headers, again=True)

    def studies(self, *, limit: int = 50, text: str = "") -> list[dict[str, Any]]:
        """Newest first, read page by page."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < limit:
            params = {"limit": min(200, limit - len(found)), "text": text, **({"cursor": cursor} if cursor else {})}
            page = self._json("GET", "/v1/studies", params=params)
            found += page["studies"]
            cursor = page["next"]
            if cursor is None:
                break
        return found

    def study(self, study_id: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/studies/{study_id}")

    def cancel(self, study_id: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/studies/{study_id}/cancel")

    def config(self, study_id: str, **query: str | int | bool) -> str:
        return self._request("GET", f"/v1/studies/{study_id}/config", params=query).text

    def watch(self, study_id: str, *, after: int = 0) -> Iterator[Told]:
        """Every event until the study has ended; a broken connection is taken up where it broke."""
        failures = 0
        while True:
            try:
                for told in self._stream(study_id, after):
                    failures = 0
                    after = told.id or after
                    yield told
                    if told.kind == "end":
                        return
            except (httpx.TransportError, _BusyError) as error:
                failures += 1
                if failures > RECONNECTS:
                    raise StoppedError(f"{self._server}: {error or type(error).__name__}") from error
            except _EverythingSeen:
                return
            time.sleep(PAUSE_S * random.uniform(0.5, 1.5))

    def _stream(self, study_id: str, after: int) -> Iterator[Told]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(after)} if after else {})}
        path, timeout = f"/v1/studies/{study_id}/events", httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                raise _EverythingSeen
            if response.is_error:
                response.read()
                self._refuse(response)
            try:
                yield from (_told(event) for event in EventSource(response).iter_sse() if event.data)  # not a heartbeat
            except SSEError as error:
                raise StoppedError(f"{self._server} does not speak as the service does: {error}") from error

    def _json(self, method: str, path: str, *, again: bool = False, **request: Any) -> dict[str, Any]:
        answer = self._request(method, path, again=again, **request)
        try:
            document = answer.json()
        except ValueError as error:
            raise StoppedError(f"{self._server} does not speak as the service does") from error
        assert isinstance(document, dict)
        return document

    def _request(self, method: str, path: str, *, again: bool = False, **request: Any) -> httpx.Response:
        """again: whether it may be sent a second time where it is not known what became of the first."""
        attempts = 4 if again or method == "GET" else 1
        for attempt in range(1, attempts + 1):
            try:
                response = self._http.request(method, path, **request)
                if response.is_error:
                    self._refuse(response)
                return response
            except (httpx.TransportError, _BusyError) as error:
                if attempt == attempts:
                    raise StoppedError(f"{self._server} cannot be reached: {error}") from error
                time.sleep(PAUSE_S * attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _refuse(self, response: httpx.Response) -> None:
        try:
            problem = response.json()
            sentence, kind = str(problem["detail"]), str(problem["type"]).rpartition(":")[2]
        except (ValueError, KeyError, TypeError):
            raise StoppedError(f"{self._server} answered {response.status_code} and no problem document") from None
        if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise _BusyError(sentence)
        if kind == "nothing-to-export":
            raise NothingToExportError(sentence)
        if response.is_server_error:
            raise StoppedError(sentence)
        raise WrongInputError(sentence)


class _BusyError(Exception):
    """503: the same request may be answered a little later."""


class _EverythingSeen(Exception):
    """204: the study has ended and there is nothing after the last event seen."""


def _told(event: ServerSentEvent) -> Told:
    return Told(int(event.id) if event.id and event.event != "end" else 0, event.event, json.loads(event.data))
