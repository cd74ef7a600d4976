"""Bytes on a GPU, what fits, and refusals that show their arithmetic."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from search_spaces.serving import ServingConfig
from tuner.core.study_file import StudyFile, parse
from tuner.predict import memory

ROOT = Path(__file__).parents[3]
TP8 = ServingConfig(tensor_parallel_size=8, decode_backend="auto", kv_cache_dtype="fp8", max_num_seqs=64)


def study(**changes: object) -> StudyFile:
    document = yaml.safe_load((ROOT / "examples" / "kimi_k3_gb300.yaml").read_text())
    return parse({**document, **changes})


def total(config: ServingConfig, *, requests: int, context: int) -> float:
    return sum(memory.bytes_needed(config, requests=requests, context=context).values())


def test_the_largest_context_fits_and_one_token_more_does_not() -> None:
    for config in (TP8, replace(TP8, decode_context_parallel_size=8), replace(TP8, kv_cache_dtype="auto")):
        context = memory.largest_context(config, "GB300", requests=4)
        usable = memory.usable_bytes(config, "GB300")
        assert total(config, requests=4, context=context) <= usable
        assert total(config, requests=4, context=context + 1) > usable


def test_the_most_requests_fit_and_one_more_does_not() -> None:
    config = replace(TP8, max_num_seqs=None, num_speculative_tokens=7)
    most = memory.most_requests(config, "GB300", context=100_000)
    assert most > 1
    usable = memory.usable_bytes(config, "GB300")
    assert total(config, requests=most, context=100_000) <= usable < total(config, requests=most + 1, context=100_000)


def test_dcp_splits_keys_and_values_and_fp8_halves_them() -> None:
    def keys(**changes: object) -> float:
        config = replace(TP8, **changes)  # type: ignore[arg-type]
        return memory.bytes_needed(config, requests=1, context=1000)["keys and values"]

    assert keys(decode_context_parallel_size=8) * 8 == keys()
    assert keys(kv_cache_dtype="auto") == 2 * keys()


def test_a_request_holds_a_state_for_each_draft_and_one_more() -> None:
    drafting = replace(TP8, num_speculative_tokens=7)
    plain, spoken = (memory.bytes_needed(c, requests=2, context=0) for c in (TP8, drafting))
    assert spoken["recurrent state"] == 8 * plain["recurrent state"]
    assert plain["draft model"] == 0 < spoken["draft model"]


def test_no_more_requests_hold_memory_than_may_run() -> None:
    assert total(TP8, requests=10_000, context=100) == total(TP8, requests=64, context=100)


def test_a_candidate_that_cannot_fit_is_refused_with_its_arithmetic() -> None:
    refuse = memory.memory_check(study())
    assert refuse(TP8) == ()
    crowded = replace(TP8, options=(("gpu-memory-utilization", 0.5),))
    (reason,) = refuse(crowded)
    assert reason.rule == "memory"
    parts = memory.bytes_needed(crowded, requests=1, context=study().workloads[0].max_model_len)  # type: ignore[union-attr]
    assert f"needs {sum(parts.values()) / memory.GIB:.1f} GiB a GPU" in reason.sentence
    assert f"{parts['weights'] / memory.GIB:.1f} weights" in reason.sentence
    assert f"{0.5 * 284_208 / 1024:.1f} are usable" in reason.sentence


def test_nothing_is_refused_for_a_gpu_whose_memory_is_not_known() -> None:
    refuse = memory.memory_check(study(hardware={"gpu": "B999", "gpus": 16}))
    assert refuse(replace(TP8, options=(("gpu-memory-utilization", 0.1),))) == ()


def test_16_ranks_hold_more_than_half_of_what_8_hold_since_experts_are_padded() -> None:
    eight = memory.bytes_needed(TP8, requests=1, context=0)["weights"]
    sixteen = memory.bytes_needed(replace(TP8, tensor_parallel_size=16), requests=1, context=0)["weights"]
    assert sixteen / eight == pytest.approx(0.675, abs=0.01)


def test_the_study_s_own_share_of_the_memory_counts() -> None:
    assert memory.memory_check(study(engine={"options": {"gpu-memory-utilization": 0.5}}))(TP8) != ()
    assert memory.memory_check(study(engine={"options": {"gpu-memory-utilization": 0.9}}))(TP8) == ()
