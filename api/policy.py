"""What a study file that came over the network may name. Knows nothing of HTTP; the words are the study file's.

A study file on a command line is the user's own business. One that is sent to a service decides what runs on the
service's machine: an interpreter, code in a model's folder, plug-ins by vLLM's own options. So options and variables
are on lists of those that tune and do nothing else, paths lie in folders that an administrator named, and everything
else is refused by its key.
"""

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from search_spaces.serving import ServingConfig
from tuner.core.study_file import SHIPPED_RECORDING, InlineSpace, StudyFile, StudyFileError

# vLLM options that change how fast it is, and neither load code nor open files, sockets or logs.
TUNING_OPTIONS = frozenset(
    [
        "all2all_backend",
        "async_scheduling",
        "attention_backend",
        "attention_config.mla_prefill_backend",
        "attention_config.use_prefill_query_quantization",
        "block_size",
        "calculate_kv_scales",
        "compilation_config",
        "cp_kv_cache_interleave_size",
        "cpu_offload_gb",
        "cudagraph_capture_sizes",
        "data_parallel_size",
        "dcp_kv_cache_interleave_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "disable_log_stats",
        "dtype",
        "enable_dbo",
        "enable_eplb",
        "enable_flashinfer_autotune",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "language_model_only",
        "linear_backend",
        "load_format",
        "long_prefill_token_threshold",
        "mamba_backend",
        "mamba_block_size",
        "mamba_cache_mode",
        "max_cudagraph_capture_size",
        "max_logprobs",
        "max_long_partial_prefills",
        "max_num_partial_prefills",
        "mm_encoder_tp_mode",
        "moe_backend",
        "num_gpu_blocks_override",
        "optimization_level",
        "performance_mode",
        "prefill_context_parallel_size",
        "quantization",
        "revision",
        "scheduling_policy",
        "seed",
        "skip_mm_profiling",
        "stream_interval",
        "swap_space",
        "tokenizer_mode",
    ]
) | {field.name for field in fields(ServingConfig) if field.name != "options"}
COMPILATION_KEYS = frozenset(
    [
        "mode",
        "level",
        "cudagraph_mode",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
        "use_inductor_graph_partition",
    ]
)
TUNING_VARIABLES = (
    "CUDA_MODULE_LOADING",
    "HF_HUB_OFFLINE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_LEVEL",
    "OMP_NUM_THREADS",
    "VLLM_ALLREDUCE_USE_SYMM_MEM",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_USE_FLASHINFER_*",
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_WORD = re.compile(r"[\w.,:+= -]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """roots: folders that models, drafts, data sets and recordings may lie in.   interpreters: that a file may name.
    options, variables: allowed beside the lists above; variables may hold `*`.   trust_remote_code: whether a study
    that starts engines may run code that comes with a model.   points: the largest space."""

    roots: tuple[Path, ...] = ()
    interpreters: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()
    trust_remote_code: bool = False
    points: int = 200_000

    def check(self, file: StudyFile) -> None:
        """Raises StudyFileError, one line for each key that is refused."""
        lines = list(self._refusals(file))
        if lines:
            raise StudyFileError("\n".join(lines))

    def _refusals(self, file: StudyFile) -> Iterator[str]:
        engine = file.engine
        yield from self._model("model", file.model)
        for method, model in engine.draft_models.items():
            yield from self._model(f"engine.draft_models.{method}", model)
        if file.recording is not None and file.recording != SHIPPED_RECORDING:
            yield from self._path("recording", file.recording)
        for name, path in file.engine.kernel_tables.items():
            yield from self._path(f"engine.kernel_tables.{name}", path)
        if file.workload is not None and file.workload.dataset is not None:
            yield from self._path("workload.dataset", file.workload.dataset.path)
        if engine.python is not None and engine.python not in self.interpreters:
            yield "engine.python: this service chooses the interpreter; leave the key out"
        if file.quality.tasks_python is not None and file.quality.tasks_python not in self.interpreters:
            yield "quality.tasks_python: this service chooses the interpreter; leave the key out"
        if file.quality.tasks_folder is not None:
            yield "quality.tasks_folder: task files can run code of their own; only lm-eval's tasks are taken here"
        if engine.arguments:
            yield "engine.arguments: a study sent to a service cannot add to the command line; use engine.options"
        if engine.trust_remote_code and file.evaluator in ("vllm", "kernel") and not self.trust_remote_code:
            yield "engine.trust_remote_code: an administrator has to allow code that comes with a model"
        for name in engine.environment:
            if not any(fnmatch.fnmatchcase(name, allowed) for allowed in (*TUNING_VARIABLES, *self.variables)):
                yield f"engine.environment.{name}: not among the variables that this service sets"
        for where, name, value in _options(file):
            yield from self._option(where, name, value)
        if _points(file) > self.points:
            yield f"space: more than {self.points} combinations of the study's own knobs"

    def _model(self, key: str, value: str) -> Iterator[str]:
        if not _HUB_NAME.fullmatch(value):
            yield from self._path(key, value)

    def _path(self, key: str, value: str) -> Iterator[str]:
        """`..` and symbolic links are followed first, so a path says where it ends."""
        try:
            ends = Path(value.replace("\0", "?")).resolve()
            inside = any(ends.is_relative_to(root.resolve()) for root in self.roots)
        except (OSError, RuntimeError):  # a loop of links, a name that is too long
            inside = False
        if not Path(value).is_absolute() or not inside:
            yield f"{key}: a path must be absolute and lie in one of the service's folders for models and data"

    def _option(self, where: str, name: str, value: object) -> Iterator[str]:
        plain = name.removeprefix("options.").replace("-", "_")
        if plain not in TUNING_OPTIONS | self.options and plain.removeprefix("no_") not in TUNING_OPTIONS:
            yield f"{where}.{name}: not among the vLLM options that this service sets"
        elif plain == "speculative_model" and isinstance(value, str):
            yield from self._model(f"{where}.{name}", value)
        elif isinstance(value, Mapping):
            unknown = [str(key) for key in value if str(key) not in COMPILATION_KEYS]
            if plain != "compilation_config" or unknown:
                yield f"{where}.{name}: cannot hold {', '.join(unknown) or 'keys'}"
        elif not all(_WORD.fullmatch(text) for text in _texts(value)):
            yield f"{where}.{name}: neither a number nor a plain word"


def _options(file: StudyFile) -> Iterator[tuple[str, str, object]]:
    """Where, name and value of everything in the file that reaches vLLM's command line. `fix` and `only` choose among
    choices that are here already, or the built-in space's own."""
    inline = file.space if isinstance(file.space, InlineSpace) else None
    for where, choices in (
        ("space.knobs", inline.knobs if inline else {}),
        ("knobs", file.knobs),
    ):
        yield from ((where, name, value) for name, values in choices.items() for value in values)
    for where, values in (
        ("space.baseline", inline.baseline if inline else {}),
        ("baseline", file.baseline),
        ("engine.options", file.engine.options),
        *((f"candidates.{number}", candidate) for number, candidate in enumerate(file.candidates)),
    ):
        yield from ((where, name, value) for name, value in values.items())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, Mapping):
        yield "/"  # no mapping within a list


def _points(file: StudyFile) -> int:
    inline = file.space.knobs if isinstance(file.space, InlineSpace) else {}
    return math.prod(len(choices) for knobs in (inline, file.knobs) for choices in knobs.values())
