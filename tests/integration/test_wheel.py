"""What a user installs is what stands in the tree."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("search_spaces", "tuner", "kernels", "db", "api")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy of what git knows of, so that leftovers of earlier builds cannot help."""
    work = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, work / "tree" / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work / "dist", work / "tree"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next((work / "dist").glob("*.whl"))) as archive:
        yield archive


def tree() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name or name.startswith(PACKAGES)}
    assert packed == tree()


def test_the_wheel_is_pure_python(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("-py3-none-any.whl")


def test_the_wheel_names_its_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    info = next(name.split("/")[0] for name in wheel.namelist() if name.startswith("llm_serving_tuner"))
    assert "tuner = tuner.app.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert any("LICENSE" in name for name in wheel.namelist())
