"""A service that listens, with a worker for predicted studies, and a Chromium that may reach nothing else."""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api.app import create_app
from api.ports import Ports
from tests.integration.api.conftest import SMALL
from tests.integration.api.test_worker import predicted
from tuner.app.clock import SystemClock
from tuner.app.serve import service_ports
from tuner.app.worker import Worker

sync_api = pytest.importorskip("playwright.sync_api")
AXE = Path(__file__).parent / "axe" / "axe.min.js"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--no-first-run",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str
    ports: Ports

    def submit(self, **changes: Any) -> str:
        answer = httpx.post(f"{self.url}/v1/studies", json={**SMALL, **changes})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["study"])


@contextlib.contextmanager
def serving(database_url: str) -> Iterator[Server]:
    with service_ports(database_url, always_ask=False) as ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = uvicorn.Config(
            create_app(ports), host="127.0.0.1", port=port, log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        uv = uvicorn.Server(config)
        thread = threading.Thread(target=uv.run, daemon=True)
        thread.start()
        while not uv.started:
            time.sleep(0.02)
        yield Server(url=f"http://localhost:{port}", ports=ports)
        uv.should_exit = True
        thread.join(20)


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path / 'tuner.db'}") as running:
        yield running


@pytest.fixture
def worker(server: Server) -> Iterator[threading.Event]:
    """Set what it yields and it starts; it ends with the test."""
    go, stop = threading.Event(), threading.Event()

    def run() -> None:
        go.wait()
        Worker(owner="w", studies=server.ports.studies, parts=_parts, stop=stop).run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield go
    stop.set()
    go.set()
    thread.join(30)


def _parts(file: Any, studies: Any, progress: Any) -> Any:
    from dataclasses import replace

    @contextlib.contextmanager
    def parts() -> Iterator[Any]:
        yield replace(predicted(file, studies, progress), clock=SystemClock())

    return parts()


@dataclass(slots=True)
class Seen:
    """What a page complained of, and whom it asked."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = chromium_path()
    if path is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def browser_page(chromium: Any, seen: Seen) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=False)
    page = watched(context, seen)
    yield page
    context.close()


def watched(context: Any, seen: Seen) -> Any:
    page = context.new_page()
    page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.hosts.add(httpx.URL(request.url).host))
    return page


def violations(page: Any) -> list[str]:
    """What axe-core finds serious or critical. Evaluated by the debugger, which the page's policy does not bind."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0].get('failureSummary', '')}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]
