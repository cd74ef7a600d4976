"""Each difference that forbids a comparison is named in words."""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.serving import ServingConfig
from tests.confirmations import FINGERPRINT
from tuner.core.acceptance import REAL, Acceptance
from tuner.core.comparability import (
    AUTOTUNE_CACHE,
    Conditions,
    IncomparableError,
    acceptance_refusal,
    differences,
    fingerprint_differences,
    require_comparable,
)
from tuner.core.workload import Dataset, GemmProblem, ServingWorkload

CURVE = Acceptance(curve="kimi-k3-dspark-coding")
FIXED = Acceptance(fixed_length=4.0)


def conditions(
    acceptance: Acceptance = REAL, *, drafts: int = 0, sampler: str | None = None, **other: Any
) -> Conditions:
    workload = ServingWorkload(
        input_tokens=1, output_tokens=100, context_tokens=1, concurrency=1, requests=8, acceptance=acceptance
    )
    config = ServingConfig(
        num_speculative_tokens=drafts, draft_sample_method=sampler, max_num_seqs=other.pop("seqs", 8)
    )
    return replace(Conditions.of("org/model", workload, FINGERPRINT, config), **other)


def test_two_candidates_of_one_study_are_comparable() -> None:
    a, b = conditions(seqs=8), conditions(seqs=16)
    assert a.candidate_key != b.candidate_key
    assert differences(a, b) == []
    require_comparable(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "org/other"}, "model: org/model and org/other"),
        ({"gpus": 2}, "GPU count: 1 and 2; show them side by side, per user and per GPU"),
        ({"fingerprint": replace(FINGERPRINT, gpu="GB300")}, "hardware: H200 and GB300"),
        ({"fingerprint": replace(FINGERPRINT, driver="")}, "driver: 580.1 and none"),
        ({"fingerprint": replace(FINGERPRINT, host="b")}, "host: a and b"),
        ({"fingerprint": replace(FINGERPRINT, engine="predicted")}, "engine: vllm and predicted"),
        ({"fingerprint": replace(FINGERPRINT, gpus=4)}, "GPUs held: 1 and 4"),
        ({"fingerprint": replace(FINGERPRINT, versions={"vllm": "0.32.0"})}, "version of vllm: 0.33.0 and 0.32.0"),
        (
            {"fingerprint": replace(FINGERPRINT, settings={"NCCL_NVLS_ENABLE": "1"})},
            "setting NCCL_NVLS_ENABLE: not set and 1",
        ),
        ({"workload": GemmProblem(n=1, k=1, m=1)}, "kind of workload: serving and gemm"),
    ],
)
def test_each_difference_is_named(change: dict[str, Any], words: str) -> None:
    found = differences(conditions(), conditions(**change))
    assert found == [words]
    with pytest.raises(IncomparableError, match="not comparable: "):
        require_comparable(conditions(), conditions(**change))


CHATS = Dataset(kind="sharegpt", sha256="abcdef", path="/data/chats.json")


def test_a_workload_that_differs_is_named_by_what_differs() -> None:
    a = conditions()
    assert isinstance(a.workload, ServingWorkload)
    other = replace(a, workload=replace(a.workload, concurrency=8, dataset=CHATS))
    assert differences(a, other) == [
        "workload concurrency: 1 and 8",
        "workload dataset: random tokens and sharegpt chats.json (abcdef)",
    ]
    moved = replace(other, workload=replace(other.workload, dataset=replace(CHATS, path="/elsewhere/chats.json")))
    assert differences(other, moved) == []


def test_two_kernel_problems_differ_by_their_sizes_and_not_by_their_names() -> None:
    problem = GemmProblem(n=8, k=8, m=1, name="q")
    a = replace(conditions(), workload=problem)
    assert differences(a, replace(a, workload=replace(problem, name="k"))) == []
    assert differences(a, replace(a, workload=replace(problem, m=2))) == ["workload m: 1 and 2"]


def test_real_and_synthetic_acceptance_are_not_compared() -> None:
    found = differences(conditions(), conditions(CURVE))
    assert found == ["acceptance source: real and synthetic curve kimi-k3-dspark-coding"]


def test_one_curve_compares_draft_lengths_since_it_gives_each_its_own_length() -> None:
    assert differences(conditions(CURVE, drafts=3), conditions(CURVE, drafts=7)) == []
    assert differences(conditions(CURVE, drafts=0), conditions(CURVE, drafts=7)) == []


def test_one_fixed_synthetic_length_may_not_rank_draft_lengths() -> None:
    (found,) = differences(conditions(FIXED, drafts=3), conditions(FIXED, drafts=7))
    assert found.startswith("draft length: 3 and 7 under synthetic length 4; one fixed synthetic length says nothing")
    assert differences(conditions(FIXED, drafts=7, seqs=8), conditions(FIXED, drafts=7, seqs=16)) == []


def test_a_curve_says_nothing_of_another_sampler() -> None:
    (found,) = differences(
        conditions(CURVE, drafts=3, sampler="greedy"), conditions(CURVE, drafts=3, sampler="probabilistic")
    )
    assert found.startswith("sampler: curve kimi-k3-dspark-coding was measured with greedy and standard sampling")
    assert differences(conditions(CURVE, drafts=3, sampler="greedy"), conditions(CURVE, drafts=3)) == []


def test_the_autotune_cache_must_be_equal_between_starts_of_one_candidate_only() -> None:
    one = replace(FINGERPRINT, settings={AUTOTUNE_CACHE: "aa"})
    two = replace(FINGERPRINT, settings={AUTOTUNE_CACHE: "bb"})
    assert fingerprint_differences(one, two, same_candidate=False) == []
    assert fingerprint_differences(one, two, same_candidate=True) == ["setting autotune_cache_sha256: aa and bb"]


def test_a_tuned_kernel_table_is_the_candidates_own_and_is_no_difference_to_the_baseline() -> None:
    with_table = replace(FINGERPRINT, settings={"TUNER_KERNEL_TABLE": "/tables/h200.csv"})
    assert fingerprint_differences(FINGERPRINT, with_table, same_candidate=False) == []
    assert fingerprint_differences(FINGERPRINT, with_table, same_candidate=True) != []


def test_a_plan_can_refuse_before_anything_is_run() -> None:
    three, seven = ServingConfig(num_speculative_tokens=3), ServingConfig(num_speculative_tokens=7)
    assert acceptance_refusal(FIXED, [three, seven]).startswith(
        "draft lengths 3, 7 under synthetic length 4: one fixed"
    )
    assert acceptance_refusal(FIXED, [three, ServingConfig(num_speculative_tokens=3, max_num_seqs=8)]) == ""
    assert acceptance_refusal(CURVE, [ServingConfig(), three, seven]) == ""
    assert acceptance_refusal(REAL, [three, seven]) == ""
    other = ServingConfig(
        num_speculative_tokens=3, draft_sample_method="probabilistic", rejection_sample_method="block"
    )
    assert "was measured with greedy and standard sampling, not with probabilistic and block" in acceptance_refusal(
        CURVE, [three, other]
    )
