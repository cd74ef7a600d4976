"""What a built-in space is built for: the machine, the model and the bounds of the workload. Knows no space."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """model: name or folder.   gpu: product name, or `cpu`.   gpus: all that a candidate may hold.
    gpus_per_node: in one tray or server.   max_model_len: tokens of context that the workload needs at least.
    max_concurrency: the most requests in flight in any workload of the study.
    draft_models: speculative method to the draft's name or folder; a method without its draft is not offered.
    draft_sampling: `greedy/standard` or `probabilistic/block` where acceptance is synthetic by a curve, which was
        measured with that sampler only; None where any may be tried.
    """

    model: str
    gpu: str
    gpus: int
    gpus_per_node: int = 8
    max_model_len: int
    max_concurrency: int
    vllm_version: str = "0.33.0"
    draft_models: Mapping[str, str] = field(default_factory=dict)
    draft_sampling: str | None = None
