"""The application in this process, on an SQLite file of its own."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from api.app import create_app
from api.policy import Policy
from api.ports import Ports
from db.access import SqlAudit, SqlSubmissions, SqlTokens
from db.engine import open_database, upgrade
from db.errors import DatabaseError
from db.readings import SqlReadings
from db.sessions import Sessions
from db.studies import SqlStudies
from search_spaces.catalog import SPACES
from tests.fakes import FakeClock
from tuner.app.serve import examine, read_log, tuned_tiles
from tuner.core.access import Scope, make_token

ROOT = Path(__file__).parents[3]
EXAMPLE = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
SMALL: dict[str, Any] = {
    **EXAMPLE,
    "budget": {"trials": 4},
    "fix": {"tensor_parallel_size": 8},
    "workload": {**EXAMPLE["workload"], "context_tokens": [1]},
}


@pytest.fixture(scope="session")
def empty_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        engine = open_database(f"sqlite:///{path}")
        upgrade(engine)
        engine.dispose()
        yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """client: of the machine itself, without a token.   url: of the database."""

    client: TestClient
    ports: Ports
    engine: Engine
    url: str

    def token(self, scope: Scope, name: str = "") -> dict[str, str]:
        """Headers of a new token."""
        token, secret = make_token(name or scope.value, scope, self.ports.clock.now())
        self.ports.tokens.add(token)
        return {"Authorization": f"Bearer {secret}"}

    def submit(self, document: dict[str, Any] | None = None, **headers: str) -> str:
        answer = self.client.post("/v1/studies", json=document or SMALL, headers=headers)
        assert answer.status_code == 202, answer.text
        study: str = answer.json()["study"]
        return study


Serves = Callable[..., Service]


@pytest.fixture
def serves(tmp_path: Path, empty_file: Path) -> Iterator[Serves]:
    engines: list[Engine] = []

    def serves(**changes: Any) -> Service:
        shutil.copy(empty_file, tmp_path / "tuner.db")
        url = f"sqlite:///{tmp_path / 'tuner.db'}"
        engine = open_database(url)
        engines.append(engine)
        sessions, clock = Sessions(engine), FakeClock()
        parts: dict[str, Any] = {
            "studies": SqlStudies(engine, clock),
            "readings": SqlReadings(engine, sessions),
            "tokens": SqlTokens(sessions),
            "submissions": SqlSubmissions(sessions),
            "audit": SqlAudit(sessions),
            "clock": clock,
            "policy": Policy(),
            "examine": examine,
            "table": partial(tuned_tiles, SqlStudies(engine, clock)),
            "read_log": read_log,
            "spaces": tuple(SPACES),
            "always_ask": False,
            "unavailable": (DatabaseError,),
            "poll_s": 0.02,
            **changes,
        }
        ports = Ports(**parts)
        client = TestClient(create_app(ports), base_url="http://localhost", raise_server_exceptions=False)
        return Service(client=client, ports=ports, engine=engine, url=url)

    yield serves
    for engine in engines:
        engine.dispose()


@pytest.fixture
def service(serves: Serves) -> Service:
    return serves()
