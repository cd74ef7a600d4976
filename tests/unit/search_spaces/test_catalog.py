"""The built-in spaces by name, and what holds for each of them."""

import time
from pathlib import Path
from typing import Any

import pytest

from search_spaces.candidate import candidate_key
from search_spaces.capture_sizes import capture_sizes
from search_spaces.catalog import SPACES, build
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import SpaceError


def setting(**changes: Any) -> Setting:
    given: dict[str, Any] = {"model": "m", "gpu": "H200", "gpus": 16, "max_model_len": 300, "max_concurrency": 32}
    return Setting(**{**given, **changes})


@pytest.mark.parametrize("name", SPACES)
def test_baselines_satisfy_the_rules_and_every_point_survives_its_stored_form(name: str) -> None:
    space = build(name, setting(gpu="GB300"))
    for gpus, baseline in space.baselines.items():
        assert space.reasons(baseline) == []
        assert space.gpus(baseline) == gpus
    points = list(space.points())
    assert len({candidate_key(point) for point in points}) == len(points)
    assert all(ServingConfig.from_values(point.values()) == point for point in points[::17])


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_enumerated_in_well_under_a_second(name: str) -> None:
    """`tuner check` has 2 s, imports included. CPU seconds, so that a busy machine does not decide."""
    before = time.process_time()
    feasible = build(name, setting(gpu="GB300", max_concurrency=64)).feasible()
    assert 0 < len(feasible.candidates) <= feasible.points < 40_000
    assert time.process_time() - before < 1.0


def test_an_unknown_space_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(SpaceError, match=r"'kimi_k4'.*kimi_k3_gb300, dense_gpu, tiny_cpu"):
        build("kimi_k4", setting())


def test_a_method_is_offered_only_where_its_draft_is_named() -> None:
    def methods(**drafts: str) -> set[object]:
        space = build("dense_gpu", setting(draft_models=drafts))
        return {point.values().get("speculative_method") for point in space.points()}

    assert methods() == {None, "ngram"}
    assert methods(eagle3="acme/e3", dspark="acme/ds") == {None, "ngram", "eagle3", "dspark"}


def test_a_drafting_candidate_names_its_draft_and_an_ngram_one_its_lookup() -> None:
    space = build("dense_gpu", setting(draft_models={"eagle3": "acme/e3"}, draft_sampling="greedy/standard"))
    for point in space.points():
        assert isinstance(point, ServingConfig)
        assert (point.speculative_model == "acme/e3") == (point.speculative_method == "eagle3")
        assert (point.prompt_lookup_max is not None) == (point.speculative_method == "ngram")


def test_the_cpu_space_runs_eagerly_and_captures_nothing() -> None:
    space = build("tiny_cpu", setting(gpu="cpu", gpus=1, max_concurrency=8))
    points = [point for point in space.points() if isinstance(point, ServingConfig)]
    assert {point.enforce_eager for point in points} == {True}
    assert {point.cudagraph_capture_sizes for point in points} == {None}
    assert {point.num_speculative_tokens for point in points} == {0, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("tokens_per_request", range(1, 9))
@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 12, 32, 100, 300])
def test_capture_sizes_hold_the_full_step_and_lose_nothing_to_vllms_rounding(
    max_num_seqs: int, tokens_per_request: int
) -> None:
    """vLLM rounds each size up to a multiple of drafts + 1 and drops those above the largest given."""
    sizes = capture_sizes(
        max_num_seqs=max_num_seqs, tokens_per_request=tokens_per_request, max_num_batched_tokens=16384
    )
    assert sizes is not None
    assert max_num_seqs * tokens_per_request in sizes
    assert all(size % tokens_per_request == 0 for size in sizes)
    assert {n * tokens_per_request for n in range(1, min(16, max_num_seqs) + 1)} <= set(sizes)
    assert len(sizes) <= 64


def test_capture_sizes_stay_within_the_batch_and_none_is_made_where_none_fits() -> None:
    assert capture_sizes(max_num_seqs=64, tokens_per_request=8, max_num_batched_tokens=100) == (
        8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96,
    )  # fmt: skip
    assert capture_sizes(max_num_seqs=1, tokens_per_request=8, max_num_batched_tokens=4) is None


def test_the_reference_page_names_every_knob_and_rule() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/spaces.md").read_text(encoding="utf-8")
    for name in SPACES:
        space = build(name, setting(gpu="GB300", draft_sampling="greedy/standard"))
        assert name in page
        assert [knob.name for knob in space.knobs if f"`{knob.name}`" not in page] == []
        short = {rule.name: rule.name.replace("specialized", "", 1) for rule in space.rules}
        assert [name for name, end in short.items() if f"`{name}`" not in page and f"`{end}`" not in page] == []
