"""The dashboard in a real Chromium: live, accessible, quiet, and asking nobody but its own host."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from api.ui.pages import AT_ONCE
from tests.browser.conftest import Seen, Server, violations, watched
from tests.browser.made import HOSTILE, proved
from tests.integration.test_cli import ROOT, tuner
from tuner.core.study import StudyState

EXAMPLE = ROOT / "examples" / "recorded_skinny_gemm.yaml"

pytestmark = pytest.mark.browser


def test_a_study_submitted_by_rest_is_watched_to_its_end_without_a_reload(
    server: Server, worker: threading.Event, browser_page: Any, seen: Seen
) -> None:
    study_id = server.submit()
    browser_page.goto(f"{server.url}/ui/studies/{study_id}")
    assert "queued" in browser_page.inner_text("main")
    browser_page.evaluate("window.never_reloaded = true")
    worker.set()
    browser_page.get_by_text("done", exact=False).first.wait_for(timeout=60_000)
    browser_page.locator("svg .seen, svg .best").first.wait_for(timeout=30_000)
    assert browser_page.evaluate("window.never_reloaded") is True
    assert server.ports.studies.get(study_id).state is StudyState.DONE
    assert seen.errors == []
    assert seen.hosts == {"localhost"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_is_accessible_quiet_and_as_wide_as_the_window(
    server: Server, chromium: Any, scheme: str, width: int, seen: Seen
) -> None:
    study_id = proved(server.ports.studies)
    other = server.submit()
    context = chromium.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = watched(context, seen)
    paths = (
        "/ui/", f"/ui/studies/{study_id}", f"/ui/studies/{other}", f"/ui/studies/{study_id}/trials/0",
        f"/ui/studies/{study_id}/trials/22", f"/ui/compare?ids={study_id}&ids={other}", "/ui/sign-in",
    )  # fmt: skip
    for path in paths:
        page.goto(server.url + path)
        assert violations(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    assert seen.errors == []
    assert seen.hosts == {"localhost"}
    context.close()


def test_a_proved_study_shows_its_evidence_and_exports_it(server: Server, browser_page: Any, seen: Seen) -> None:
    study_id = proved(server.ports.studies, name=HOSTILE)
    browser_page.goto(f"{server.url}/ui/studies/{study_id}")
    text = browser_page.inner_text("main")
    for said in (
        "validated",
        "Paired start ratios",
        "ratio to the baseline",
        "What each knob did",
        "Why trials gave no number",
        HOSTILE,
    ):
        assert said in text, said
    answer = browser_page.request.get(server.url + browser_page.get_by_text("vLLM YAML").get_attribute("href"))
    assert answer.status == 200
    assert "max-num-seqs: 8" in answer.text()
    browser_page.locator("select[name=outcome]").select_option("crashed")
    browser_page.get_by_role("button", name="Show").click()
    assert "1 to 2 of 2" in browser_page.inner_text("main")
    assert seen.errors == []


def test_a_study_is_cancelled_by_keyboard_and_nothing_is_exported(
    server: Server, browser_page: Any, seen: Seen
) -> None:
    study_id = server.submit()
    browser_page.goto(f"{server.url}/ui/studies/{study_id}")
    browser_page.get_by_role("button", name="Cancel the study").focus()
    browser_page.keyboard.press("Enter")
    browser_page.get_by_text("cancelled").first.wait_for()
    assert server.ports.studies.get(study_id).state is StudyState.CANCELLED
    assert seen.errors == []


def test_pages_work_without_javascript(server: Server, chromium: Any, seen: Seen) -> None:
    study_id = proved(server.ports.studies)
    context = chromium.new_context(java_script_enabled=False)
    page = watched(context, seen)
    page.goto(f"{server.url}/ui/")
    page.get_by_text("demo: a proved winner").click()
    assert page.locator("svg .best").count() > 0
    page.locator("#trials ~ div a").first.click()
    assert page.url.endswith(f"{study_id}/trials/0")
    context.close()


def test_a_long_study_is_there_at_once_and_its_figures_follow(server: Server, chromium: Any, seen: Seen) -> None:
    """With JavaScript they come by themselves, without it behind a link; the first trials are on the page itself."""
    study_id = proved(server.ports.studies, trials=AT_ONCE + 20)
    path = f"{server.url}/ui/studies/{study_id}"
    context, plain = chromium.new_context(), chromium.new_context(java_script_enabled=False)
    page, without = watched(context, seen), watched(plain, seen)
    without.goto(path)
    first = without.inner_text("main")
    assert "validated" in first
    assert f"1 to 50 of {AT_ONCE + 20}" in first
    assert "What each knob did" not in first
    without.get_by_text(f"Figures of all {AT_ONCE + 20} trials").click()
    assert "What each knob did" in without.inner_text("main")
    without.goto(f"{path}?after={AT_ONCE}")
    assert f"{AT_ONCE + 1} to {AT_ONCE + 20} of {AT_ONCE + 20}" in without.inner_text("main")
    without.goto(f"{path}?outcome=crashed&order=best")
    assert "1 to 2 of 2" in without.inner_text("main")
    page.goto(path)
    page.locator("#figures svg .best").first.wait_for()
    assert violations(page) == []
    assert seen.errors == []
    assert seen.hosts == {"localhost"}
    plain.close()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_kernel_study_shows_its_tiles_the_roofline_and_its_group(
    server: Server, chromium: Any, scheme: str, seen: Seen, tmp_path: Path
) -> None:
    """The recorded example, run by the command: four problems of two shapes, each a study of one group."""
    done = tuner("run", EXAMPLE, "--db", f"sqlite:///{tmp_path}/tuner.db", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    study_id = json.loads(done.stdout)["studies"][0]["study"]
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = watched(context, seen)
    page.goto(f"{server.url}/ui/studies/{study_id}")
    text = page.inner_text("main")
    for said in (
        "Tiles for 2112 x 7168, M 1",
        "weights read once",
        "what runs it today",
        "The group over shapes and M",
    ):
        assert said in text, said
    assert page.locator(".heat td[class*=heat-] a").count() > 3
    assert page.locator(".heat-8").count() >= 1
    assert page.locator("td a[href^='/ui/studies/']").filter(has_text=".").count() >= 4
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert seen.errors == []
    context.close()


def test_hostile_text_stands_escaped_in_its_cell_and_a_page_stays_light(
    server: Server, chromium: Any, seen: Seen
) -> None:
    """A script for a name and in a log line of 2 MB, a metric that was NaN or infinite, an attribute of two lines."""
    study_id = proved(server.ports.studies, name=HOSTILE)
    context = chromium.new_context()
    page = watched(context, seen)
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    failed, first = f"/ui/studies/{study_id}/trials/22", f"/ui/studies/{study_id}/trials/0"
    for path in ("/ui/", f"/ui/studies/{study_id}", failed, first):
        answer = page.goto(server.url + path)
        assert len(answer.body()) < 1_000_000, path
        assert HOSTILE in page.inner_text("body"), path
        assert page.locator("script:not([src])").count() == 0, path
    assert "was nan" in page.inner_text("main")
    assert "was inf" in page.inner_text("main")
    assert "74.0 %" in page.inner_text("main")
    assert "two" in page.inner_text("main")
    assert alerts == []
    assert seen.errors == []
    context.close()
