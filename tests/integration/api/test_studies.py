"""Studies over HTTP: submitted once, listed page by page, cancelled, exported; every error a problem document."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import yaml

from search_spaces.gemm import SkinnyTile
from tests.contract.nouns import a_confirmation, a_measurement, a_start, a_trial
from tests.integration.api.conftest import SMALL, Serves, Service
from tuner.core.decision import DecisionKind
from tuner.core.measurement import FailureKind
from tuner.core.study import StudyState
from tuner.core.trial import Failed, Measured

TILES: dict[str, Any] = {
    "name": "tiles", "model": "moonshotai/Kimi-K3", "hardware": {"gpu": "H200"}, "space": "skinny_gemm",
    "evaluator": "recorded", "recording": "h200_skinny_gemm", "objective": {"minimize": "kernel_us"},
    "problems": [{"n": 1536, "k": 7168, "m": m} for m in (1, 2)], "budget": {"trials": 3},
}  # fmt: skip


def problem_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


def test_a_study_file_is_accepted_with_its_place(service: Service) -> None:
    answer = service.client.post("/v1/studies", json=SMALL)
    assert answer.status_code == 202
    study = answer.json()["study"]
    assert answer.headers["location"] == f"/v1/studies/{study}"
    found = service.client.get(answer.headers["location"]).json()
    assert found["state"] == "queued"
    assert found["owner"] == "local"
    assert found["file"]["budget"]["trials"] == 4


def test_yaml_is_read_as_json_is(service: Service) -> None:
    headers = {"content-type": "application/yaml; charset=utf-8"}
    answer = service.client.post("/v1/studies", content=yaml.safe_dump(SMALL), headers=headers)
    assert answer.status_code == 202
    assert answer.json()["study"] == service.submit(), "the same file is the same unfinished study"


def test_new_opens_another_study_of_the_same_file(service: Service) -> None:
    first = service.submit()
    again = service.client.post("/v1/studies?new=true", json=SMALL).json()["study"]
    assert again != first


def test_a_key_sent_again_gets_the_same_answer_even_for_a_new_study(service: Service) -> None:
    answers = [
        service.client.post("/v1/studies?new=true", json=SMALL, headers={"Idempotency-Key": "k1"}) for _ in range(3)
    ]
    assert len({(a.status_code, a.text, a.headers["location"]) for a in answers}) == 1
    assert len(service.client.get("/v1/studies").json()["studies"]) == 1


def test_a_key_sent_with_another_file_is_refused(service: Service) -> None:
    service.submit(**{"Idempotency-Key": "k1"})
    other = service.client.post("/v1/studies", json={**SMALL, "name": "other"}, headers={"Idempotency-Key": "k1"})
    assert problem_of(other, 422)["type"].endswith(":idempotency-key-reused")
    with_new = service.client.post("/v1/studies?new=true", json=SMALL, headers={"Idempotency-Key": "k1"})
    problem_of(with_new, 422)


def test_a_key_sent_by_many_at_once_opens_one_study(service: Service) -> None:
    def send(_: int) -> str:
        answer = service.client.post("/v1/studies?new=true", json=SMALL, headers={"Idempotency-Key": "k1"})
        assert answer.status_code == 202, answer.text
        return answer.text

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(send, range(16)))) == 1
    assert len(service.ports.studies.find()) == 1


def test_a_server_that_died_after_it_kept_the_key_opens_what_it_had_promised(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study's id is stored with the key before the study is."""
    studies = service.ports.studies
    create = studies.create
    monkeypatch.setattr(studies, "create", lambda _study: 1 / 0)
    died = service.client.post("/v1/studies", json=SMALL, headers={"Idempotency-Key": "k1"})
    problem_of(died, 500)
    promised = service.ports.audit.entries()[0].subject
    monkeypatch.setattr(studies, "create", create)
    assert service.submit(**{"Idempotency-Key": "k1"}) == promised


def test_a_space_that_is_not_there_is_said(service: Service) -> None:
    kernel = {
        "name": "tiles",
        "model": "moonshotai/Kimi-K3",
        "hardware": {"gpu": "GB300"},
        "space": "no_such_space",
        "evaluator": "kernel",
        "problems": [{"n": 1024, "k": 7168, "m": m} for m in (1, 2)],
        "objective": {"minimize": "step_time_ms"},
    }
    assert "no_such_space" in problem_of(service.client.post("/v1/studies", json=kernel), 422)["detail"]


def test_what_is_wrong_with_a_file_is_said_key_by_key(service: Service) -> None:
    wrong = {**SMALL, "objectiv": 1, "budget": {"trials": 0}}
    found = problem_of(service.client.post("/v1/studies", json=wrong), 422)
    assert found["type"] == "urn:tuner:problem:wrong-study-file"
    assert {error["key"] for error in found["errors"]} == {"objectiv", "budget.trials"}
    assert "did you mean 'objective'?" in str(found["errors"])


@pytest.mark.parametrize("media_type", ["application/json", "application/yaml"])
def test_a_body_that_is_nested_too_deeply_is_said_in_a_readers_words(service: Service, media_type: str) -> None:
    sent = service.client.post("/v1/studies", content=b"[" * 100_000, headers={"Content-Type": media_type})
    assert problem_of(sent, 400)["detail"] == "the body is nested too deeply"


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b'{"name": NaN}', 400),
        ("application/json", b"\xff\xfe{}", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b"[]", 422),
        ("application/json", b"", 400),
        ("application/yaml", b"a: [", 400),
        ("application/yaml", b"a: &x [1]\nb: *x\n", 400),
        ("application/yaml", b"\xff", 400),
        ("application/yaml", b"!!python/object/apply:os.system [id]", 400),
        ("application/yaml", b"", 422),
        ("text/plain", b"name: x", 415),
        ("", b"name: x", 415),
        ("application/yaml", b"x" * 1_000_001, 413),
    ],
)
def test_a_body_that_cannot_be_read_is_a_problem(service: Service, content_type: str, body: bytes, status: int) -> None:
    problem_of(service.client.post("/v1/studies", content=body, headers={"content-type": content_type}), status)
    assert service.ports.studies.find() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"options": {"seed": float("1e400")}}},
        {"name": "\ud800"},
        {"name": "a\u0000b"},
        {"engine": {"options": {"\ud800": 1}}},
        {"name": "x" * 201},
    ],
)
def test_what_a_table_cannot_hold_is_refused(service: Service, changes: dict[str, Any]) -> None:
    body = json.dumps({**SMALL, **changes})
    answer = service.client.post("/v1/studies", content=body, headers={"content-type": "application/json"})
    problem_of(answer, answer.status_code)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "漢字 🦙", "a'; DROP TABLE studies; --", "%00", "../.."])
def test_any_name_is_data(service: Service, name: str) -> None:
    study = service.submit({**SMALL, "name": name})
    assert service.client.get(f"/v1/studies/{study}").json()["name"] == name
    found = service.client.get("/v1/studies", params={"text": name[:4]}).json()["studies"]
    assert [one["study"] for one in found] == [study]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/studies/none", 404),
        ("GET", "/v1/studies/none/trials", 404),
        ("GET", "/v1/studies/none/events", 404),
        ("GET", "/v1/studies/none/config", 404),
        ("POST", "/v1/studies/none/cancel", 404),
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/studies", 405),
        ("GET", "/v1/studies/a%00b", 422),
        ("GET", "/v1/studies?limit=0", 422),
        ("GET", "/v1/studies?limit=x", 422),
        ("GET", "/v1/studies?state=lost", 422),
        ("GET", "/v1/studies?cursor=none", 422),
        ("GET", "/v1/studies?text=%00", 422),
        ("GET", "/v1/audit?cursor=99999999999999999999", 422),
    ],
)
def test_every_error_is_a_problem(service: Service, method: str, path: str, status: int) -> None:
    problem_of(service.client.request(method, path), status)


def test_a_bug_is_a_problem_that_says_nothing_of_the_inside(serves: Serves) -> None:
    def broken(_file: object) -> None:
        raise TypeError("the secret is 1234")

    found = problem_of(serves(examine=broken).client.post("/v1/studies", json=SMALL), 500)
    assert "1234" not in json.dumps(found)


def test_a_database_that_is_away_is_503_with_a_time_to_come_back(service: Service) -> None:
    with service.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE submissions")
    answer = service.client.post("/v1/studies", json=SMALL, headers={"Idempotency-Key": "k"})
    problem_of(answer, 503)
    assert answer.headers["retry-after"] == "5"


def test_studies_are_listed_page_by_page_without_gap_or_repeat(service: Service) -> None:
    made = [service.submit({**SMALL, "name": f"study {number}"}) for number in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = service.client.get("/v1/studies", params={"limit": 3, **cursor}).json()
        seen += [study["study"] for study in page["studies"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert sorted(seen) == sorted(made)
    assert len(seen) == 7


def test_a_queued_study_is_cancelled_at_once_and_an_ended_one_not(service: Service) -> None:
    study = service.submit()
    for _ in range(2):
        answer = service.client.post(f"/v1/studies/{study}/cancel")
        assert answer.status_code == 202
        assert answer.json()["state"] == "cancelled"
    other = service.submit({**SMALL, "name": "other"})
    lease = service.ports.studies.claim("w", ttl_s=20, study_id=other)
    assert lease is not None
    service.ports.studies.set_state(lease, StudyState.FAILED, "no engine")
    found = problem_of(service.client.post(f"/v1/studies/{other}/cancel"), 409)
    assert found["type"] == "urn:tuner:problem:illegal-state"


def test_a_running_study_says_cancelled_only_when_its_worker_does(service: Service) -> None:
    study = service.submit()
    lease = service.ports.studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    service.ports.studies.set_state(lease, StudyState.RUNNING)
    answer = service.client.post(f"/v1/studies/{study}/cancel").json()
    assert (answer["state"], answer["cancel_requested"]) == ("running", True)
    service.ports.studies.set_state(lease, StudyState.CANCELLED, "cancelled on request")
    assert service.client.get(f"/v1/studies/{study}").json()["state"] == "cancelled"


@pytest.fixture
def tried(service: Service) -> str:
    """A study with a baseline that was measured, a failure, a rejection and a trial that runs."""
    study = service.submit()
    studies = service.ports.studies
    lease = studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    for number in range(3):
        studies.add_trial(lease, a_trial(number, baseline=number == 0))
    start = a_start(0)
    studies.open_start(lease, start)
    studies.add_measurement(lease, a_measurement(start.id))
    studies.finish_trial(lease, 0, Measured(measurements=()))
    studies.finish_trial(lease, 1, Failed(kind=FailureKind.CRASHED, sentence="it crashed", evidence="x" * 2_000_000))
    studies.add_event(study, "trial_finished", {"trial": 0, "gpus": 1, "ratio": 1.0, "feasible": True})
    studies.add_event(study, "trial_finished", {"trial": 7, "gpus": 1, "ratio": 1.5, "feasible": False})
    return study


def test_trials_are_counted_and_paged_and_the_best_feasible_one_is_named(service: Service, tried: str) -> None:
    contest = service.client.get(f"/v1/studies/{tried}").json()["contests"][0]
    assert contest["trials"] == {"running": 1, "rejected": 0, "failed": 1, "measured": 1}
    assert contest["best"] == {"trial": 0, "ratio": 1.0}
    page = service.client.get(f"/v1/studies/{tried}/trials?limit=2").json()
    rest = service.client.get(f"/v1/studies/{tried}/trials", params={"cursor": page["next"]}).json()
    trials = page["trials"] + rest["trials"]
    assert [(t["number"], t["outcome"]) for t in trials] == [(0, "measured"), (1, "failed"), (2, "running")]
    assert rest["next"] is None
    assert trials[0]["metrics"]["c1-ctx1"]["ttft_p99_ms"] == pytest.approx(0.3)
    assert trials[1]["kind"] == "crashed"
    assert len(json.dumps(page)) < 10_000, "evidence is with the trial, not in the list"


def test_a_better_trial_after_the_first_look_is_seen(service: Service, tried: str) -> None:
    service.client.get(f"/v1/studies/{tried}")
    service.ports.studies.add_event(tried, "trial_finished", {"trial": 8, "gpus": 1, "ratio": 1.2, "feasible": True})
    best = service.client.get(f"/v1/studies/{tried}").json()["contests"][0]["best"]
    assert best == {"trial": 8, "ratio": 1.2}


def test_one_trial_has_its_starts_samples_and_evidence(service: Service, tried: str) -> None:
    measured = service.client.get(f"/v1/studies/{tried}/trials/0").json()
    start = measured["starts"][0]
    assert start["fingerprint"]["versions"] == {"vllm": "0.32.0"}
    assert start["measurements"][0]["samples"]["ttft_ms"] == [1.5, 2.0, 1 / 3]
    assert len(service.client.get(f"/v1/studies/{tried}/trials/1").json()["evidence"]) == 2_000_000
    problem_of(service.client.get(f"/v1/studies/{tried}/trials/9"), 404)


def test_logs_are_those_of_this_hosts_runs_only(serves: Serves, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_RUNS", str(tmp_path / "runs"))
    service = serves()
    study = service.submit()
    studies = service.ports.studies
    lease = studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log").write_text(f"hf_{'x' * 34} 0123456789")
    (tmp_path / "secret").write_text("not a log")
    for number, path in enumerate(("runs/log", "secret", "runs/../secret", "runs/gone")):
        studies.add_trial(lease, a_trial(number))
        studies.open_start(lease, a_start(number, log_path=str(tmp_path / path)))
    answer = service.client.get(f"/v1/studies/{study}/trials/0/logs?last_bytes=4")
    assert answer.text.splitlines()[-1] == "6789"
    assert service.client.get(f"/v1/studies/{study}/trials/0/logs").text.splitlines()[-1] == "[token] 0123456789"
    for number in (1, 2, 3):
        problem_of(service.client.get(f"/v1/studies/{study}/trials/{number}/logs"), 404)


def test_nothing_is_exported_before_something_was_decided(service: Service, tried: str) -> None:
    found = problem_of(service.client.get(f"/v1/studies/{tried}/config"), 409)
    assert found["type"] == "urn:tuner:problem:nothing-to-export"


@pytest.mark.parametrize(
    ("format", "media_type"),
    [("vllm", "application/yaml"), ("json", "application/json"), ("cli", "text/x-shellscript")],
)
def test_a_validated_configuration_is_exported_in_each_format(service: Service, format: str, media_type: str) -> None:
    study = service.submit()
    studies = service.ports.studies
    lease = studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    confirmation = a_confirmation(1, decided=True)
    for number, key in enumerate(("a" * 16, "b" * 16)):
        studies.add_trial(lease, replace(a_trial(number, baseline=number == 0), key=key))
    studies.save_confirmation(lease, confirmation)
    answer = service.client.get(f"/v1/studies/{study}/config", params={"format": format})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(media_type)
    assert "Validated" in answer.text
    decision = service.client.get(f"/v1/studies/{study}").json()["contests"][0]["decision"]
    assert (decision["kind"], decision["gain"]) == ("validated", 0.12)


def test_a_groups_tiles_are_one_table_that_says_that_nothing_was_measured(service: Service) -> None:
    answer = service.client.post("/v1/studies", json=TILES)
    assert answer.status_code == 202, answer.text
    studies = service.ports.studies
    (first, second) = studies.find(limit=10)
    assert first.group == second.group is not None
    url, asked = f"/v1/studies/{first.group}/config", {"format": "table"}
    problem_of(service.client.get(url, params=asked), 409)
    for study in (first, second):
        lease = studies.claim("w", ttl_s=20, study_id=study.id)
        assert lease is not None
        for number, (key, size) in enumerate((("a" * 16, 64), ("b" * 16, 128))):
            tile = SkinnyTile(block_size=size, outputs_per_block=2)
            studies.add_trial(lease, replace(a_trial(number, baseline=number == 0), key=key, candidate=tile))
        confirmation = a_confirmation(1, decided=True)
        assert confirmation.decision is not None
        decision = replace(confirmation.decision, kind=DecisionKind.NOT_MEASURED)
        studies.save_confirmation(lease, replace(confirmation, decision=decision))
    problem_of(service.client.get(url, params=asked), 409)
    answer = service.client.get(url, params={**asked, "allow_unvalidated": True})
    assert answer.status_code == 200, answer.text
    table = answer.json()
    assert table["status"] == "not_measured"
    assert [(tile["m"], tile["tile"]["block_size"]) for tile in table["tiles"]] == [(1, 128), (2, 128)]


def test_what_has_no_tiles_is_no_table(service: Service, tried: str) -> None:
    found = problem_of(service.client.get(f"/v1/studies/{tried}/config", params={"format": "table"}), 422)
    assert "is of no kernel" in found["detail"]
    problem_of(service.client.get("/v1/studies/none/config", params={"format": "table"}), 404)
    problem_of(service.client.get(f"/v1/studies/{tried}/config", params={"format": "chairs"}), 422)


def test_a_trial_that_fell_back_to_stock_kernels_says_so(service: Service) -> None:
    study = service.submit()
    studies = service.ports.studies
    lease = studies.claim("w", ttl_s=20, study_id=study)
    assert lease is not None
    for number, share in enumerate((0.94, 0.96)):
        studies.add_trial(lease, a_trial(number))
        start = a_start(number)
        studies.open_start(lease, start)
        studies.add_measurement(lease, replace(a_measurement(start.id), metrics={"specialized_share": share}))
        studies.finish_trial(lease, number, Measured(measurements=()))
    found = service.client.get(f"/v1/studies/{study}/trials").json()["trials"]
    assert [trial["fell_back"] for trial in found] == [True, False]


def test_the_comparison_holds_each_gpu_count_against_its_own_baseline(service: Service, tried: str) -> None:
    found = service.client.get(f"/v1/studies/{tried}/comparison").json()
    assert [contest["gpus"] for contest in found["contests"]] == [1]
    assert found["contests"][0]["baseline"]["trial"] == 0


def test_spaces_health_readiness_and_figures_need_no_token(service: Service) -> None:
    service.submit()
    assert "kimi_k3_gb300" in service.client.get("/v1/spaces").json()["spaces"]
    assert service.client.get("/healthz").json() == {"status": "alive"}
    assert service.client.get("/readyz").json() == {"status": "ready"}
    text = service.client.get("/metrics").text
    assert 'tuner_studies{state="queued"} 1.0' in text
    assert "tuner_queue_age_seconds" in text


def test_a_database_of_another_version_is_not_ready(service: Service) -> None:
    with service.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tuner_revision SET version_num = '0001'")
        connection.commit()
    problem_of(service.client.get("/readyz"), 503)
