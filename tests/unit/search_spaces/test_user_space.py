"""Users' own knobs and rules, in a built-in space or in one of their own."""

from dataclasses import fields
from typing import Any

import pytest

from search_spaces import user_space
from search_spaces.catalog import build
from search_spaces.knob import Scalar
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space, SpaceError
from search_spaces.user_space import extended, inline


def cpu() -> Space:
    return build("tiny_cpu", Setting(model="m", gpu="cpu", gpus=1, max_model_len=300, max_concurrency=8))


def configs(space: Space) -> list[ServingConfig]:
    return [point for point in space.feasible().candidates if isinstance(point, ServingConfig)]


def test_a_knob_of_the_spaces_own_takes_the_users_choices_and_what_is_derived_follows() -> None:
    dense = build("dense_gpu", Setting(model="m", gpu="H200", gpus=1, max_model_len=300, max_concurrency=8))
    space = extended(dense, {"max_num_seqs": [1, 100]}, [])
    assert {c.max_num_seqs for c in configs(space)} == {1, 100}
    assert all(c.cudagraph_capture_sizes and max(c.cudagraph_capture_sizes) >= 100 for c in configs(space) if
               c.max_num_seqs == 100)  # fmt: skip
    assert [knob.name for knob in space.knobs] == [knob.name for knob in dense.knobs]


def test_further_knobs_set_fields_or_become_vllm_options() -> None:
    given: dict[str, list[Scalar]] = {"enable_chunked_prefill": [False], "async-scheduling": [None, True]}
    space = extended(cpu(), given, ["async_scheduling == None or max_num_seqs > 4"])
    assert {c.enable_chunked_prefill for c in configs(space)} == {False}
    assert {c.options for c in configs(space)} == {(), (("async-scheduling", True),)}
    assert min(c.max_num_seqs or 0 for c in configs(space) if c.options) == 8
    assert space.feasible().rejected["user: async_scheduling == None or max_num_seqs > 4"] > 0


def test_pinning_works_on_a_users_own_knob() -> None:
    space = extended(cpu(), {"async-scheduling": [True, False]}, []).narrowed(fix={"async-scheduling": False}, only={})
    assert {c.options for c in configs(space)} == {(("async-scheduling", False),)}


def test_an_inline_space_drops_drafting_options_where_nothing_is_drafted() -> None:
    knobs: dict[str, list[Scalar]] = {
        "num_speculative_tokens": [0, 3], "speculative_method": ["ngram"], "prompt_lookup_max": [2, 4],
    }  # fmt: skip
    space = inline("mine", knobs, [], {})
    assert space.feasible().points == 3
    assert space.baselines == {1: ServingConfig()}


def test_an_inline_space_has_a_baseline_for_each_gpu_count() -> None:
    knobs: dict[str, list[Scalar]] = {"tensor_parallel_size": [1, 2, 4], "max_num_seqs": [8, 16]}
    space = inline("mine", knobs, ["max_num_seqs <= 8 * gpus"], {"tensor_parallel_size": 2, "max_model_len": 99})
    assert {gpus: baseline.values() for gpus, baseline in space.baselines.items()} == {
        1: {"max_num_seqs": 8, "max_model_len": 99},
        2: {"tensor_parallel_size": 2, "max_num_seqs": 8, "max_model_len": 99},
        4: {"tensor_parallel_size": 4, "max_num_seqs": 8, "max_model_len": 99},
    }
    assert space.feasible().rejected == {"user: max_num_seqs <= 8 * gpus": 1}


def test_rules_of_the_study_may_name_the_options_of_its_inline_space() -> None:
    space = inline("mine", {"async-scheduling": [True, False]}, [], {})
    assert len(configs(extended(space, {}, ["async_scheduling"]))) == 1
    with pytest.raises(SpaceError, match=r"^space\.rules\.0: unknown name"):
        inline("mine", {"max_num_seqs": [1]}, ["async_scheduling"], {})


def test_a_rule_names_the_two_halves_of_a_combined_knob() -> None:
    k3 = build("kimi_k3_gb300", Setting(model="m", gpu="GB300", gpus=8, max_model_len=300, max_concurrency=8))
    space = extended(k3, {}, ["num_speculative_tokens == 0 or draft_sample_method == 'greedy'"])
    assert {c.rejection_sample_method for c in configs(space)} == {None, "standard"}
    with pytest.raises(SpaceError, match="did you mean 'draft_sample_method'"):
        extended(k3, {}, ["draft_sampling == 'greedy/standard'"])


def test_capture_sizes_can_be_given_as_text() -> None:
    space = inline("mine", {"cudagraph_capture_sizes": ["1,2,4", None]}, [], {})
    assert [c.cudagraph_capture_sizes for c in configs(space)] == [(1, 2, 4), None]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_num_seqs": ["many"]}, r"knobs\.max_num_seqs: takes a whole number.*'many'"),
        ({"max_num_seqs": [True]}, r"knobs\.max_num_seqs: takes a whole number.*True"),
        ({"max_num_seqs": [8, 8]}, r"knobs\.max_num_seqs: .*repeats a choice"),
        ({"max_num_seqs": [None]}, r"knobs\.max_num_seqs: takes values like"),
        ({"enforce_eager": ["yes"]}, r"knobs\.enforce_eager: takes true or false"),
        ({"kv_cache_dtype": [8]}, r"knobs\.kv_cache_dtype: takes a text"),
        ({"options": ["x"]}, r"knobs\.options: name the vLLM option itself"),
        ({"a b": [1]}, r"knobs\.a b: 'a b' is not the name of an option"),
        ({"--seed": [1], "": [2]}, r"is not the name of an option"),
        ({"max-num-seqs": [8]}, r"knobs\.max-num-seqs: is written 'max_num_seqs' here"),
        ({"speculative-config.method": ["ngram"]}, r"is written 'speculative_method' here"),
        ({"compilation-config.cudagraph_mode": ["FULL"]}, r"is written 'cudagraph_mode' here"),
        ({"additional-config.decode_backnd": ["x"]}, r"vLLM would ignore it silently; known are decode_backend"),
        ({"async-scheduling": [True], "async_scheduling": [False]}, r"is the same option as 'async-scheduling'"),
        ({"cudagraph_capture_sizes": ["1,x"]}, r"knobs\.cudagraph_capture_sizes: sizes are written like"),
    ],
)
def test_a_wrong_knob_is_refused_by_its_key(knobs: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        extended(cpu(), knobs, [])


def test_a_combined_knob_keeps_its_own_words() -> None:
    k3 = build("kimi_k3_gb300", Setting(model="m", gpu="GB300", gpus=8, max_model_len=300, max_concurrency=8))
    with pytest.raises(SpaceError, match=r"knobs\.draft_sampling: has no choice 'hot'"):
        extended(k3, {"draft_sampling": ["hot"]}, [])


def test_a_wrong_baseline_is_refused_by_its_key() -> None:
    with pytest.raises(SpaceError, match=r"^space\.baseline\.max_num_seqs: takes a whole number"):
        inline("mine", {"max_num_seqs": [1]}, [], {"max_num_seqs": "1"})


def test_a_method_without_a_draft_model_is_refused_by_name() -> None:
    dense = build("dense_gpu", Setting(model="m", gpu="H200", gpus=1, max_model_len=300, max_concurrency=8))
    with pytest.raises(SpaceError, match="no draft model for speculative_method 'eagle3'"):
        extended(dense, {"speculative_method": ["eagle3"]}, []).feasible()


def test_every_field_of_a_configuration_has_a_known_type() -> None:
    assert {*user_space._TYPES, "options", "cudagraph_capture_sizes"} == {f.name for f in fields(ServingConfig)}
