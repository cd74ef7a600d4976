"""A small model on vLLM's CPU engine: only options that this engine honours.

CUDA graphs, FP8 keys and values and decode context parallelism mean nothing there; enforce_eager is fixed because
compilation costs minutes of start for a model that is measured for seconds.
"""

from search_spaces import drafting
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.rule import Rule
from search_spaces.serving import ServingConfig
from search_spaces.setting import Setting
from search_spaces.space import Space
from search_spaces.vllm_rules import BATCH_BUDGET

NAME = "tiny_cpu"

BLOCK_SIZE = Rule(
    name="cpu-block-size",
    sentence="the CPU attention kernels want a block_size that is a multiple of 32",
    source="vLLM 0.32.0, platforms/cpu.py",
    holds=lambda c: c.block_size is None or c.block_size % 32 == 0,
)


def build(setting: Setting) -> Space:
    """The baseline is vLLM's own defaults, enforce_eager apart."""
    concurrency = setting.max_concurrency

    def make(values: Values) -> ServingConfig:
        v: dict[str, Scalar] = {**values, **drafting.options(setting, values["speculative_method"])}
        return ServingConfig(
            **v,  # type: ignore[arg-type]
            enforce_eager=True,
            max_model_len=setting.max_model_len,
        )

    return Space(
        name=NAME,
        knobs=(
            *drafting.knobs(("ngram",)),
            Knob(
                name="max_num_seqs",
                choices=tuple(sorted({max(1, concurrency // 2), concurrency, 2 * concurrency})),
            ),
            Knob(name="max_num_batched_tokens", choices=(512, 2048)),
            Knob(name="block_size", choices=(32, 128)),
        ),
        rules=(BATCH_BUDGET, BLOCK_SIZE),
        make=make,
        baselines={1: ServingConfig(enforce_eager=True, max_model_len=setting.max_model_len)},
    ).for_version(setting.vllm_version)
