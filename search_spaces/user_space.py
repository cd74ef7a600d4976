"""What users add to a space or write from nothing: their own knobs, rules and baseline. Knows no file format."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, get_args, get_type_hints

from search_spaces import expression
from search_spaces.knob import Knob, Scalar, Values
from search_spaces.serving import ServingConfig
from search_spaces.space import Space, SpaceError, assignments
from search_spaces.vllm_rules import ADDITIONAL_CONFIG_KEYS

_TYPES: Mapping[str, tuple[type, ...]] = {
    name: tuple(get_args(hint)) or (hint,)
    for name, hint in get_type_hints(ServingConfig).items()
    if name not in ("options", "cudagraph_capture_sizes")
}
_SIZES = "cudagraph_capture_sizes"
_DRAFTING = (
    "speculative_method", "speculative_model", "draft_sample_method", "rejection_sample_method", "prompt_lookup_max",
    "prompt_lookup_min",
)  # fmt: skip
# Options that a configuration has as fields of its own, whatever mapping of vLLM's they live in.
_MAPPINGS = ("additional_config", "speculative_config", "compilation_config")
_OWN_NAMES = {"speculative_config.method": "speculative_method", "speculative_config.model": "speculative_model"}
# A built-in knob that stands for two options; rules name the two.
COMBINED = ("draft_sampling",)


def extended(space: Space, knobs: Mapping[str, Sequence[Scalar]], rules: Sequence[str]) -> Space:
    """The space with a user's knobs and rules.

    A knob that the space has takes the given choices instead of its own, and keeps its condition. A further one whose
    name is a field of `ServingConfig` sets that field; any other becomes the vLLM option of that name.

    Raises:
        SpaceError: naming the key: a choice of the wrong type, a repeated choice, or a rule that cannot be read.
    """
    own = {knob.name for knob in space.knobs}
    given = _knobs(knobs, "knobs")
    for knob in given:
        if knob.name in own:
            _check_replaced(space.knob(knob.name), knob)
    replaced = {knob.name: knob.choices for knob in given if knob.name in own}
    further = tuple(knob for knob in given if knob.name not in own)
    known = {knob.name: knob.choices for knob in space.knobs if knob.name not in COMBINED}
    make = space.make

    def made(values: Values) -> Any:
        candidate = make({name: value for name, value in values.items() if name in own})
        return with_values(candidate, {knob.name: values[knob.name] for knob in further})  # type: ignore[arg-type]

    return replace(
        space,
        knobs=(*(replace(k, choices=replaced.get(k.name, k.choices)) for k in space.knobs), *further),
        rules=(*space.rules, *expression.rules(rules, names({**known, **knobs}))),
        make=made if further else make,
        _index={},
    )


def inline(
    name: str, knobs: Mapping[str, Sequence[Scalar]], rules: Sequence[str], baseline: Mapping[str, Scalar]
) -> Space:
    """A space made of a user's knobs alone.

    baseline: what is run today; a knob that it leaves out takes its first choice. There is one baseline for each GPU
    count among the points.

    Raises:
        SpaceError: as `extended`; also for a baseline option of the wrong type.
    """
    given = _knobs(knobs, "space.knobs")
    for option, value in baseline.items():
        _check(f"space.baseline.{option}", option, value)
    first = {**{knob.name: knob.choices[0] for knob in given}, **baseline}

    def make(values: Values) -> ServingConfig:
        return with_values(ServingConfig(), values)

    placed = [knob for knob in given if knob.name in ("tensor_parallel_size", "pipeline_parallel_size")]
    candidates = [make({**first, **values}) for values in assignments(placed)]
    return Space(
        name=name,
        knobs=given,
        rules=expression.rules(rules, names({**{o: (v,) for o, v in baseline.items()}, **knobs}), key="space.rules"),
        make=make,
        gpus=lambda candidate: candidate.gpus,  # type: ignore[attr-defined]
        baselines={c.gpus: c for c in [*reversed(candidates), make(first)]},
    )


def with_values(config: ServingConfig, values: Values) -> ServingConfig:
    """The configuration with fields or further options set by name; drafting options go where nothing is drafted."""
    changes: dict[str, Any] = {}
    options = dict(config.options)
    for name, value in values.items():
        if name == _SIZES:
            changes[name] = None if value is None else tuple(int(size) for size in str(value).split(","))
        elif name in _TYPES:
            changes[name] = value
        elif value is not None:
            options[name] = value
    found = replace(config, **changes, options=tuple(sorted(options.items())))
    undrafted: dict[str, Any] = dict.fromkeys(_DRAFTING) if found.num_speculative_tokens == 0 else {}
    return replace(found, **undrafted)


def names(knobs: Mapping[str, Sequence[Scalar]]) -> dict[str, type]:
    """What a rule may name beside such knobs."""
    own = {expression.identifier(name): expression.kind_of(choices) for name, choices in knobs.items()}
    return {**own, **expression.serving_names()}


def _knobs(knobs: Mapping[str, Sequence[Scalar]], key: str) -> tuple[Knob, ...]:
    found: dict[str, Knob] = {}
    for name, choices in knobs.items():
        for choice in choices:
            _check(f"{key}.{name}", name, choice)
        try:
            knob = Knob(name=name, choices=tuple(choices))
        except ValueError as error:
            raise SpaceError(f"{key}.{name}: {error}") from error
        other = found.setdefault(expression.identifier(name), knob)
        if other is not knob:
            raise SpaceError(f"{key}.{name}: is the same option as {other.name!r}")
    return tuple(found.values())


def _check_replaced(own: Knob, given: Knob) -> None:
    """A space computes with its own knobs, so the choices keep their type, and combined ones their words."""
    key = f"knobs.{own.name}"
    for choice in given.choices:
        if type(choice) not in {type(known) for known in own.choices}:
            raise SpaceError(f"{key}: takes values like {own.choices[0]!r} in this space; got {choice!r}")
        if own.name not in _TYPES and choice not in own.choices:
            raise SpaceError(f"{key}: has no choice {choice!r}; it has {list(own.choices)}")


def _check(key: str, name: str, value: Scalar) -> None:
    if not expression.identifier(name).isidentifier():
        raise SpaceError(f"{key}: {name!r} is not the name of an option")
    if name == "options":
        raise SpaceError(f"{key}: name the vLLM option itself")
    mapping, _, inner = name.replace("-", "_").rpartition(".")
    field = _OWN_NAMES.get(f"{mapping}.{inner}", inner) if mapping in _MAPPINGS else name.replace("-", "_")
    if field != name and (field in _TYPES or field == _SIZES):
        raise SpaceError(f"{key}: is written {field!r} here")
    if mapping == "additional_config" and inner not in ADDITIONAL_CONFIG_KEYS:
        raise SpaceError(f"{key}: vLLM would ignore it silently; known are {', '.join(sorted(ADDITIONAL_CONFIG_KEYS))}")
    if name == _SIZES:
        if value is not None and not all(size.strip().isdecimal() for size in str(value).split(",")):
            raise SpaceError(f"{key}: sizes are written like '1,2,4'; got {value!r}")
    elif name in _TYPES and type(value) not in _TYPES[name]:
        wanted = " or ".join({int: "a whole number", str: "a text", bool: "true or false", NoneType: "null"}[t]
                             for t in _TYPES[name])  # fmt: skip
        raise SpaceError(f"{key}: takes {wanted}; got {value!r}")
