"""A vLLM serving configuration in vLLM's own option names. Knows no rule, no space and no file format."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from search_spaces.knob import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """What a candidate sets; None leaves an option to the engine's default.

    Names are vLLM's. Options that live inside one of vLLM's JSON dictionaries keep their own key there:
    `decode_backend`, `mla_core` (additional_config); `speculative_method`, `speculative_model`,
    `num_speculative_tokens`, `draft_sample_method`, `rejection_sample_method`, `prompt_lookup_max` and
    `prompt_lookup_min` (speculative_config); `cudagraph_mode` and `cudagraph_capture_sizes` (compilation_config).
    `kernel_table` is ours: `stock`, or the name of a tuned tile table that the plug-in loads.
    options: further vLLM options from the user's own knobs, sorted by name.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    dcp_comm_backend: str | None = None
    enable_expert_parallel: bool | None = None
    decode_backend: str | None = None
    mla_core: str | None = None
    kernel_table: str | None = None
    speculative_method: str | None = None
    speculative_model: str | None = None
    num_speculative_tokens: int = 0
    draft_sample_method: str | None = None
    rejection_sample_method: str | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    kv_cache_dtype: str | None = None
    mamba_cache_dtype: str | None = None
    mamba_ssm_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    enforce_eager: bool | None = None
    enable_chunked_prefill: bool | None = None
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    options: tuple[tuple[str, Scalar], ...] = ()

    @property
    def kind(self) -> str:
        return "serving"

    @property
    def gpus(self) -> int:
        """GPUs that one replica holds."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def tokens_per_request(self) -> int:
        """Tokens that one running request contributes to a decode step: its drafts and the one that is sure."""
        return self.num_speculative_tokens + 1

    def values(self) -> dict[str, Scalar]:
        """Set options by name, without those at the engine's default; capture sizes as `1,2,4`."""
        found: dict[str, Scalar] = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                found[name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
        found.update({f"options.{name}": value for name, value in self.options})
        return found

    @classmethod
    def from_values(cls, values: Mapping[str, Scalar]) -> "ServingConfig":
        """The inverse of `values`.

        Raises:
            ValueError: a name that is not an option here.
        """
        known: dict[str, object] = {}
        options: list[tuple[str, Scalar]] = []
        for name, value in values.items():
            if name.startswith("options."):
                options.append((name.removeprefix("options."), value))
            elif name == "cudagraph_capture_sizes" and isinstance(value, str):
                known[name] = tuple(int(size) for size in value.split(","))
            elif name in _DEFAULTS:
                known[name] = value
            else:
                raise ValueError(f"{name!r} is not an option of a serving configuration")
        return cls(**known, options=tuple(sorted(options)))  # type: ignore[arg-type]


_DEFAULTS: dict[str, object] = {f.name: f.default for f in fields(ServingConfig) if f.name != "options"}
