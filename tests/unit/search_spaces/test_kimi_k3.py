"""The Kimi K3 space: which points there are, and which conditions a knob has."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from search_spaces import kimi_k3
from search_spaces.catalog import build
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space, SpaceError


def setting(**changes: Any) -> Setting:
    given: dict[str, Any] = {
        "model": "moonshotai/Kimi-K3", "gpu": "GB300", "gpus": 16, "gpus_per_node": 4, "max_model_len": 9192,
        "max_concurrency": 8,
    }  # fmt: skip
    return Setting(**{**given, **changes})


@cache
def space() -> Space:
    return build("kimi_k3_gb300", setting())


@cache
def points() -> tuple[ServingConfig, ...]:
    return tuple(space().points())  # type: ignore[arg-type]


def feasible() -> tuple[ServingConfig, ...]:
    return tuple(point for point in points() if not space().reasons(point))


def test_inert_knobs_collapse_so_that_one_engine_is_one_candidate() -> None:
    for point in points():
        specialised = point.decode_backend == "latency_specialized"
        one_rank = point.decode_context_parallel_size == 1
        assert (point.mla_core is not None) == (specialised and one_rank)
        assert (point.dcp_comm_backend is not None) == (not specialised and not one_rank)
        assert (point.kernel_table is not None) == (not specialised)
        assert (point.speculative_method == "dspark") == (point.num_speculative_tokens > 0)
        assert (point.draft_sample_method is not None) == (point.num_speculative_tokens > 0)
    assert len(set(points())) == len(points())


def test_samplers_are_tried_in_their_published_pairs_only() -> None:
    pairs = {(p.draft_sample_method, p.rejection_sample_method) for p in points() if p.num_speculative_tokens}
    assert pairs == {("greedy", "standard"), ("probabilistic", "block")}


def test_every_tp_dcp_and_draft_length_that_is_asked_for_is_feasible_on_its_path() -> None:
    auto = {(p.tensor_parallel_size, p.decode_context_parallel_size) for p in feasible() if p.decode_backend == "auto"}
    fast = {(p.tensor_parallel_size, p.decode_context_parallel_size) for p in feasible() if p.decode_backend != "auto"}
    assert auto == {(8, 1), (8, 2), (8, 4), (8, 8), (16, 1), (16, 2), (16, 4), (16, 8), (16, 16)}
    assert fast == {(8, 1), (8, 8), (16, 1), (16, 16)}
    assert {p.num_speculative_tokens for p in feasible() if p.decode_backend != "auto"} == {0, 3, 4, 5, 6, 7}
    assert {p.kv_cache_dtype for p in feasible() if p.decode_backend != "auto"} == {"fp8"}


def test_each_gpu_count_has_a_feasible_baseline_and_seed_from_the_points() -> None:
    assert set(space().baselines) == {8, 16}
    known = set(points())
    for gpus, baseline in space().baselines.items():
        assert isinstance(baseline, ServingConfig)
        assert baseline in known
        assert space().reasons(baseline) == []
        assert (space().gpus(baseline), baseline.decode_backend, baseline.num_speculative_tokens) == (gpus, "auto", 7)
    for seed in space().seeds:
        assert seed in known
        assert space().reasons(seed) == []


def test_every_full_decode_step_is_among_the_capture_sizes() -> None:
    for point in feasible():
        assert point.max_num_seqs is not None
        assert point.cudagraph_capture_sizes is not None
        steps = {requests * point.tokens_per_request for requests in range(1, point.max_num_seqs + 1)}
        assert steps <= set(point.cudagraph_capture_sizes)


def test_eight_gpus_leave_no_engine_of_sixteen() -> None:
    assert {p.gpus for p in build("kimi_k3_gb300", setting(gpus=8)).feasible().candidates} == {8}  # type: ignore[attr-defined]
    with pytest.raises(SpaceError, match=r"at least 8 GPUs.*hardware\.gpus is 4"):
        build("kimi_k3_gb300", setting(gpus=4))


def test_rules_bind_the_versions_they_were_read_from() -> None:
    later = build("kimi_k3_gb300", setting(vllm_version="0.35.0"))
    assert not [rule for rule in later.rules if rule.name.startswith("specialized")]
    assert all(rule.sentence and rule.source for rule in space().rules)


def test_an_acceptance_curve_leaves_only_the_sampler_it_was_measured_with() -> None:
    built = build("kimi_k3_gb300", setting(draft_sampling="probabilistic/block"))
    candidates = built.feasible().candidates
    drafted = [c for c in candidates if isinstance(c, ServingConfig) and c.num_speculative_tokens]
    assert {c.draft_sample_method for c in drafted} == {"probabilistic"}
    assert not any(built.reasons(baseline) for baseline in (*built.baselines.values(), *built.seeds))


def test_a_draft_of_the_users_own_takes_the_place_of_the_published_one() -> None:
    built = build("kimi_k3_gb300", setting(draft_models={"dspark": "/drafts/mine"}))
    assert isinstance(built.baselines[8], ServingConfig)
    assert built.baselines[8].speculative_model == "/drafts/mine"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"tensor_parallel_size": 4}, "specialized-tp"),
        ({"pipeline_parallel_size": 2}, "specialized-pp"),
        ({"enable_expert_parallel": True}, "specialized-ep"),
        ({"options": (("ubatch-size", 2),)}, "specialized-dbo"),
        ({"options": (("no-enable-sleep-mode", False),)}, "specialized-sleep"),
        ({"options": (("enable_lora", True),)}, "specialized-lora"),
        ({"options": (("compilation-config.mode", 1),)}, "specialized-compile"),
        ({"enforce_eager": True}, "specialized-graphs"),
        ({"speculative_method": "eagle3"}, "specialized-method"),
        ({"options": (("speculative-config.enable_adaptive_verification", True),)}, "specialized-adaptive"),
        ({"mamba_cache_dtype": "float16"}, "specialized-kda-dtypes"),
        ({"options": (("use-replayssm", True),)}, "specialized-replay"),
        ({"num_speculative_tokens": 8}, "specialized-drafts"),
        ({"kv_cache_dtype": "bfloat16"}, "specialized-fp8-kv"),
        ({"decode_context_parallel_size": 2}, "specialized-dcp"),
    ],
)
def test_one_wrong_setting_is_refused_by_its_own_rule_alone(changes: dict[str, Any], rule: str) -> None:
    seed = space().seeds[0]
    assert isinstance(seed, ServingConfig)
    assert [reason.rule for reason in space().reasons(replace(seed, **changes))] == [rule]
    on_auto = replace(seed, **changes, decode_backend="auto", mla_core=None)
    assert space().reasons(on_auto) == []


def test_the_specialised_path_needs_its_gpu_family() -> None:
    rules = {rule.name: rule for rule in kimi_k3.specialized_rules("H200")}
    assert not rules["specialized-gpu"].holds(space().seeds[0])
