"""Write a serving configuration as vLLM options: file, command line, environment, launch lines. The one renderer.

Knows vLLM's option grammar and its pitfalls; knows no study, no engine process and no rule. How `vllm serve --config`
reads a file was read from, and run on, vLLM 0.32.0 and 0.33.0 (`utils/argparse_utils.py`):

- `flag: false` is dropped without a word, so False becomes `no-<flag>: true`;
- `key: null` becomes the text "None" and an empty list drops the key, so None is left out and an empty list is refused;
- a list of mappings is written with `str()`, so each mapping becomes JSON text first;
- an option on the command line replaces the file's whole mapping, so an overlay carries the merged mapping.

Prefix caching is written only where the study asks for it (`engine.options: {enable-prefix-caching: false}`): it
changes the engine that is exported, so no overlay switches it behind the user's back.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from search_spaces.serving import ServingConfig
from search_spaces.vllm_rules import ADDITIONAL_CONFIG_KEYS
from tuner.core.workload import ServingWorkload

KERNEL_TABLE_VARIABLE = "TUNER_KERNEL_TABLE"
# Fills the cache of a new request instead of computing its prompt; its outputs mean nothing.
SYNTHETIC_KV_CONNECTOR = "DecodeBenchConnector"

# Trays joined by NVLink across nodes; the variables are those of vLLM's GB300 recipe for Kimi K3.
_NVLINK_RACKS = ("GB200", "GB300")
_NVLINK_RACK_VARIABLES = {
    "NCCL_MNNVL_ENABLE": "1",
    "NCCL_CUMEM_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "1",
}
# Loading 1.5 TB of weights takes longer than vLLM's default wait of 600 s for its engine processes (same recipe).
_SEVERAL_NODES_VARIABLES = {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}

_TOP_LEVEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "dcp_comm_backend",
    "enable_expert_parallel",
    "kv_cache_dtype",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "enforce_eager",
    "enable_chunked_prefill",
)
_ADDITIONAL = ("decode_backend", "mla_core")
_COMPILATION = ("cudagraph_mode", "cudagraph_capture_sizes")
_DRAFTING = ("draft_sample_method", "rejection_sample_method", "prompt_lookup_max", "prompt_lookup_min")


class RenderError(ValueError):
    """An option that vLLM could not read back as it was meant; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """What is served, the same for every candidate of a study.

    model: name on a hub, or a folder.   extra: further vLLM options by YAML key, such as `language-model-only`;
    a candidate that sets the same option to another value is refused rather than one of the two preferred.
    """

    model: str
    trust_remote_code: bool = False
    revision: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The hosts that one engine is spread over. gpu: product name.   gpus_per_node: GPUs in one tray or server."""

    gpu: str = ""
    gpus_per_node: int = 8

    def count(self, config: ServingConfig) -> int:
        return -(-config.gpus // self.gpus_per_node)


def engine_options(config: ServingConfig, model: ModelRef) -> dict[str, object]:
    """Nested vLLM options: keys with dashes at the top, the exact field names with underscores inside mappings.

    Raises:
        RenderError: an option that vLLM would misread, or one set twice with different values.
    """
    options: dict[str, object] = {"model": model.model}
    if model.trust_remote_code:
        options["trust-remote-code"] = True
    if model.revision is not None:
        options["revision"] = model.revision
    for name in _TOP_LEVEL:
        value = getattr(config, name)
        if value is not None and (value != 1 or name == "tensor_parallel_size" or not name.endswith("parallel_size")):
            _set(options, name, value)
    for name in _ADDITIONAL:
        _set(options, f"additional-config.{name}", getattr(config, name))
    for name, value in (speculative_config(config) or {}).items():
        _set(options, f"speculative-config.{name}", value)
    for name in _COMPILATION:
        value = getattr(config, name)
        _set(options, f"compilation-config.{name}", list(value) if isinstance(value, tuple) else value)
    for name, value in config.options:
        _set(options, name, value)
    for name, value in model.extra.items():
        _set(options, name, value)
    # A study may refine what a candidate drafts; without a draft, its keys would ask vLLM for one that has no method.
    refined = options.get("speculative-config")
    if isinstance(refined, dict) and not refined.keys() & {"method", "model", "num_speculative_tokens"}:
        del options["speculative-config"]
    return options


def speculative_config(config: ServingConfig) -> dict[str, object] | None:
    """vLLM's speculative_config for that candidate; None where it drafts nothing."""
    if config.num_speculative_tokens == 0:
        return None
    found: dict[str, object] = {}
    if config.speculative_method is not None:
        found["method"] = config.speculative_method
    if config.speculative_model is not None:
        found["model"] = config.speculative_model
    found["num_speculative_tokens"] = config.num_speculative_tokens
    found.update({name: getattr(config, name) for name in _DRAFTING if getattr(config, name) is not None})
    return found


def benchmark_overlay(
    config: ServingConfig, workload: ServingWorkload, model: ModelRef | None = None
) -> dict[str, object]:
    """What a benchmark adds to the exported options: a synthetic KV cache and synthetic acceptance, where the workload
    asks for them.

    The speculative mapping is whole, the study's own keys (`model.extra`) included, since vLLM replaces it whole.
    No acceptance where nothing is drafted or acceptance is real.

    Raises:
        AcceptanceError: the workload's curve has no value for the candidate's draft length.
    """
    found: dict[str, object] = {}
    if workload.synthetic_kv:
        found["kv-transfer-config"] = {"kv_connector": SYNTHETIC_KV_CONNECTOR, "kv_role": "kv_both"}
    length = workload.acceptance.length(config.num_speculative_tokens)
    if not workload.acceptance.synthetic or length is None or config.num_speculative_tokens == 0:
        return found
    drafting = engine_options(config, model or ModelRef(model=""))["speculative-config"]
    assert isinstance(drafting, dict)
    found["speculative-config"] = {
        **drafting,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": min(length, float(config.tokens_per_request)),
    }
    return found


def environment(
    config: ServingConfig, nodes: Nodes | None = None, *, kernel_tables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables that belong to the configuration and that no vLLM option can set.

    nodes: without it the engine is taken to stand on one host.   kernel_tables: name of a tile table to the path of its
    file on the engine's host.

    Raises:
        RenderError: the configuration names a table that has no file.
    """
    found: dict[str, str] = {}
    if config.kernel_table not in (None, "stock"):
        table = str(config.kernel_table)
        if table not in (kernel_tables or {}):
            raise RenderError(f"kernel_table {table!r} has no file; name it in engine.kernel_tables")
        found[KERNEL_TABLE_VARIABLE] = (kernel_tables or {})[table]
    if nodes is not None and nodes.count(config) > 1:
        if any(rack in nodes.gpu.upper() for rack in _NVLINK_RACKS):
            found.update(_NVLINK_RACK_VARIABLES)
        found.update(_SEVERAL_NODES_VARIABLES)
    return found


def to_yaml(options: Mapping[str, object]) -> str:
    """A file for `vllm serve --config FILE`; the name of the file must end in .yaml."""
    return yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)


def from_yaml(text: str) -> dict[str, object]:
    """The inverse of `to_yaml`; comments are lost.

    Raises:
        RenderError: the text is not a mapping.
    """
    found = yaml.safe_load(text)
    if not isinstance(found, dict):
        raise RenderError("a vLLM configuration file is a mapping of options")
    return found


def to_cli(options: Mapping[str, object]) -> list[str]:
    """Arguments behind `vllm serve`: the model first, since `vllm serve` refuses `--model`; mappings as JSON."""
    arguments = [str(options["model"])] if "model" in options else []
    for key, value in options.items():
        if key == "model":
            continue
        if value is True:
            arguments.append(f"--{key}")
        elif isinstance(value, Mapping):
            arguments += [f"--{key}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            arguments += [f"--{key}", *(str(item) for item in value)]
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


def launch_lines(
    config: ServingConfig,
    nodes: Nodes,
    *,
    config_file: str,
    master_addr: str = "NODE0",
    master_port: int = 29500,
    arguments: Sequence[str] = (),
) -> list[str]:
    """One shell line for each node, in order of rank. Every node reads the same file.

    master_addr: address of node 0 that the others reach; `$NAME` is left for the shell to expand.
    arguments: appended to each line.
    """
    line = ["vllm", "serve", "--config", config_file]
    count = nodes.count(config)
    if count == 1:
        return [shlex.join([*line, *arguments])]
    variable = master_addr.startswith("$") and master_addr[1:].isidentifier()
    address = f'"{master_addr}"' if variable else shlex.quote(master_addr)
    joint = f"{shlex.join(line)} --nnodes {count} --master-addr {address} --master-port {master_port}"
    return [
        f"{joint} {shlex.join(['--node-rank', str(rank), *(['--headless'] if rank else []), *arguments])}"
        for rank in range(count)
    ]


def _set(options: dict[str, object], name: str, value: Any) -> None:
    """Put one option in its place: `a.b` goes into the mapping `a`; None is left to vLLM."""
    if value is None:
        return
    head, _, inner = name.partition(".")
    key = head.strip().replace("_", "-")
    if inner:
        value = {inner: value}
    if isinstance(value, Mapping):
        _merge(options, key, _unfolded(value))
        return
    if isinstance(value, bool):
        negated = key.startswith("no-")
        key = key.removeprefix("no-")
        key, value = (key if value != negated else f"no-{key}"), True
    elif isinstance(value, list | tuple):
        if not value:
            raise RenderError(f"{key}: vLLM drops an empty list; leave the option out instead")
        value = [json.dumps(item) if isinstance(item, Mapping) else item for item in value]
    opposite = key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"
    if opposite in options or options.get(key, value) != value:
        before = options.get(key, opposite)
        raise RenderError(f"{key}: set twice, to {before!r} and to {value!r}")
    options[key] = value


def _merge(options: dict[str, object], key: str, values: Mapping[str, Any]) -> None:
    known = options.setdefault(key, {})
    if not isinstance(known, dict):
        raise RenderError(f"{key}: set twice, to {known!r} and to {dict(values)!r}")
    if key == "additional-config":
        for name in values:
            if name not in ADDITIONAL_CONFIG_KEYS:
                raise RenderError(
                    f"additional-config.{name}: vLLM would ignore it silently; "
                    f"known keys: {', '.join(sorted(ADDITIONAL_CONFIG_KEYS))}"
                )
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(known.get(name), dict):
            known[name] = {**known[name], **value}
        elif known.get(name, value) != value:
            raise RenderError(f"{key}.{name}: set twice, to {known[name]!r} and to {value!r}")
        else:
            known[name] = value


def _unfolded(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`, without Nones."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        head, _, inner = name.partition(".")
        if not inner:
            found[head] = value
        elif isinstance(found.setdefault(head, {}), dict):
            found[head].update(_unfolded({inner: value}))
        else:
            raise RenderError(f"{name}: set twice, to {found[head]!r} and to a mapping")
    return found
