"""Who may do what over HTTP, and what a study file may name when it comes from there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from api.policy import Policy
from tests.integration.api.conftest import ROOT, SMALL, Serves, Service
from tests.integration.api.test_studies import problem_of
from tuner.app.errors import WrongInputError
from tuner.app.serve import Address, refuse_open_doors
from tuner.core.access import Scope
from tuner.core.datasets import Facts
from tuner.core.study_file import StudyFileError, parse


def test_without_tokens_the_machine_itself_may_do_everything(service: Service) -> None:
    assert service.client.get("/v1/me").json() == {"name": "local", "scope": "admin"}


def test_without_tokens_another_hosts_name_is_refused(service: Service) -> None:
    """A page in a browser on this machine can point a name of its own at 127.0.0.1."""
    problem_of(service.client.get("/v1/studies", headers={"host": "evil.example"}), 403)


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 202)])
def test_without_tokens_a_page_of_another_site_cannot_post(service: Service, site: str, status: int) -> None:
    study = service.submit()
    answer = service.client.post(f"/v1/studies/{study}/cancel", headers={"sec-fetch-site": site})
    assert answer.status_code == status


def test_a_first_token_closes_the_door(service: Service) -> None:
    service.token(Scope.READ)
    answer = service.client.get("/v1/studies")
    problem_of(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_server_beyond_this_machine_always_asks(serves: Serves) -> None:
    problem_of(serves(always_ask=True).client.get("/v1/studies"), 401)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_a_server_without_tokens_refuses_to_listen_beyond_this_machine(
    service: Service, host: str, loopback: bool
) -> None:
    address = Address(host=host, port=1)
    if loopback:
        refuse_open_doors(address, service.ports.tokens)
        return
    with pytest.raises(WrongInputError, match=r"listens on this machine only; make one with `tuner token create"):
        refuse_open_doors(address, service.ports.tokens)
    service.token(Scope.READ)
    refuse_open_doors(address, service.ports.tokens)


@pytest.mark.parametrize("credentials", ["Bearer nothing", "Basic YTpi", "Bearer", "Bearer \x80"])
def test_a_token_that_is_not_known_is_refused(service: Service, credentials: str) -> None:
    service.token(Scope.ADMIN)
    headers = {"Authorization": credentials.encode("latin-1")}
    problem_of(service.client.get("/v1/me", headers=headers), 401)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scope", "statuses"),
    [(Scope.READ, [200, 403, 403]), (Scope.WRITE, [200, 202, 403]), (Scope.ADMIN, [200, 202, 200])],
)
def test_a_scope_reaches_as_far_as_it_says(service: Service, scope: Scope, statuses: list[int]) -> None:
    headers = service.token(scope)
    answers = [
        service.client.get("/v1/studies", headers=headers),
        service.client.post("/v1/studies", json=SMALL, headers=headers),
        service.client.get("/v1/audit", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == statuses


def test_every_route_that_shows_or_changes_studies_asks_for_a_token(service: Service) -> None:
    service.token(Scope.READ)
    document = service.client.get("/openapi.json").json()
    open_paths = set()
    for path, operations in document["paths"].items():
        for method in operations:
            answer = service.client.request(method, path.replace("{study_id}", "x").replace("{number}", "0"))
            if answer.status_code != 401:
                open_paths.add(path)
    assert open_paths == {"/healthz", "/readyz", "/metrics"}


def test_a_revoked_token_is_refused_at_once(service: Service) -> None:
    headers = service.token(Scope.READ, "bob")
    service.token(Scope.READ, "alice")
    assert service.client.get("/v1/me", headers=headers).json()["name"] == "bob"
    service.ports.tokens.revoke("bob")
    problem_of(service.client.get("/v1/me", headers=headers), 401)


def test_a_key_is_its_owners_own(service: Service) -> None:
    alice, bob = service.token(Scope.WRITE, "alice"), service.token(Scope.WRITE, "bob")
    key = {"Idempotency-Key": "1"}
    service.submit(**alice, **key)
    service.submit({**SMALL, "name": "bobs"}, **bob, **key)
    studies = service.client.get("/v1/studies", headers=bob).json()["studies"]
    assert {study["owner"] for study in studies} == {"alice", "bob"}


def test_every_change_is_in_the_audit_log_with_who_and_when(service: Service) -> None:
    alice, admin = service.token(Scope.WRITE, "alice"), service.token(Scope.ADMIN)
    study = service.submit(**alice)
    service.client.post(f"/v1/studies/{study}/cancel", headers=admin)
    entries = service.client.get("/v1/audit", headers=admin).json()["entries"]
    assert [(e["actor"], e["action"], e["subject"]) for e in entries] == [
        ("admin", "cancel", study),
        ("alice", "submit", study),
    ]
    assert entries[0]["at"] == "2026-12-01T00:00:00Z"


def test_no_answer_and_no_table_holds_a_secret(service: Service) -> None:
    headers = service.token(Scope.ADMIN)
    secret = headers["Authorization"].removeprefix("Bearer ")
    study = service.submit(**headers)
    paths = ("", "/trials", "/comparison")
    texts = [service.client.get(f"/v1/studies/{study}{path}", headers=headers).text for path in paths]
    texts += [service.client.get("/v1/audit", headers=headers).text, service.client.get("/metrics").text]
    assert not any(secret in text for text in texts)
    raw = service.engine.raw_connection()
    assert secret not in "\n".join(raw.driver_connection.iterdump())  # type: ignore[union-attr]
    raw.close()


PROMPTS = {"input_tokens": 512, "output_tokens": 64}
VLLM = {**SMALL, "evaluator": "vllm", "engine": {"version": "0.33.0"}}
RECORDED = {
    **yaml.safe_load((ROOT / "examples" / "recorded_skinny_gemm.yaml").read_text()),
    "workload": None,
    "fix": {},
    "engine": {},
    "recording": "/etc/passwd",
}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"engine": {"python": "/usr/bin/python3"}}, "engine.python"),
        ({"engine": {"arguments": ["--middleware", "evil.Thing"]}}, "engine.arguments"),
        ({"engine": {"environment": {"LD_PRELOAD": "/tmp/x.so"}}}, "engine.environment.LD_PRELOAD"),
        ({"engine": {"environment": {"HF_TOKEN": "hf_x"}}}, "engine.environment.HF_TOKEN"),
        ({"engine": {"environment": {"VLLM_PLUGINS": "x"}}}, "engine.environment.VLLM_PLUGINS"),
        ({"engine": {"trust_remote_code": True}}, "engine.trust_remote_code"),
        ({"engine": {"options": {"middleware": "evil.Thing"}}}, "engine.options.middleware"),
        ({"engine": {"options": {"trust-remote-code": True}}}, "engine.options.trust-remote-code"),
        ({"engine": {"options": {"worker-cls": "evil.Thing"}}}, "engine.options.worker-cls"),
        ({"engine": {"options": {"chat-template": "/etc/passwd"}}}, "engine.options.chat-template"),
        ({"engine": {"options": {"load-format": "../../x"}}}, "engine.options.load-format"),
        ({"engine": {"options": {"dtype": ["a", "/etc/passwd"]}}}, "engine.options.dtype"),
        ({"engine": {"options": {"compilation-config": {"inductor_passes": {}}}}}, "engine.options.compilation-config"),
        ({"engine": {"draft_models": {"dspark": "/etc"}}}, "engine.draft_models.dspark"),
        ({"model": "/etc/passwd"}, "model"),
        ({"model": "../model"}, "model"),
        ({"model": "a/b/c"}, "model"),
        ({"model": "https://evil.example/model"}, "model"),
        (RECORDED, "recording"),
        ({"workload": {**PROMPTS, "dataset": "/etc/passwd"}}, "workload.dataset"),
        ({"workload": {**PROMPTS, "dataset": {"sharegpt": "../chats.json"}}}, "workload.dataset"),
        ({"workload": {"dataset": {"trace": "/etc/passwd"}}}, "workload.dataset"),
        ({"space": {"knobs": {"tool_parser_plugin": ["/x.py"]}}}, "space.knobs.tool_parser_plugin"),
        ({"knobs": {"hf_config_path": ["x"]}}, "knobs.hf_config_path"),
        ({"candidates": [{"options.download_dir": "x"}]}, "candidates.0.options.download_dir"),
        ({"baseline": {"speculative_model": "/etc"}}, "baseline.speculative_model"),
        ({"space": {"knobs": {"seed": list(range(1000)), "max_num_seqs": list(range(1, 1000))}}}, "space"),
    ],
)
def test_a_study_from_the_network_cannot_name(service: Service, changes: dict[str, Any], key: str) -> None:
    document = {**VLLM, **changes}
    found = problem_of(service.client.post("/v1/studies", json=document), 422)
    assert key in [error["key"] for error in found["errors"]]
    assert service.ports.studies.find() == []


def test_paths_are_those_within_the_roots_wherever_links_and_dots_lead(tmp_path: Path) -> None:
    roots = tmp_path / "models"
    (roots / "good").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (roots / "link").symlink_to(tmp_path / "outside")
    (roots / "loop").symlink_to(roots / "loop")
    policy = Policy(roots=(roots,))
    policy.check(parse({**VLLM, "model": str(roots / "good")}))
    policy.check(parse({**VLLM, "model": "moonshotai/Kimi-K3"}))
    for path in ("link", "good/../../outside", "loop", "../models-too"):
        file = parse({**VLLM, "engine": {"draft_models": {"dspark": f"{roots}/{path}"}}})
        with pytest.raises(StudyFileError, match=r"dspark: a path must be absolute and lie in"):
            policy.check(file)


def test_a_data_set_in_the_services_folder_is_read_when_it_is_sent(serves: Serves, tmp_path: Path) -> None:
    """And one that is not there, or that a wrong line spoils, is the sender's mistake; what the sender claims of the
    file is not believed."""
    roots = tmp_path / "data"
    roots.mkdir()
    (roots / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 40)
    (roots / "spoilt.jsonl").write_text('{"prompt": "a"}\n{"text": "secret"}\n')
    (tmp_path / "outside.jsonl").write_text('{"prompt": "a"}\n' * 40)
    (roots / "link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    here = serves(policy=Policy(roots=(roots,)))

    def send(path: str, **claims: Any) -> Any:
        workload = {**PROMPTS, "dataset": {"prompts": path, **claims}}
        return here.client.post("/v1/studies", json={**VLLM, "workload": workload})

    for name, words in (
        ("nowhere.jsonl", "no such file"),
        ("spoilt.jsonl", "line 2: prompt is missing"),
        ("link.jsonl", "a path must be absolute and lie in"),
    ):
        (error,) = problem_of(send(str(roots / name)), 422)["errors"]
        assert error["key"] == "workload.dataset"
        assert words in error["message"]
        assert "secret" not in str(error)
    problem_of(send("data/prompts.jsonl"), 422)
    assert send(str(roots / "prompts.jsonl"), facts={"requests": 10**6}).status_code == 202
    (study,) = here.ports.studies.find()
    assert study.file.workload is not None
    assert study.file.workload.dataset is not None
    assert study.file.workload.dataset.facts == Facts(requests=40)


@pytest.mark.parametrize(
    ("quality", "sentence"),
    [
        ({"tasks_python": "/tmp/python"}, "quality.tasks_python: this service chooses the interpreter"),
        ({"tasks_folder": "/srv/data"}, "quality.tasks_folder: task files can run code of their own"),
    ],
)
def test_a_study_from_outside_cannot_bring_code_by_way_of_its_tasks(quality: dict[str, str], sentence: str) -> None:
    with pytest.raises(StudyFileError, match=sentence):
        Policy(roots=(Path("/srv/data"),)).check(parse({**VLLM, "quality": {"tasks": ["gsm8k"], **quality}}))
    with pytest.raises(StudyFileError, match=r"quality\.tasks\.0"):
        parse({**VLLM, "quality": {"tasks": ["/srv/data/evil.yaml"]}})
    Policy().check(parse({**VLLM, "quality": {"tasks": ["gsm8k"]}}))
    Policy(interpreters=("/tmp/python",)).check(parse({**VLLM, "quality": {"tasks_python": "/tmp/python"}}))


def test_an_administrators_settings_open_what_is_closed() -> None:
    policy = Policy(
        interpreters=("/opt/vllm/bin/python",),
        options=frozenset({"hf_overrides"}),
        variables=("MY_*",),
        trust_remote_code=True,
    )
    engine = {
        "python": "/opt/vllm/bin/python",
        "options": {"hf-overrides": "x"},
        "environment": {"MY_SWITCH": "1"},
        "trust_remote_code": True,
    }
    policy.check(parse({**VLLM, "engine": engine}))
    with pytest.raises(StudyFileError):
        Policy().check(parse({**VLLM, "engine": engine}))


def test_code_of_a_model_matters_only_where_an_engine_runs_it() -> None:
    Policy().check(parse({**SMALL, "engine": {"trust_remote_code": True}}))
