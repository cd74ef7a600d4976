"""The `tuner` command as a user types it: output, exit codes, files. The predicted evaluator; no engine is needed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "kimi_k3_gb300.yaml"


def tuner(*arguments: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tuner.app.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(cwd), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def written(folder: Path, **changes: Any) -> Path:
    """The example with changes, small enough to run in a second or two."""
    document = {**yaml.safe_load(EXAMPLE.read_text()), "budget": {"trials": 8}, **changes}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True))
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a finished study in `tuner.db`, and what `tuner run --json` printed."""
    folder = tmp_path_factory.mktemp("cli")
    done = tuner("run", written(folder), "--db", f"sqlite:///{folder}/tuner.db", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return folder, document


def test_check_counts_points_rejections_starts_and_hours(tmp_path: Path) -> None:
    done = tuner("check", EXAMPLE, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["points"] > found["feasible"] > 100
    assert found["rejected"]["dcp-divides-tp"] > 0
    assert found["starts"]["total"] == sum(count for reason, count in found["starts"].items() if reason != "total")
    assert 0 < found["least_gpu_hours"] < found["gpu_hours"]
    assert [contest["gpus"] for contest in found["contests"]] == [8, 16]


def test_check_says_how_many_starts_several_noises_need_and_makes_no_database(tmp_path: Path) -> None:
    cpu = yaml.safe_load((ROOT / "examples" / "tiny_cpu.yaml").read_text())
    path = tmp_path / "cpu.yaml"
    path.write_text(yaml.safe_dump(cpu))
    done = tuner("check", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "noise of a paired start ratio: not known here yet" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[-3:]] == [
        ["0.50%", "5"],
        ["1.00%", "9"],
        ["2.00%", "28"],
    ]
    assert not list(tmp_path.rglob("*.db"))
    needed = json.loads(tuner("check", path, "--json", cwd=tmp_path).stdout)["starts_needed"]
    assert needed["asked"] == 5
    assert needed["known_from"] is None


def test_a_missing_lm_eval_is_said_before_a_study_is_opened(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "examples" / "tiny_cpu.yaml").read_text())
    path = tmp_path / "cpu.yaml"
    path.write_text(yaml.safe_dump({**document, "quality": {"tasks": ["gsm8k"]}}))
    url = f"sqlite:///{tmp_path}/tuner.db"
    done = tuner("run", path, "--db", url, cwd=tmp_path, TUNER_ENGINE_PYTHON=sys.executable)
    assert done.returncode == 2
    assert f"quality.tasks: {sys.executable} has no lm-eval" in done.stderr
    assert json.loads(tuner("list", "--db", url, "--json", cwd=tmp_path).stdout)["studies"] == []


def test_run_prints_one_object_with_study_decision_winner_baseline_and_origin(
    ran: tuple[Path, dict[str, Any]],
) -> None:
    _, document = ran
    assert document["decision"] == "not_measured"
    assert document["origin"] == "predicted"
    assert document["winner"]["config"]["tensor_parallel_size"] == 16
    assert document["baseline"]["config"]["decode_backend"] == "auto"
    assert [contest["gpus"] for contest in document["contests"]] == [8, 16]


def test_an_export_of_what_was_not_measured_exits_3_and_says_why(ran: tuple[Path, dict[str, Any]]) -> None:
    folder, document = ran
    done = tuner("export-config", document["study"], "--db", f"sqlite:///{folder}/tuner.db", cwd=folder)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "not_measured: nothing was measured" in done.stderr


def test_an_unvalidated_export_is_written_on_request_and_says_what_it_is(ran: tuple[Path, dict[str, Any]]) -> None:
    folder, document = ran
    done = tuner(
        "export-config", document["study"], "--db", f"sqlite:///{folder}/tuner.db", "--allow-unvalidated",
        "-o", folder / "out" / "best.yaml", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (folder / "out" / "best.yaml").read_text()
    assert text.startswith("# Status: NOT VALIDATED (not_measured, predicted)")
    assert yaml.safe_load(text)["model"] == "moonshotai/Kimi-K3"
    assert "NCCL_MNNVL_ENABLE=1" in (folder / "out" / "best.env").read_text()
    assert (folder / "out" / "best.launch.sh").read_text().count("vllm serve") == 4


@pytest.mark.parametrize("format", ["vllm", "cli", "json"])
def test_each_format_goes_to_standard_output(ran: tuple[Path, dict[str, Any]], format: str) -> None:
    folder, document = ran
    done = tuner(
        "export-config", document["study"], "--db", f"sqlite:///{folder}/tuner.db", "--allow-unvalidated",
        "--format", format, "--gpus", 8, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parsed = {"vllm": yaml.safe_load, "json": json.loads, "cli": str}[format](done.stdout)
    assert parsed


def test_the_same_file_after_its_end_opens_another_study(ran: tuple[Path, dict[str, Any]]) -> None:
    folder, document = ran
    done = tuner("run", folder / "study.yaml", "--db", f"sqlite:///{folder}/tuner.db", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["study"] != document["study"]


def test_list_and_show_know_the_study(ran: tuple[Path, dict[str, Any]]) -> None:
    folder, document = ran
    url = f"sqlite:///{folder}/tuner.db"
    assert document["study"] in tuner("list", "--db", url, cwd=folder).stdout
    shown = json.loads(tuner("show", document["study"][:5], "--db", url, "--json", cwd=folder).stdout)
    assert [trial["number"] for trial in shown["trials"]] == list(range(len(shown["trials"])))
    assert tuner("show", "nothing", "--db", url, cwd=folder).returncode == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objectiv": {}}, "objectiv: unknown key; did you mean 'objective'?"),
        (
            {"workload": {"input_tokens": 1, "output_tokens": 8, "acceptance": {"synthetic": {"length": 3}}}},
            "one fixed synthetic length says nothing of how acceptance grows with the draft length",
        ),
        ({"space": "kimi_k4"}, "there is no space 'kimi_k4'; built in are"),
        ({"rules": ["max_num_seqs > 100000"]}, "no feasible point is left"),
        ({"rules": ["__import__('os')"]}, "rules.0"),
        ({"objective": {"maximize": "tokens"}}, "no metric is named 'tokens'"),
        ({"budget": {"trials": 8, "gpu_hours": 1}}, "budget.gpu_hours: 1 cannot reach the confirmation"),
        ({"evaluator": "vllm", "engine": {"python": "/nowhere/python"}}, "/nowhere/python is not an interpreter"),
        (
            {"evaluator": "vllm", "workload": {"dataset": {"trace": "study.yaml"}}},
            "workload.dataset: {here}/study.yaml, line 1: no JSON",
        ),
    ],
)
def test_wrong_input_exits_2_names_the_key_and_opens_nothing(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    done = tuner("run", written(tmp_path, **changes), "--db", url, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence.replace("{here}", str(tmp_path.resolve())) in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(tuner("list", "--db", url, "--json", cwd=tmp_path).stdout)["studies"] == []


@pytest.mark.parametrize(
    ("url", "code", "sentence"),
    [
        ("mysql://x", 2, "mysql"),
        ("sqlite:////nowhere/at/all/tuner.db", 1, "nowhere"),
        ("sqlite:///{here}/not.db", 1, "not an SQLite database"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_one_sentence(
    tmp_path: Path, url: str, code: int, sentence: str
) -> None:
    (tmp_path / "not.db").write_text("this is no database, and it is long enough to be read as one" * 20)
    done = tuner("list", "--db", url.format(here=tmp_path), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["a/b/../c", 'it\'s "quoted"', "<script>alert(1)</script>", "漢" * 200, "[bold]x[/bold]", "-rf", "#: x"]
)
def test_any_name_is_run_listed_and_exported(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    file = written(tmp_path, name=name, fix={"tensor_parallel_size": 8}, budget={"trials": 2})
    done = tuner("run", file, "--db", url, "--json", "--allow-unvalidated", "-o", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == name
    exported = list((tmp_path / "out").glob("*.yaml"))
    assert len(exported) == 1
    assert exported[0].parent == tmp_path / "out"
    assert yaml.safe_load(exported[0].read_text())["tensor-parallel-size"] == 8
    assert tuner("list", "--db", url, cwd=tmp_path).returncode == 0


def test_ctrl_c_leaves_a_study_that_the_same_command_finishes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    file = written(tmp_path, budget={"trials": 100})
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner.app.cli", "run", str(file), "--db", url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not _trials(url, tmp_path):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "resumes the study" in errors
    done = tuner("run", file, "--db", url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumed study" in done.stderr
    shown = json.loads(tuner("show", json.loads(done.stdout)["study"], "--db", url, "--json", cwd=tmp_path).stdout)
    keys = [trial["key"] for trial in shown["trials"]]
    assert len(keys) == len(set(keys)) == 102
    assert all(trial["outcome"] == "measured" for trial in shown["trials"])


def _trials(url: str, folder: Path) -> int:
    import sqlite3

    path = url.removeprefix("sqlite:///")
    if not Path(path).exists():
        return 0
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_a_full_disk_is_said_and_the_study_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """No file may grow beyond 400 KiB: the tables fill up in the middle of the study."""
    url = f"sqlite:///{tmp_path}/tuner.db"
    file = written(tmp_path, budget={"trials": 60})
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -f 400; exec {sys.executable} -m tuner.app.cli run {file} --db {url}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert limited.returncode == 1, limited.stderr
    assert "Traceback" not in limited.stderr
    assert f"{tmp_path}/tuner.db" in limited.stderr
    before = _trials(url, tmp_path)
    assert 0 < before < 62
    done = tuner("run", file, "--db", url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumed study" in done.stderr
    shown = json.loads(tuner("show", json.loads(done.stdout)["study"], "--db", url, "--json", cwd=tmp_path).stdout)
    assert len(shown["trials"]) == 62
    assert all(trial["outcome"] == "measured" for trial in shown["trials"])


def test_predict_shows_terms_that_add_up_an_interval_and_what_it_rests_on(tmp_path: Path) -> None:
    done = tuner("predict", EXAMPLE, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for contest in json.loads(done.stdout)["contests"]:
        for side in ("baseline", "best"):
            for prediction in contest[side]["predictions"]:
                assert sum(prediction["terms"].values()) == pytest.approx(prediction["step_ms"])
                assert prediction["low_ms"] < prediction["tpot_ms"] < prediction["high_ms"]
                assert prediction["nearest"][0]["source"]
    shown = tuner("predict", EXAMPLE, cwd=tmp_path).stdout
    assert "Predicted: nothing was run." in shown
    assert "extrapolates: " in shown
    assert "█" in shown


def test_what_is_not_predicted_is_said(tmp_path: Path) -> None:
    done = tuner("predict", ROOT / "examples" / "tiny_cpu.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing is predicted of output_tokens_per_s" in done.stderr
