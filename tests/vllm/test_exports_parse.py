"""vLLM's own parser reads every exported file and command line back as the configuration that was written."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from asking import ask, python_files

from search_spaces.catalog import build
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space
from tuner.core.acceptance import Acceptance
from tuner.core.vllm_args import ModelRef, benchmark_overlay, engine_options, to_cli, to_yaml
from tuner.core.workload import ServingWorkload

pytestmark = pytest.mark.vllm

AWKWARD = ModelRef(
    model="/models/a \"b\" <script> 中文 'c'",
    trust_remote_code=True,
    revision="main",
    extra={
        "enable-prefix-caching": False,
        "enable_log_requests": False,
        "language-model-only": True,
        "served-model-name": ["k3", "名", "on", "8", "null"],
        "seed": None,
        "gpu-memory-utilization": 0.9,
        "compilation-config": {"use_inductor_graph_partition": False},
        "hf-overrides": {"a": {"b": [1, 2.5, None, True, "x: y"]}},
    },
)


def space(name: str) -> Space:
    draft_models = {"eagle3": "acme/eagle3 draft", "dspark": "acme/dspark"}
    return build(
        name,
        Setting(
            model="m", gpu="GB300", gpus=16, gpus_per_node=4, max_model_len=9192, max_concurrency=8,
            draft_models=draft_models,
        ),
    )  # fmt: skip


def sample(name: str, count: int) -> list[ServingConfig]:
    """The baselines and seeds, and `count` of the points."""
    built = space(name)
    points: list[Any] = list(built.points())
    drawn = random.Random(name).sample(points, min(count, len(points)))
    return [*built.baselines.values(), *built.seeds, *drawn]  # type: ignore[list-item]


PLAIN = ModelRef(model="moonshotai/Kimi-K3")
SYNTHETIC = ServingWorkload(
    input_tokens=1, output_tokens=1000, context_tokens=1, concurrency=8, requests=8,
    acceptance=Acceptance(fixed_length=3.5),
)  # fmt: skip
Options = dict[str, object]
Read = list[dict[str, Any]]


def questions(options: Sequence[Options]) -> list[dict[str, object]]:
    return [{"file": to_yaml(each), "command": to_cli(each), "options": each} for each in options]


def check(options: Sequence[Options], read: Read) -> None:
    """Every set of options comes back whole from its file and from its command line, and nothing beside it."""
    assert len(read) == len(options) > 0
    for each, understood in zip(options, read, strict=True):
        assert understood["file"] == each
        assert understood["command"] == each
        written = {key.removeprefix("no-").replace("-", "_") for key in each}
        assert set(understood["changed"]) <= {*written, "model_tag"}, "vLLM understood an option that nobody wrote"


def exports(configs: Sequence[ServingConfig]) -> list[dict[str, object]]:
    """Each as it is exported, for a plain and an awkward model."""
    return [
        *(engine_options(config, PLAIN) for config in configs),
        *(engine_options(config, AWKWARD) for config in configs[::7]),
    ]


def measured(configs: Sequence[ServingConfig]) -> tuple[list[Options], list[dict[str, object]]]:
    """What an engine that is measured must understand, and its questions: the exported file, then the overlay."""
    overlays = [benchmark_overlay(config, SYNTHETIC, PLAIN) for config in configs]
    exported = [engine_options(config, PLAIN) for config in configs]
    wanted = [{**options, **overlay} for options, overlay in zip(exported, overlays, strict=True)]
    asked = [
        {"file": to_yaml(options), "overlay": to_cli(overlay), "command": to_cli(both), "options": both}
        for options, overlay, both in zip(exported, overlays, wanted, strict=True)
    ]
    return wanted, asked


def flags_set_to_false() -> Options:
    config = ServingConfig(
        enable_expert_parallel=False, enforce_eager=False, enable_chunked_prefill=False,
        options=(("async-scheduling", False), ("no-enable-prefix-caching", True)),
    )  # fmt: skip
    return engine_options(config, ModelRef(model="m", extra={"enable_sleep_mode": False}))


# What the renderer never writes: with these, the tests below show that the parser is asked and answers.
LOST = {"file": "model: m\nenable-prefix-caching: false\n", "command": ["m"], "options": {}}


@pytest.fixture(scope="module")
def kimi_k3_and_dense() -> list[Options]:
    return exports([*sample("kimi_k3_gb300", 800), *sample("dense_gpu", 200)])


@pytest.fixture(scope="module")
def read_by_0_33(kimi_k3_and_dense: list[Options]) -> Read:
    """What vLLM 0.33.0 understood; one process answers for all."""
    _, overlaid = measured(sample("kimi_k3_gb300", 200))
    question = [LOST, *questions([flags_set_to_false()]), *questions(kimi_k3_and_dense), *overlaid]
    answer: Read = ask("parse_exports.py", question, files=python_files())
    return answer


def test_vllm_0_33_reads_back_every_kimi_k3_and_dense_export(
    kimi_k3_and_dense: list[Options], read_by_0_33: Read
) -> None:
    assert len(kimi_k3_and_dense) > 1000
    check(kimi_k3_and_dense, read_by_0_33[2 : 2 + len(kimi_k3_and_dense)])


def test_the_benchmarks_overlay_changes_acceptance_and_nothing_else(read_by_0_33: Read) -> None:
    """vLLM replaces the file's mapping by the one on the command line, so the overlay must hold all of it."""
    wanted, _ = measured(sample("kimi_k3_gb300", 200))
    read = read_by_0_33[-len(wanted) :]
    check(wanted, read)
    drafting = [each["file"]["speculative-config"] for each in read if "speculative-config" in each["file"]]
    assert len(drafting) > 100
    assert {d["rejection_sample_method"] for d in drafting} == {"synthetic"}
    assert {d["model"] for d in drafting} == {"acme/dspark"}


def test_a_false_flag_of_every_kind_comes_back_false(read_by_0_33: Read) -> None:
    options = flags_set_to_false()
    assert {key for key in options if key.startswith("no-")} == {
        "no-enable-expert-parallel", "no-enforce-eager", "no-enable-chunked-prefill", "no-async-scheduling",
        "no-enable-prefix-caching", "no-enable-sleep-mode",
    }  # fmt: skip
    check([options], read_by_0_33[1:2])
    assert {"enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"} <= set(read_by_0_33[1]["changed"])


def test_what_the_renderer_avoids_is_really_lost_by_vllm(read_by_0_33: Read) -> None:
    """`flag: false` is dropped without a word. If vLLM learns to read it, the detour may go."""
    assert set(read_by_0_33[0]["changed"]) == {"model", "model_tag"}


def test_the_installed_cpu_engine_reads_back_every_tiny_cpu_export() -> None:
    options = exports(sample("tiny_cpu", 1000))
    check(options, ask("parse_exports.py", questions(options), files=None))
