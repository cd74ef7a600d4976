"""What the renderer writes is what vLLM reads: each pitfall of vLLM's file format once."""

import json
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.serving import ServingConfig
from tuner.core.acceptance import Acceptance, AcceptanceError
from tuner.core.vllm_args import (
    ModelRef,
    Nodes,
    RenderError,
    benchmark_overlay,
    engine_options,
    environment,
    from_yaml,
    launch_lines,
    to_cli,
    to_yaml,
)
from tuner.core.workload import ServingWorkload

K3 = ModelRef(model="moonshotai/Kimi-K3", trust_remote_code=True, extra={"language-model-only": True})
GB300 = Nodes(gpu="GB300", gpus_per_node=4)
SPECIALIZED = ServingConfig(
    tensor_parallel_size=16,
    decode_context_parallel_size=16,
    enable_expert_parallel=False,
    decode_backend="latency_specialized",
    speculative_method="dspark",
    speculative_model="Inferact/Kimi-K3-DSpark",
    num_speculative_tokens=7,
    draft_sample_method="greedy",
    rejection_sample_method="standard",
    kv_cache_dtype="fp8",
    max_num_seqs=8,
    cudagraph_mode="FULL_AND_PIECEWISE",
    cudagraph_capture_sizes=(8, 16, 32, 64),
    options=(("attention-config.use_prefill_query_quantization", True),),
)


def workload(**changes: Any) -> ServingWorkload:
    given: dict[str, Any] = {
        "input_tokens": 1, "output_tokens": 1000, "context_tokens": 8192, "concurrency": 1, "requests": 8,
    }  # fmt: skip
    return ServingWorkload(**{**given, **changes})


def test_options_carry_vllms_own_keys_with_mappings_nested() -> None:
    assert engine_options(SPECIALIZED, K3) == {
        "model": "moonshotai/Kimi-K3",
        "trust-remote-code": True,
        "tensor-parallel-size": 16,
        "decode-context-parallel-size": 16,
        "no-enable-expert-parallel": True,
        "kv-cache-dtype": "fp8",
        "max-num-seqs": 8,
        "additional-config": {"decode_backend": "latency_specialized"},
        "speculative-config": {
            "method": "dspark",
            "model": "Inferact/Kimi-K3-DSpark",
            "num_speculative_tokens": 7,
            "draft_sample_method": "greedy",
            "rejection_sample_method": "standard",
        },
        "compilation-config": {
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": [8, 16, 32, 64],
        },
        "attention-config": {"use_prefill_query_quantization": True},
        "language-model-only": True,
    }


def test_no_top_level_value_is_false_null_or_empty() -> None:
    """vLLM drops the first, reads the second as the text None, and drops the third."""
    extra = {"enable-prefix-caching": False, "enforce_eager": True, "seed": None, "no-enable-log-requests": False}
    options = engine_options(ServingConfig(enable_chunked_prefill=False), ModelRef(model="m", extra=extra))
    assert options == {
        "model": "m",
        "tensor-parallel-size": 1,
        "no-enable-chunked-prefill": True,
        "no-enable-prefix-caching": True,
        "enforce-eager": True,
        "enable-log-requests": True,
    }


def test_false_inside_a_mapping_stays_false() -> None:
    options = engine_options(ServingConfig(), ModelRef(model="m", extra={"compilation-config.use_inductor": False}))
    assert options["compilation-config"] == {"use_inductor": False}


def test_a_misspelt_additional_config_key_is_refused_by_name() -> None:
    model = ModelRef(model="m", extra={"additional-config": {"decode_backnd": "latency_specialized"}})
    with pytest.raises(RenderError, match=r"additional-config\.decode_backnd.*known keys"):
        engine_options(ServingConfig(), model)


@pytest.mark.parametrize(
    "extra",
    [
        {"max-num-seqs": 4},
        {"max_num_seqs": 4},
        {"no-enforce-eager": True},
        {"speculative-config": {"num_speculative_tokens": 3}},
        {"cudagraph-capture-sizes": []},
        {"additional-config": "text"},
    ],
)
def test_an_option_set_twice_or_unreadable_is_refused(extra: dict[str, Any]) -> None:
    config = ServingConfig(
        max_num_seqs=8, enforce_eager=True, num_speculative_tokens=2, speculative_method="ngram", decode_backend="auto"
    )
    with pytest.raises(RenderError, match=r"set twice|empty list"):
        engine_options(config, ModelRef(model="m", extra=extra))


def test_a_list_of_mappings_becomes_json_texts() -> None:
    options = engine_options(ServingConfig(), ModelRef(model="m", extra={"lora-modules": [{"name": "a", "path": "b"}]}))
    assert [json.loads(text) for text in options["lora-modules"]] == [{"name": "a", "path": "b"}]  # type: ignore[attr-defined]


def test_drafting_keys_of_the_study_are_left_out_where_nothing_is_drafted() -> None:
    model = ModelRef(model="m", extra={"speculative-config": {"attention_backend": "FLASH_ATTN"}})
    assert "speculative-config" not in engine_options(ServingConfig(), model)
    drafting = engine_options(ServingConfig(speculative_method="ngram", num_speculative_tokens=3), model)
    assert drafting["speculative-config"] == {
        "method": "ngram", "num_speculative_tokens": 3, "attention_backend": "FLASH_ATTN",
    }  # fmt: skip


def test_the_overlay_holds_the_whole_speculative_mapping() -> None:
    """On the command line vLLM replaces the file's mapping, so a part of it would lose the draft model."""
    asked = workload(acceptance=Acceptance(curve="kimi-k3-dspark-coding"))
    model = ModelRef(model="m", extra={"speculative-config.attention_backend": "FLASHINFER_MLA"})
    assert benchmark_overlay(SPECIALIZED, asked, model) == {
        "speculative-config": {
            "method": "dspark",
            "model": "Inferact/Kimi-K3-DSpark",
            "num_speculative_tokens": 7,
            "draft_sample_method": "greedy",
            "rejection_sample_method": "synthetic",
            "attention_backend": "FLASHINFER_MLA",
            "synthetic_acceptance_length": 3.78,
        }
    }


def test_a_made_up_cache_is_the_benchmarks_own_and_no_part_of_the_export() -> None:
    connector = {"kv-transfer-config": {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}}
    assert benchmark_overlay(ServingConfig(), workload(synthetic_kv=True)) == connector
    both = benchmark_overlay(SPECIALIZED, workload(synthetic_kv=True, acceptance=Acceptance(fixed_length=3.0)))
    assert both.keys() == {"kv-transfer-config", "speculative-config"}
    assert "kv-transfer-config" not in engine_options(SPECIALIZED, K3)
    assert to_cli(connector)[0] == "--kv-transfer-config"


def test_the_overlay_is_empty_for_real_acceptance_and_without_drafts() -> None:
    assert benchmark_overlay(SPECIALIZED, workload()) == {}
    assert benchmark_overlay(ServingConfig(), workload(acceptance=Acceptance(fixed_length=6.0))) == {}


def test_a_fixed_length_is_capped_at_what_the_drafts_can_give() -> None:
    """vLLM refuses a synthetic length above drafts + 1."""
    config = ServingConfig(speculative_method="dspark", num_speculative_tokens=3)
    overlay = benchmark_overlay(config, workload(acceptance=Acceptance(fixed_length=6.0)))
    assert overlay["speculative-config"]["synthetic_acceptance_length"] == 4.0  # type: ignore[index]


def test_a_draft_length_that_the_curve_lacks_is_an_error() -> None:
    config = ServingConfig(speculative_method="dspark", num_speculative_tokens=12)
    with pytest.raises(AcceptanceError, match="12 drafts"):
        benchmark_overlay(config, workload(acceptance=Acceptance(curve="kimi-k3-dspark-coding")))


def test_the_environment_names_the_tuned_table_and_the_rack_only_where_they_apply() -> None:
    assert environment(ServingConfig()) == {}
    assert environment(ServingConfig(kernel_table="stock"), GB300) == {}
    tuned = ServingConfig(kernel_table="tuned")
    assert environment(tuned, kernel_tables={"tuned": "/tables/gb300.json"}) == {
        "TUNER_KERNEL_TABLE": "/tables/gb300.json"
    }
    assert set(environment(SPECIALIZED, GB300)) == {
        "NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "VLLM_ENGINE_READY_TIMEOUT_S",
    }  # fmt: skip
    assert "NCCL_MNNVL_ENABLE" not in environment(SPECIALIZED, Nodes(gpu="H100", gpus_per_node=8))


def test_there_is_one_launch_line_a_tray_and_only_the_first_answers() -> None:
    lines = launch_lines(SPECIALIZED, GB300, config_file="k3 best.yaml", master_addr="10.0.0.1")
    assert [f"--node-rank {rank}" in line for rank, line in enumerate(lines)] == [True] * 4
    assert ["--headless" in line for line in lines] == [False, True, True, True]
    assert all("--config 'k3 best.yaml' --nnodes 4 --master-addr 10.0.0.1" in line for line in lines)
    (_, second, *_) = launch_lines(SPECIALIZED, GB300, config_file="a.yaml", master_addr="$NODE0")
    assert '--master-addr "$NODE0" ' in second
    (first, *_) = launch_lines(SPECIALIZED, GB300, config_file="a.yaml", master_addr="$(x); y")
    assert "--master-addr '$(x); y' " in first
    assert launch_lines(ServingConfig(), GB300, config_file="a.yaml") == ["vllm serve --config a.yaml"]


def test_the_command_line_puts_the_model_first_and_mappings_as_json() -> None:
    arguments = to_cli(engine_options(SPECIALIZED, K3))
    assert arguments[0] == "moonshotai/Kimi-K3"
    assert "--model" not in arguments
    assert json.loads(arguments[arguments.index("--additional-config") + 1]) == {
        "decode_backend": "latency_specialized"
    }
    assert arguments[arguments.index("--no-enable-expert-parallel") + 1].startswith("--")


TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=30)


@given(
    model=TEXT, key=TEXT.filter(lambda t: "." not in t), inner=TEXT, value=st.one_of(st.booleans(), st.integers(), TEXT)
)
@settings(deadline=None)
def test_any_text_survives_the_file(model: str, key: str, inner: str, value: object) -> None:
    extra = {"hf-overrides": {key: {inner: value}}}
    options = engine_options(ServingConfig(), ModelRef(model=model, extra=extra))
    assert from_yaml(to_yaml(options)) == options


@pytest.mark.parametrize("name", [f.name for f in fields(ServingConfig) if f.name != "kernel_table"])
def test_every_option_of_a_configuration_is_written(name: str) -> None:
    """All but the tile table, which is a variable of the environment."""
    drafting = ServingConfig(speculative_method="ngram", num_speculative_tokens=3)
    other: dict[str, Any] = {"cudagraph_capture_sizes": (1, 2), "options": (("seed", 3),)}
    hint = get_type_hints(ServingConfig)[name]
    value = other.get(name, True if bool in get_args(hint) else "text" if str in get_args(hint) else 5)
    changed = replace(drafting, **{name: value})
    assert to_yaml(engine_options(changed, K3)) != to_yaml(engine_options(drafting, K3))


def test_a_file_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(RenderError, match="mapping"):
        from_yaml("- a\n")
