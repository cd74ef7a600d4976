"""A tuned tile table: what is written is what is read, and a table that claims too much is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kernels.table import Entry, Evidence, Status, TableError, TunedTable, compiled_table, from_json, to_json
from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.compiled import CompiledKernel
from tuner.core.workload import GemmProblem

TILE = SkinnyTile(block_size=128, outputs_per_block=2)
SHOWN = Evidence(gain=0.05, lower=0.02, p=0.01, passes=6, us=10.0, baseline_us=10.5)
ENTRY = Entry(
    problem=GemmProblem(n=1536, k=7168, m=1, name="mla.g_proj"),
    tile=TILE,
    baseline=SkinnyTile(block_size=64, outputs_per_block=4, k_unroll=2),
    evidence=SHOWN,
    resources={"registers": 31},
)
TABLE = TunedTable(
    gpu="NVIDIA H200",
    capability="9.0",
    driver="580.95",
    vllm_version="0.33.0",
    kernel_version="ca7c088385e1",
    versions={"torch": "2.11.0"},
    status=Status.VALIDATED,
    date="2026-12-01",
    entries=(ENTRY, replace(ENTRY, problem=GemmProblem(n=1536, k=7168, m=2), baseline=LibraryGemm())),
)


def test_a_table_is_read_as_it_was_written() -> None:
    assert from_json(to_json(TABLE)) == TABLE


def test_a_tile_compiled_for_one_k_keeps_that_k() -> None:
    static = replace(TABLE, entries=(replace(ENTRY, tile=replace(TILE, static_k=7168)),))
    assert from_json(to_json(static)).entries[0].tile.static_k == 7168


def test_a_validated_table_has_no_tile_without_evidence_or_with_a_bound_that_includes_no_gain() -> None:
    for evidence in (None, replace(SHOWN, lower=0.0), replace(SHOWN, lower=-0.01)):
        with pytest.raises(TableError, match="not shown to be faster"):
            replace(TABLE, entries=(replace(ENTRY, evidence=evidence),))


def test_a_table_of_compiled_tiles_needs_no_evidence_and_says_that_nothing_was_measured() -> None:
    compiled = replace(TABLE, status=Status.NOT_MEASURED, entries=(replace(ENTRY, evidence=None),))
    assert json.loads(to_json(compiled))["status"] == "not_measured"
    assert from_json(to_json(compiled)) == compiled


def test_a_table_compiled_for_another_gpu_has_resources_and_none_of_the_evidence() -> None:
    kernels = [compiled(1, registers=40, local_bytes=8), compiled(2, refused="ValueError: no"), compiled(3)]
    made = compiled_table(
        TABLE, kernels, gpu="GB300", capability="10.3", date="2026-12-02", stock=lambda _: LibraryGemm()
    )
    (entry,) = made.entries  # the refused one is left out
    assert (made.status, made.gpu, made.capability, made.driver) == (Status.NOT_MEASURED, "GB300", "10.3", "")
    assert made.versions == {"tuned_on": "NVIDIA H200", "architecture": "sm_103a", "compiler": "dsl 1"}
    assert (entry.tile, entry.baseline, entry.evidence) == (TILE, LibraryGemm(), None)
    assert entry.resources == {"registers": 40, "local_bytes": 8, "shared_bytes": 64, "code_bytes": 9}
    assert from_json(to_json(made)) == made


def compiled(m: int, **given: Any) -> CompiledKernel:
    told = {"registers": 32, "shared_bytes": 64, "code_bytes": 9, **given}
    return CompiledKernel(
        architecture="sm_103a", kernel_version="k", compiler="dsl 1", m=m, tile=TILE, symbol=f"m{m}", compile_s=1.0,
        **told,
    )  # fmt: skip


def test_two_tiles_for_one_problem_are_refused() -> None:
    with pytest.raises(TableError, match="two tiles"):
        replace(TABLE, entries=(ENTRY, ENTRY))


def test_a_tile_that_is_illegal_for_its_problem_is_refused_with_the_reason() -> None:
    with pytest.raises(TableError, match="outputs_per_block divides n"):
        replace(TABLE, entries=(replace(ENTRY, tile=replace(TILE, outputs_per_block=5)),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "its format is 2"),
        ({"gpu": {}}, "name"),
        ({"tiles": [{"n": 1}]}, "no tuned tile table"),
        ({"status": "proved"}, "proved"),
    ],
)
def test_another_format_or_a_missing_part_is_refused_by_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(TableError, match=words):
        from_json(json.dumps({**json.loads(to_json(TABLE)), **change}))


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TableError, match="JSONDecodeError"):
        from_json("{half a table")
