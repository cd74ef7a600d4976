"""A dense model on one host's GPUs: draft length, batch bounds, CUDA graph mode, and the type of keys and values."""

from search_spaces import drafting
from search_spaces.capture_sizes import capture_sizes
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space
from search_spaces.vllm_rules import BATCH_BUDGET, gpus_available

NAME = "dense_gpu"


def build(setting: Setting) -> Space:
    """The baseline is vLLM's own defaults: what `vllm serve MODEL` gives on that many GPUs."""
    concurrency = setting.max_concurrency

    def make(values: Values) -> ServingConfig:
        v: dict[str, Scalar] = {**values, **drafting.options(setting, values["speculative_method"])}
        tokens = v["max_num_batched_tokens"], v["num_speculative_tokens"], v["max_num_seqs"]
        batched, drafts, seqs = (int(number or 0) for number in tokens)
        return ServingConfig(
            **v,  # type: ignore[arg-type]
            max_model_len=setting.max_model_len,
            cudagraph_capture_sizes=capture_sizes(
                max_num_seqs=seqs, tokens_per_request=drafts + 1, max_num_batched_tokens=batched
            ),
        )

    return Space(
        name=NAME,
        knobs=(
            Knob(name="tensor_parallel_size", choices=(setting.gpus,)),
            *drafting.knobs(drafting.methods(setting)),
            Knob(
                name="max_num_seqs",
                choices=tuple(sorted({max(1, concurrency // 2), concurrency, 2 * concurrency})),
            ),
            Knob(name="max_num_batched_tokens", choices=(2048, 8192, 16384)),
            Knob(name="cudagraph_mode", choices=("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE")),
            Knob(name="kv_cache_dtype", choices=("auto", "fp8")),
        ),
        rules=(gpus_available(setting.gpus), BATCH_BUDGET),
        make=make,
        gpus=lambda candidate: candidate.gpus,  # type: ignore[attr-defined]
        baselines={setting.gpus: ServingConfig(tensor_parallel_size=setting.gpus, max_model_len=setting.max_model_len)},
    ).for_version(setting.vllm_version)
