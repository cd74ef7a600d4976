"""The dashboard as a browser without JavaScript gets it: what is shown, what is escaped, who may look."""

import math
import re
from dataclasses import replace

import pytest

from tests.contract.nouns import a_confirmation, a_measurement, a_start, a_study, a_trial
from tests.integration.api.conftest import SMALL, Serves, Service
from tuner.core.access import Scope
from tuner.core.measurement import FailureKind
from tuner.core.study import Study, StudyState
from tuner.core.trial import Failed, Measured

HOSTILE = "<script>alert(1)</script>"


def opened(service: Service, study: Study, *, decided: bool = False) -> str:
    """With a baseline that was measured, a trial that failed, and a decision where asked for."""
    studies = service.ports.studies
    studies.create(study)
    lease = studies.claim("w", ttl_s=60, study_id=study.id)
    assert lease is not None
    studies.set_state(lease, StudyState.RUNNING)
    start = a_start(0)
    studies.add_trial(lease, a_trial(0, baseline=True))
    studies.open_start(lease, start)
    studies.add_measurement(lease, a_measurement(start.id))
    studies.finish_trial(lease, 0, Measured(measurements=(a_measurement(start.id),)))
    studies.add_trial(lease, a_trial(1))
    sentence = f"{HOSTILE} " + "x" * 2_000_000
    studies.finish_trial(lease, 1, Failed(kind=FailureKind.CRASHED, sentence=sentence, evidence=HOSTILE))
    if decided:
        studies.save_confirmation(lease, a_confirmation(1, decided=True))
    return study.id


def text_of(service: Service, path: str, status: int = 200) -> str:
    answer = service.client.get(path, follow_redirects=False)
    assert answer.status_code == status, answer.text
    return answer.text


def test_the_root_leads_to_the_studies_and_an_empty_service_says_how_to_begin(service: Service) -> None:
    assert service.client.get("/", follow_redirects=False).headers["location"] == "/ui/"
    assert "tuner submit FILE" in text_of(service, "/ui/")


def test_a_study_is_listed_with_its_state_origin_and_decision_in_words(service: Service) -> None:
    service.submit()
    page = text_of(service, "/ui/")
    for word in (SMALL["name"], "queued", "predicted"):
        assert word in page
    assert SMALL["name"] not in text_of(service, "/ui/?state=done")
    assert SMALL["name"] not in text_of(service, "/ui/?text=another")


def test_names_reasons_and_evidence_are_text_and_never_markup(service: Service) -> None:
    study_id = opened(service, replace(a_study(), name=HOSTILE))
    for path in ("/ui/", f"/ui/studies/{study_id}", f"/ui/studies/{study_id}/trials/1"):
        page = text_of(service, path)
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page


def test_what_is_no_finite_number_is_a_dash() -> None:
    from api.ui.views import number, pairs

    assert [number(v) for v in (math.nan, math.inf, None, 1.23456, 12345.6)] == ["–", "–", "–", "1.235", "12,346"]
    assert pairs([1.0, math.nan], 0.0, 0.1, 0.01) is None
    assert pairs([], 0.0, 0.1, 0.01) is None


def test_every_dot_of_a_confirmation_lies_on_the_axis() -> None:
    from api.ui.views import pairs

    plot = pairs([0.9, 1.5, 2.7], -0.1, 1.7, 0.01)
    assert plot is not None
    places = [dot.x for dot in (*plot.dots, plot.low, plot.high, plot.one, plot.least)]
    assert all(0 <= x <= 100 for x in places)
    assert plot.dots[0].x < plot.one.x < plot.least.x < plot.dots[1].x


def test_exports_are_links_only_where_something_was_decided(service: Service) -> None:
    undecided = opened(service, replace(a_study(), id="undecided"))
    page = text_of(service, f"/ui/studies/{undecided}")
    assert "No export: nothing is decided yet" in page
    assert "/config?" not in page
    decided = opened(service, replace(a_study(), id="decided"), decided=True)
    page = text_of(service, f"/ui/studies/{decided}")
    link = re.search(r'href="([^"]*/config\?[^"]*)"', page)
    assert link is not None
    assert "vllm" in link.group(1)


def test_a_study_that_runs_is_cancelled_from_its_page_and_only_by_its_own_pages(service: Service) -> None:
    study_id = service.submit()
    path = f"/ui/studies/{study_id}/cancel"
    other = service.client.post(path, headers={"Sec-Fetch-Site": "cross-site"}, follow_redirects=False)
    assert other.status_code == 403
    assert not service.ports.studies.get(study_id).cancel_requested
    assert service.client.post(path, follow_redirects=False).status_code == 303
    assert service.ports.studies.get(study_id).cancel_requested


def test_with_tokens_a_browser_signs_in_and_a_reader_cannot_cancel(serves: Serves) -> None:
    service = serves(always_ask=True)
    study_id = opened(service, a_study())
    secret = service.token(Scope.READ)["Authorization"].removeprefix("Bearer ")
    client = service.client
    assert client.get("/ui/", follow_redirects=False).headers["location"] == "/ui/sign-in"
    assert "not known" in client.post("/ui/sign-in", data={"token": "wrong"}).text
    signed = client.post("/ui/sign-in", data={"token": secret}, follow_redirects=False)
    cookie = signed.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/ui/").status_code == 200
    denied = client.post(f"/ui/studies/{study_id}/cancel", follow_redirects=False)
    assert denied.status_code == 403
    assert "scope write" in denied.text
    client.post("/ui/sign-out")
    assert client.get("/ui/", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("path", ["/ui/studies/none", "/ui/studies/none/trials/0", "/ui/compare?ids=a&ids=b"])
def test_what_is_not_there_is_said_on_a_page(service: Service, path: str) -> None:
    assert "<h1>Not Found</h1>" in text_of(service, path, 404)


def test_studies_that_asked_different_questions_are_not_put_side_by_side(service: Service) -> None:
    first = service.submit()
    second = service.submit({**SMALL, "workload": {**SMALL["workload"], "output_tokens": 500}})
    same = service.submit({**SMALL, "budget": {"trials": 3}})
    page = text_of(service, f"/ui/compare?ids={first}&ids={second}")
    assert "cannot be compared" in page
    assert "output_tokens 1000 and 500" in page
    assert "cannot be compared" not in text_of(service, f"/ui/compare?ids={first}&ids={same}")


def test_pages_load_nothing_from_elsewhere_and_hold_no_script_themselves(service: Service) -> None:
    study_id = opened(service, a_study())
    for path in ("/ui/", f"/ui/studies/{study_id}", f"/ui/studies/{study_id}/trials/0"):
        answer = service.client.get(path)
        assert not re.search(r"<script(?![^>]* src=\"/ui/static/)", answer.text)
        assert not re.search(r"\son[a-z]+=|style=|<style", answer.text)
        assert not re.search(r'(src|href)="(https?:)?//', answer.text)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_files_are_sent_once_and_only_those_of_the_package(service: Service) -> None:
    for path in re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', text_of(service, f"/ui/studies/{service.submit()}")):
        answer = service.client.get(path)
        assert answer.status_code == 200
        again = service.client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("..%2f..%2fpages.py", "vendor/htmx.LICENSE", "none.js"):
        assert service.client.get(f"/ui/static/{path}").status_code == 404


def test_trials_are_filtered_ordered_and_paged_on_the_server(service: Service) -> None:
    study_id = opened(service, a_study())
    page = text_of(service, f"/ui/studies/{study_id}?outcome=crashed&order=newest")
    assert "1 to 1 of 1" in page
    assert "trials/1" in page
    assert "0 to 0 of 0" in text_of(service, f"/ui/studies/{study_id}?outcome=hung")
    text_of(service, f"/ui/studies/{study_id}?order=nonsense", 422)
