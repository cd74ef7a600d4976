"""The whole service as processes: `tuner serve`, `worker`, `submit`, `watch`, `cancel`, `list --server`, `token`."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.integration.api.conftest import ROOT, SMALL

pytestmark = pytest.mark.slow


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@dataclass(slots=True)
class Host:
    """A folder as a home, a database in it, and the processes started there."""

    home: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, **more: str) -> dict[str, str]:
        database = f"sqlite:///{self.home}/tuner.db"
        mine = {"PYTHONPATH": str(ROOT), "HOME": str(self.home), "TUNER_DB": database, "COLUMNS": "200"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
        return {**inherited, **mine, "TUNER_SERVER": self.url, **more}

    def tuner(self, *arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tuner.app.cli", *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment(**more), capture_output=True, text=True, timeout=120, check=False
        )

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        with (self.home / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.app.cli", *map(str, arguments)],
                env=self.environment(),
                stderr=log,
                cwd=self.home,
            )
        self.processes.append(process)
        return process

    def serve(self, *arguments: object) -> "subprocess.Popen[bytes]":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        process = self.start("serve", "--port", self.port, *arguments)
        until(lambda: self._ready(process))
        return process

    def _ready(self, process: "subprocess.Popen[bytes]") -> bool:
        assert process.poll() is None, (self.home / "serve.log").read_text()
        try:
            return httpx.get(f"{self.url}/readyz").is_success
        except httpx.TransportError:
            return False

    def file(self, **changes: Any) -> Path:
        path = self.home / "study.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **changes}))
        return path

    def state(self, study: str) -> str:
        state: str = httpx.get(f"{self.url}/v1/studies/{study}").json()["state"]
        return state

    def trials(self, study: str) -> int:
        contests = httpx.get(f"{self.url}/v1/studies/{study}").json()["contests"]
        return sum(sum(contest["trials"].values()) for contest in contests)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for process in host.processes:
        if process.poll() is None:
            process.terminate()
    for process in host.processes:
        process.wait(60)


def workers_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_one_command_serves_and_runs_what_is_submitted(host: Host) -> None:
    server = host.serve()
    done = host.tuner("submit", host.file(), "--watch")
    assert done.returncode == 0, done.stderr
    study = done.stdout.splitlines()[0]
    assert "study done" in done.stdout
    listed = host.tuner("list", "--server", host.url)
    assert study in listed.stdout
    assert "not_measured" in listed.stdout
    exported = httpx.get(f"{host.url}/v1/studies/{study}/config", params={"allow_unvalidated": True})
    assert yaml.safe_load(exported.text)["model"] == "moonshotai/Kimi-K3"
    children = workers_of(server)
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    assert [child for child in children if child.is_running()] == []


def test_a_running_study_is_cancelled_and_watching_it_exits_with_1(host: Host) -> None:
    host.serve()
    study = json.loads(host.tuner("submit", host.file(budget={"trials": 2000}), "--json").stdout)["study"]
    until(lambda: host.trials(study) > 3)
    assert host.tuner("cancel", study).returncode == 0
    watched = host.tuner("watch", study)
    assert watched.returncode == 1
    assert "is cancelled" in watched.stderr
    assert "engines gone" in watched.stdout
    assert host.state(study) == "cancelled"


def test_a_worker_that_is_told_to_stop_gives_its_study_back_and_the_next_one_ends_it(host: Host) -> None:
    host.serve("--no-worker")
    first = host.start("worker")
    study = host.tuner("submit", host.file(budget={"trials": 150})).stdout.strip()
    until(lambda: host.trials(study) > 3)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    with sqlite3.connect(host.home / "tuner.db") as tables:
        owner, token = tables.execute("SELECT owner, token FROM leases").fetchone()
    assert (owner, token) == (None, 1), "given back at once, not after it has run out"
    assert host.state(study) == "running"
    host.start("worker")
    until(lambda: host.state(study) == "done", 120)
    keys = [t["key"] for t in httpx.get(f"{host.url}/v1/studies/{study}/trials?limit=200").json()["trials"]]
    assert len(keys) == len(set(keys)) == 151


def test_a_worker_dies_with_its_server_even_with_kill_9(host: Host) -> None:
    server = host.serve()
    children = workers_of(server)
    assert children
    server.kill()
    server.wait()
    until(lambda: not any(child.is_running() for child in children), 30)


def test_a_worker_that_dies_is_started_again(host: Host) -> None:
    server = host.serve()
    worker = workers_of(server)[0]
    worker.kill()
    until(lambda: any(child.pid != worker.pid for child in workers_of(server)), 30)


def test_a_study_that_cannot_run_fails_with_its_reason_and_the_worker_lives_on(host: Host) -> None:
    host.serve()
    no_engine = host.file(name="no engine", evaluator="vllm", engine={"version": "0.33.0"})
    bad = host.tuner("submit", no_engine, "--watch")
    assert bad.returncode == 1, bad.stdout
    assert "engine.python" in bad.stderr
    assert host.tuner("submit", host.file(), "--watch").returncode == 0


def test_tokens_are_made_used_and_revoked(host: Host) -> None:
    host.serve("--no-worker")
    made = json.loads(host.tuner("token", "create", "alice", "--scope", "read", "--json").stdout)
    assert host.tuner("list", "--server", host.url).returncode == 2
    assert host.tuner("list", "--server", host.url, TUNER_TOKEN=made["token"]).returncode == 0
    refused = host.tuner("submit", host.file(), TUNER_TOKEN=made["token"])
    assert refused.returncode == 2
    assert "needs the scope write" in refused.stderr
    assert made["token"] not in host.tuner("token", "list").stdout
    assert host.tuner("token", "revoke", "alice").returncode == 0
    admin = json.loads(host.tuner("token", "create", "root", "--scope", "admin", "--json").stdout)
    audit = httpx.get(f"{host.url}/v1/audit", headers={"Authorization": f"Bearer {admin['token']}"}).json()
    changes = [(entry["actor"], entry["action"], entry["subject"]) for entry in audit["entries"]]
    assert changes == [
        ("cli", "token_create", "root"),
        ("cli", "token_revoke", "alice"),
        ("cli", "token_create", "alice"),
    ]
    assert host.tuner("token", "revoke", "alice").returncode == 2
    assert made["token"] not in (host.home / "serve.log").read_text()
    assert made["token"].encode() not in (host.home / "tuner.db").read_bytes()


def test_a_host_beyond_this_machine_is_refused_until_there_is_a_token(host: Host) -> None:
    refused = host.tuner("serve", "--host", "0.0.0.0", "--no-worker")
    assert refused.returncode == 2
    assert "listens on this machine only" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_port_that_is_taken_is_said_in_one_sentence(host: Host) -> None:
    host.serve("--no-worker")
    refused = host.tuner("serve", "--no-worker", "--port", host.port)
    assert refused.returncode == 1
    assert "is the port taken?" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["watch", "none"], 2, "there is no study 'none'"),
        (["cancel", "none"], 2, "there is no study 'none'"),
        (["cancel", "a b"], 2, "study_id"),
    ],
)
def test_what_the_service_refuses_is_said_in_its_words(
    host: Host, arguments: list[str], code: int, sentence: str
) -> None:
    host.serve("--no-worker")
    done = host.tuner(*arguments)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr


def test_a_server_that_is_not_there_is_said(host: Host) -> None:
    done = host.tuner("list", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    wrong = host.tuner("list", "--server", "http://[::1")
    assert wrong.returncode == 2, wrong.stderr
