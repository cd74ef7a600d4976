"""Kimi K3's decode GEMMs: the arithmetic against a table of shapes that was read from vLLM's source."""

import csv
from pathlib import Path

import pytest

from kernels.problems import problems, projections, reads_table

SHAPES = Path(__file__).parents[2] / "golden/k3_gemm_shapes.csv"
# The golden table's names where they differ from ours; what is absent here is no GEMM of the stock path in BF16.
NAMES = {
    "kda.in_proj_qkvgfab": "kda.in_proj_qkvgfab",
    "kda.f_b_proj": "kda.f_b_proj",
    "kda.o_proj": "kda.o_proj",
    "mla.fused_qkv_a_g_proj": "mla.fused_qkv_a_g_proj",
    "mla.q_b_proj": "mla.q_b_proj",
    "mla.o_proj": "mla.o_proj",
    "moe.router(stock, replicated)": "moe.router",
    "moe.routed_expert_down_proj(stock, replicated)": "moe.routed_expert_down_proj",
    "moe.routed_expert_up_proj (stock table shape, replicated)": "moe.routed_expert_up_proj",
    "moe.shared.gate_up": "moe.shared.gate_up",
    "moe.shared.down": "moe.shared.down",
    "dense0.gate_up": "dense0.gate_up",
    "dense0.down": "dense0.down",
    "lm_head": "lm_head",
}


@pytest.mark.parametrize("tp", [8, 16])
def test_shapes_and_layers_are_those_of_the_source(tp: int) -> None:
    ours = {projection.name: projection for projection in projections(tp)}
    with SHAPES.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["tp"]) == tp and row["op"] in NAMES]
    assert len(rows) == len(NAMES)
    for row in rows:
        mine = ours[NAMES[row["op"]]]
        padded = row["notes"].partition("padded N=")[2] or row["N"]
        assert (mine.n, mine.k, mine.layers) == (int(padded), int(row["K"]), int(row["layers"])), row["op"]


@pytest.mark.parametrize("tp", [0, -8, 7, 36])
def test_heads_that_cannot_be_split_are_refused(tp: int) -> None:
    with pytest.raises(ValueError, match="96 heads"):
        projections(tp)


@pytest.mark.parametrize("tp", [8, 16])
def test_a_shape_that_two_projections_share_is_one_problem(tp: int) -> None:
    found = problems(tp)
    assert len({problem.key for problem in found}) == len(found)
    shared = next(problem for problem in found if "kda.o_proj" in problem.name)
    assert "mla.o_proj" in shared.name


def test_under_the_specialised_path_only_the_output_head_reads_the_table() -> None:
    for tp in (8, 16):
        reading = [p.name for p in projections(tp) if reads_table(
            p, tensor_parallel=tp, m=1, decode_backend="latency_specialized")]  # fmt: skip
        assert reading == ["lm_head"]


def test_the_packed_kda_projection_at_tp8_reads_the_table_from_fifteen_rows_on() -> None:
    packed = {tp: next(p for p in projections(tp) if p.name == "kda.in_proj_qkvgfab") for tp in (8, 16)}
    assert not reads_table(packed[8], tensor_parallel=8, m=14)
    assert reads_table(packed[8], tensor_parallel=8, m=15)
    assert reads_table(packed[16], tensor_parallel=16, m=1)


def test_a_decode_step_reads_the_mla_projection_as_its_two_parts() -> None:
    by_name = {p.name: p for p in projections(8)}
    assert not reads_table(by_name["mla.fused_qkv_a_g_proj"], tensor_parallel=8, m=8)
    assert reads_table(by_name["mla.fused_qkv_a_proj"], tensor_parallel=8, m=8)
    assert reads_table(by_name["mla.g_proj"], tensor_parallel=8, m=8)


def test_the_router_never_reads_the_table() -> None:
    router = next(p for p in projections(8) if p.name == "moe.router")
    assert not reads_table(router, tensor_parallel=8, m=1)
