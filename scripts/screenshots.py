"""Pictures of the dashboard's pages for docs/dashboard: a predicted study that really runs, and the tests' made-up
measured one. `python -m scripts.screenshots docs/dashboard`"""

import base64
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from api.app import create_app
from tests.browser.made import proved
from tuner.app.running import run_file
from tuner.app.serve import service_ports
from tuner.core.study_file import load

PORT = 47391


def keep(page: Page, file: Path) -> None:
    """WebP, which Playwright's own call does not offer: a fifth of a PNG."""
    answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 62})
    file.write_bytes(base64.b64decode(answer["data"]))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        service_ports(f"sqlite:///{home}/tuner.db", always_ask=False) as ports,
    ):
        predicted = run_file(
            load(Path("examples/kimi_k3_gb300.yaml")), ports.studies, new=True, console=Console(quiet=True)
        )[0]
        kernels = run_file(
            load(Path("examples/recorded_skinny_gemm.yaml")), ports.studies, new=True, console=Console(quiet=True)
        )[0]
        measured = proved(ports.studies)
        server = uvicorn.Server(uvicorn.Config(create_app(ports), port=PORT, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        pages = {
            "studies": "/ui/",
            "study": f"/ui/studies/{measured}",
            "predicted": f"/ui/studies/{predicted}",
            "trial": f"/ui/studies/{measured}/trials/0",
            "kernel": f"/ui/studies/{kernels}",
            "compare": f"/ui/compare?ids={measured}&ids={predicted}",
        }
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme=scheme)
                for name, path in pages.items():
                    page.goto(f"http://localhost:{PORT}{path}")
                    keep(page, folder / f"{name}-{scheme}.webp")
            page = browser.new_page(viewport={"width": 390, "height": 844})
            page.goto(f"http://localhost:{PORT}/ui/studies/{measured}")
            keep(page, folder / "study-narrow.webp")
            browser.close()
        server.should_exit = True
        thread.join(10)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
