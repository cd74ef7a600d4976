"""Speculation for models other than Kimi K3: which methods a setting offers, and the options of each."""

from search_spaces.knob import Knob, Scalar
from search_spaces.setting import Setting
from search_spaces.space import SpaceError

DRAFT_LENGTHS = (0, 3, 4, 5, 6, 7)
WITH_DRAFT_MODEL = ("dspark", "eagle3")
# Longest and shortest run of tokens that the n-gram method looks up; vLLM's own default is 5 for both, which finds
# nothing in short prompts.
LOOKUP_MAX, LOOKUP_MIN = 4, 2


def methods(setting: Setting) -> tuple[str, ...]:
    return (*(name for name in WITH_DRAFT_MODEL if name in setting.draft_models), "ngram")


def knobs(offered: tuple[str, ...]) -> tuple[Knob, ...]:
    return (
        Knob(name="num_speculative_tokens", choices=DRAFT_LENGTHS),
        Knob(name="speculative_method", choices=offered, active=lambda v: v["num_speculative_tokens"] != 0),
    )


def options(setting: Setting, method: Scalar) -> dict[str, Scalar]:
    """What else a `ServingConfig` needs for that method; empty for none. Raises SpaceError without its draft model."""
    if method is None:
        return {}
    if method == "ngram":
        return {"prompt_lookup_max": LOOKUP_MAX, "prompt_lookup_min": LOOKUP_MIN}
    if method not in setting.draft_models:
        raise SpaceError(f"engine.draft_models: names no draft model for speculative_method {method!r}")
    found: dict[str, Scalar] = {"speculative_model": setting.draft_models[str(method)]}
    if setting.draft_sampling is not None:
        found["draft_sample_method"], found["rejection_sample_method"] = setting.draft_sampling.split("/")
    return found
