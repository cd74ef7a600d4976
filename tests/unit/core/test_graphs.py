"""Decode steps that no CUDA graph covers are named."""

from dataclasses import replace

import pytest

from search_spaces.capture_sizes import capture_sizes, captured
from search_spaces.serving import ServingConfig
from tuner.core.graphs import without_graph
from tuner.core.study_file import EngineSection
from tuner.core.workload import GemmProblem, ServingWorkload

BY_HAND = (1, 2, 4, 8, 16, 32, 64)
DEFAULT = EngineSection()
MODE_0 = EngineSection(options={"compilation-config": {"mode": 0}})


def workload(concurrency: int) -> ServingWorkload:
    return ServingWorkload(input_tokens=16, output_tokens=8, context_tokens=16, concurrency=concurrency, requests=8)


def config(drafts: int, sizes: tuple[int, ...] | None = BY_HAND, mode: str = "FULL_DECODE_ONLY") -> ServingConfig:
    return ServingConfig(
        num_speculative_tokens=drafts, max_num_seqs=64, cudagraph_mode=mode, cudagraph_capture_sizes=sizes
    )


def test_sizes_that_an_engine_was_seen_to_capture() -> None:
    """The log of vLLM 0.25.1 on an H200 for 5 drafts: 4 graphs, 6, 12, 18, 36."""
    assert captured(BY_HAND, 6) == (6, 12, 18, 36)
    assert captured(None, 6) is None


@pytest.mark.parametrize(("drafts", "covered"), [(3, True), (4, False), (5, False), (7, True)])
def test_eight_requests_with_sizes_by_hand_lack_a_graph_exactly_where_the_h200_was_slow(
    drafts: int, covered: bool
) -> None:
    assert (without_graph(config(drafts), [workload(8)], MODE_0) == []) is covered


def test_the_sentence_names_the_step_and_the_largest_graph() -> None:
    (sentence,) = without_graph(config(4), [workload(1), workload(8)], DEFAULT)
    assert sentence == "steps of 8 requests (40 tokens) ran without a CUDA graph: the largest graph is of 35 tokens"


@pytest.mark.parametrize("drafts", range(8))
def test_derived_sizes_cover_every_step(drafts: int) -> None:
    sizes = capture_sizes(max_num_seqs=64, tokens_per_request=drafts + 1, max_num_batched_tokens=8192)
    assert without_graph(config(drafts, sizes), [workload(c) for c in range(1, 65)], DEFAULT) == []


def test_more_requests_than_the_engine_runs_are_no_larger_step() -> None:
    assert without_graph(config(0), [workload(500)], DEFAULT) == []


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0", "0.33.0", None])
@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE"])
def test_a_piecewise_mode_without_compilation(mode: str, version: str | None) -> None:
    """vLLM 0.25.1 captures nothing then; 0.32.0 and 0.33.0 keep the decode graphs of FULL_AND_PIECEWISE."""
    asked = config(3, mode=mode), [workload(8)]
    kept = mode == "FULL_AND_PIECEWISE" and version != "0.25.1"

    found = without_graph(*asked, MODE_0.model_copy(update={"version": version}))

    assert [("needs compilation mode 3, and this is 0" in sentence) for sentence in found] == [True] * (not kept)


@pytest.mark.parametrize("compiled", [3, "3", "VLLM_COMPILE", None])
def test_a_piecewise_mode_has_its_graphs_with_compilation(compiled: int | str | None) -> None:
    engine = EngineSection(options={"compilation-config": {"mode": compiled}}, version="0.25.1")
    assert without_graph(config(3, mode="PIECEWISE"), [workload(8)], engine) == []
    assert without_graph(config(3, mode="PIECEWISE"), [workload(8)], DEFAULT) == []


def test_a_piecewise_mode_whose_graphs_break_needs_no_compilation() -> None:
    engine = MODE_0.model_copy(update={"environment": {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}})
    assert without_graph(config(3, mode="PIECEWISE"), [workload(8)], engine) == []


def test_an_eager_engine_has_no_graph() -> None:
    assert without_graph(replace(config(3), enforce_eager=True), [workload(8)], DEFAULT) != []


def test_nothing_is_claimed_where_the_engine_chooses_or_of_a_kernel() -> None:
    assert without_graph(config(4, sizes=None), [workload(8)], DEFAULT) == []
    assert without_graph(config(4), [GemmProblem(n=8, k=8, m=1)], DEFAULT) == []
