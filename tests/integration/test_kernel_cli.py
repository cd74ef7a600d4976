"""Kernel studies as a user types them: a recording replayed without a GPU, its group shown, its table honest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kernels.table import Status, from_json
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tests.integration.test_cli import ROOT, tuner
from tuner.core.recorded import Recorded, write
from tuner.core.workload import GemmProblem

SIZES = {64: 9.0, 128: 10.0, 224: 11.0}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished group in `tuner.db`, and the group."""
    folder = tmp_path_factory.mktemp("kernels")
    problems = [GemmProblem(n=1536, k=7168, m=m) for m in (1, 2)]
    rows = [
        (p, Recorded("skinny_gemm", SkinnyTile(block_size=size, outputs_per_block=2).values(), (us,) * 12))
        for p in problems
        for size, us in SIZES.items()
    ]
    rows += [(p, Recorded("library_gemm", LibraryGemm().values(), (12.0,) * 12)) for p in problems]
    write(folder / "recording.csv.gz", rows)
    study = {
        "name": "recorded tiles", "model": "moonshotai/Kimi-K3", "hardware": {"gpu": "B300"}, "space": "skinny_gemm",
        "evaluator": "recorded", "recording": str(folder / "recording.csv.gz"),
        "problems": [{"n": p.n, "k": p.k, "m": p.m} for p in problems], "baseline": {"backend": "cublas"},
        "only": {"block_size": [*SIZES], "outputs_per_block": [2], "k_unroll": [1], "vector_width": [8]},
        "objective": {"minimize": "kernel_us"}, "budget": {"trials": 3},
    }  # fmt: skip
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    done = in_folder(folder, "run", folder / "study.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["studies"]
    assert [one["decision"] for one in found] == ["not_measured", "not_measured"]
    assert [one["winner"]["config"]["block_size"] for one in found] == [64, 64]
    return folder, found[0]["group"]


def in_folder(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return tuner(*arguments, cwd=folder, TUNER_DB=f"sqlite:///{folder}/tuner.db")


def test_a_group_is_listed_and_shown_by_its_name(ran: tuple[Path, str]) -> None:
    folder, group = ran
    listed = json.loads(in_folder(folder, "list", "--group", group, "--json").stdout)["studies"]
    assert {one["group"] for one in listed} == {group}
    assert len(listed) == 2
    shown = in_folder(folder, "show", group)
    assert shown.returncode == 0, shown.stderr
    assert "problem 1536x7168 m2" in shown.stdout


def test_a_recorded_group_has_no_table_to_export_and_says_why(ran: tuple[Path, str]) -> None:
    folder, group = ran
    done = in_folder(folder, "export-config", group, "--format", "table")
    assert done.returncode == 3
    assert "no tile of 2 studies was validated" in done.stderr


def test_an_unvalidated_table_says_that_nothing_was_measured(ran: tuple[Path, str]) -> None:
    folder, group = ran
    done = in_folder(
        folder, "export-config", group, "--format", "table", "--allow-unvalidated", "-o", folder / "t.json"
    )
    assert done.returncode == 0, done.stderr
    table = json.loads((folder / "t.json").read_text())
    assert table["status"] == "not_measured"
    assert table["gpu"]["capability"] == "10.3"
    assert [(tile["m"], tile["tile"]["block_size"], tile["evidence"]) for tile in table["tiles"]] == [
        (1, 64, None), (2, 64, None),
    ]  # fmt: skip


def test_a_table_without_validated_tiles_is_refused_before_an_engine_starts(ran: tuple[Path, str]) -> None:
    folder, group = ran
    in_folder(folder, "export-config", group, "--format", "table", "--allow-unvalidated", "-o", folder / "u.json")
    study = {
        "name": "served", "model": "m", "hardware": {"gpu": "cpu"}, "space": {"knobs": {"max_num_seqs": [1, 2]}},
        "evaluator": "vllm", "workload": {"input_tokens": 1, "output_tokens": 8},
        "objective": {"maximize": "decode_tokens_per_s_per_user"},
        "engine": {"python": "/bin/sh", "kernel_tables": {"tuned": str(folder / "u.json")}},
    }  # fmt: skip
    (folder / "served.yaml").write_text(yaml.safe_dump(study))
    done = in_folder(folder, "run", folder / "served.yaml")
    assert done.returncode == 2
    assert "holds no validated tiles" in done.stderr


def test_kernels_lists_each_problem_with_what_vllm_runs(tmp_path: Path) -> None:
    done = tuner("kernels", "list", "--tp", "8", "--rows", "1", "--gpu", "H200", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {(p["n"], p["k"]): p for p in json.loads(done.stdout)["problems"]}
    assert found[1536, 7168]["vllm"]["block_size"] == 224
    assert found[1536, 7168]["legal_tiles"] > 100


# Stands in for an interpreter that has the CuTe DSL; the rows give the registers, so that every kernel has its own.
COMPILER = """#!/bin/sh
exec {python} -c '
import json, sys
asked = json.load(sys.stdin)
kernel = asked["target"].split(".")[1]
for job in asked["jobs"]:
    answer = {{"registers": 40 + job["m"], "local_bytes": 8 * (job["m"] == 2), "shared_bytes": 1024, "code_bytes": 9}}
    name = kernel + "_".join(str(value) for value in [job["m"], *job["values"].values()])
    print(json.dumps({{**job, "kernel": kernel, "compiler": "dsl 1", "symbol": name, "compile_s": 0.5, **answer}}))
'
"""


def compiles(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    python = folder / "dsl"
    python.write_text(COMPILER.format(python=sys.executable))
    python.chmod(0o755)
    return in_folder(folder, "kernels", "compile", "--dsl", python, *arguments)


def test_what_was_compiled_is_kept_and_listed_beside_the_problems_that_vllm_runs_with_it(tmp_path: Path) -> None:
    done = compiles(tmp_path, "--gpu", "H200", "--tp", "8", "--rows", "2", "--architecture", "sm_103a")
    assert done.returncode == 0, done.stderr
    assert "compiled, not measured" in done.stderr
    listed = in_folder(tmp_path, "kernels", "list", "--tp", "8", "--rows", "3", "--gpu", "H200", "--json")
    found = {(p["n"], p["k"], p["m"]): p["compiled"] for p in json.loads(listed.stdout)["problems"]}
    (two,) = found[1536, 7168, 2]
    assert (two["architecture"], two["registers"], two["local_bytes"], two["status"]) == (
        "sm_103a", 42, 8, "not_measured",
    )  # fmt: skip
    assert found[1536, 7168, 3] == []
    shown = in_folder(tmp_path, "kernels", "list", "--tp", "8", "--rows", "2", "--gpu", "H200")
    assert "sm_103a: 42 registers, 8 bytes spilled" in shown.stdout


def test_tiles_of_our_own_kernel_are_named_in_a_file(tmp_path: Path) -> None:
    tile = {"kind": "decode_gemm", "m": 3, "values": {"rows": 24, "warps": 4}}
    (tmp_path / "tiles.json").write_text(json.dumps([tile, {**tile, "m": 4}]))
    done = compiles(tmp_path, "--tiles", tmp_path / "tiles.json", "--json")
    assert done.returncode == 0, done.stderr
    (kernel,) = json.loads(done.stdout)["kernels"]  # both numbers of rows share one
    assert (kernel["kind"], kernel["m"], kernel["kernel_version"]) == ("decode_gemm", 8, "decode_target")
    (tmp_path / "tiles.json").write_text(json.dumps([{**tile, "kind": "chair"}]))
    done = compiles(tmp_path, "--tiles", tmp_path / "tiles.json")
    assert done.returncode == 2
    assert "chair" in done.stderr


def test_a_tuned_table_compiled_for_another_gpu_is_a_table_that_was_not_measured_there(tmp_path: Path) -> None:
    table = ROOT / "benchmarks" / "results" / "h200_kernels_table-2026-12-01.json"
    asked = ("--table", table, "--gpu", "GB300", "--architecture", "sm_103a", "--to-table", tmp_path / "gb300.json")
    done = compiles(tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    made = from_json((tmp_path / "gb300.json").read_text())
    assert (made.status, made.gpu, made.capability) == (Status.NOT_MEASURED, "GB300", "10.3")
    assert [entry.problem for entry in made.entries] == [
        entry.problem for entry in from_json(table.read_text()).entries
    ]
    assert all(entry.evidence is None and entry.resources["registers"] > 40 for entry in made.entries)
    done = compiles(tmp_path, "--to-table", tmp_path / "x.json")
    assert done.returncode == 2
    assert "--table" in done.stderr


def test_kernels_compile_refuses_what_it_cannot_compile_for(tmp_path: Path) -> None:
    done = tuner("kernels", "compile", "--dsl", "/bin/false", "--architecture", "sm_80", cwd=tmp_path)
    assert done.returncode == 2
    assert "sm_80" in done.stderr
