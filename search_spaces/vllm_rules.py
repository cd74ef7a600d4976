"""Rules on a serving configuration that hold for any model, and how a rule reads the user's own options.

Each is arithmetic, or a refusal read in vLLM's source. Knows no space.
"""

from search_spaces.knob import Scalar
from search_spaces.rule import Rule
from search_spaces.serving import ServingConfig

# vLLM never checks this mapping: a misspelt key silently means `auto`. Every key that vLLM 0.33.0 reads on NVIDIA GPUs.
ADDITIONAL_CONFIG_KEYS = frozenset(
    {
        "decode_backend",
        "mla_core",
        "kda_decode_backend",
        "kda_spec_decode_backend",
        "kda_prefill_backend",
        "gdn_prefill_backend",
    }
)


def option(config: ServingConfig, name: str) -> Scalar:
    """A further vLLM option of the candidate, whether written with dashes or underscores; None where it is not set.

    name: with underscores; an option inside a mapping as `mapping.key`.   `no-<flag>` counts as the flag's opposite.
    """
    for key, value in config.options:
        spelt = key.replace("-", "_")
        if spelt == name:
            return value
        if spelt == f"no_{name}" and isinstance(value, bool):
            return not value
    return None


def _budget_covers_the_requests(config: ServingConfig) -> bool:
    if config.max_num_batched_tokens is None or config.max_num_seqs is None:
        return True
    return config.max_num_batched_tokens >= config.max_num_seqs * config.tokens_per_request


BATCH_BUDGET = Rule(
    name="batch-budget",
    sentence="max_num_batched_tokens is smaller than max_num_seqs x (drafts + 1), so some requests would always wait",
    source="arithmetic: the scheduler counts the drafts of each running request against max_num_batched_tokens",
    holds=_budget_covers_the_requests,
)

DCP_DIVIDES_TP = Rule(
    name="dcp-divides-tp",
    sentence="tensor_parallel_size must be divisible by decode_context_parallel_size",
    source="vLLM 0.33.0, config/parallel.py",
    holds=lambda c: c.tensor_parallel_size % c.decode_context_parallel_size == 0,
    versions=">=0.28,<0.34",
)


def gpus_available(gpus: int) -> Rule:
    return Rule(
        name="gpus-available",
        sentence=f"tensor x pipeline parallel needs more GPUs than the {gpus} there are",
        source="arithmetic",
        holds=lambda c: c.gpus <= gpus,
    )
