"""The event stream: monotone ids, resumed after the last one seen, kept alive, ended with the study."""

import threading
import time
from dataclasses import replace

import httpx
import pytest
import uvicorn
from httpx_sse import EventSource

from api.app import create_app
from api.ports import Ports
from tests.integration.api.conftest import Service
from tuner.app.client import Client, Told
from tuner.core.study import Lease, StudyState


def started(service: Service) -> tuple[str, Lease]:
    study = service.submit()
    lease = service.ports.studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    service.ports.studies.set_state(lease, StudyState.RUNNING)
    return study, lease


def told(service: Service, study: str, after: int | None = None) -> list[tuple[str, str]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    answer = service.client.get(f"/v1/studies/{study}/events", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.partition(": ") for line in answer.text.splitlines()]
    fields = [(name, value) for name, _, value in lines if name in ("id", "event")]
    events: list[tuple[str, str]] = []
    number = ""
    for name, value in fields:
        if name == "id":
            number = value
        else:
            events.append((number, value))
            number = ""
    return events


def finish(service: Service, lease: Lease) -> None:
    service.ports.studies.set_state(lease, StudyState.DONE)
    service.ports.studies.add_event(lease.study_id, "study_done", {})


def test_every_event_comes_once_in_order_and_then_the_end(service: Service) -> None:
    study, lease = started(service)
    for number in range(1200):
        service.ports.studies.add_event(study, "trial_started", {"trial": number})
    finish(service, lease)
    events = told(service, study)
    assert [kind for _, kind in events] == ["trial_started"] * 1200 + ["study_done", "end"]
    ids = [int(number) for number, _ in events[:-1]]
    assert ids == sorted(set(ids))
    assert events[-1][0] == "", "the end has no id, so a browser does not resume after it"


def test_a_stream_resumes_after_the_last_event_seen(service: Service) -> None:
    study, lease = started(service)
    for _ in range(3):
        service.ports.studies.add_event(study, "x", {})
    finish(service, lease)
    all_of_them = told(service, study)
    second = int(all_of_them[1][0])
    assert told(service, study, after=second) == all_of_them[2:]


def test_a_browser_that_has_seen_everything_is_told_not_to_come_back(service: Service) -> None:
    study, lease = started(service)
    finish(service, lease)
    last = told(service, study)[0][0]
    answer = service.client.get(f"/v1/studies/{study}/events", headers={"Last-Event-ID": last})
    assert answer.status_code == 204


@pytest.mark.parametrize("last", ["-1", "x", "9" * 30])
def test_an_id_that_cannot_be_one_is_a_problem(service: Service, last: str) -> None:
    study, _ = started(service)
    answer = service.client.get(f"/v1/studies/{study}/events", headers={"Last-Event-ID": last})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


class Listening:
    """The application on a port of its own, to be stopped and started as a server is."""

    def __init__(self, ports: Ports, port: int = 0) -> None:
        config = uvicorn.Config(
            create_app(ports), host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_a_quiet_stream_says_that_it_is_alive(service: Service) -> None:
    study, _ = started(service)
    listening = Listening(replace(service.ports, heartbeat_s=0.05))
    try:
        with httpx.stream("GET", f"{listening.url}/v1/studies/{study}/events", timeout=5) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(": ping")
    finally:
        listening.stop()


def test_events_arrive_while_the_study_runs(service: Service) -> None:
    study, lease = started(service)
    listening = Listening(service.ports)
    try:
        with httpx.stream("GET", f"{listening.url}/v1/studies/{study}/events", timeout=5) as answer:
            events = EventSource(answer).iter_sse()
            service.ports.studies.add_event(study, "first", {"ratio": 1.5})
            assert next(events).event == "first"
            finish(service, lease)
            assert [event.event for event in events] == ["study_done", "end"]
    finally:
        listening.stop()


def test_a_client_goes_on_where_it_was_when_the_server_comes_back(service: Service) -> None:
    study, lease = started(service)
    studies = service.ports.studies
    listening = Listening(service.ports)
    port, seen = listening.port, []
    half_way = threading.Event()

    def watch() -> None:
        with Client(f"http://127.0.0.1:{port}") as client:
            for event in client.watch(study):
                seen.append(event)
                if len(seen) == 5:
                    half_way.set()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    for number in range(5):
        studies.add_event(study, "x", {"n": number})
    assert half_way.wait(10)
    listening.stop()
    for number in range(5, 10):
        studies.add_event(study, "x", {"n": number})
    finish(service, lease)
    again = Listening(service.ports, port)
    watching.join(20)
    again.stop()
    assert [event.data["n"] for event in seen if event.kind == "x"] == list(range(10))
    assert _kinds(seen)[-2:] == ["study_done", "end"]


def _kinds(seen: list[Told]) -> list[str]:
    return [event.kind for event in seen]
