"""Rules that users write: read once, wrong ones refused with key and reason, and asked without ever raising."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.expression import rule, rules, serving_names
from search_spaces.rule import Rule
from search_spaces.serving import ServingConfig
from search_spaces.space import SpaceError
from search_spaces.user_space import names

CONFIG = ServingConfig(
    tensor_parallel_size=8, max_num_seqs=8, max_num_batched_tokens=64, num_speculative_tokens=7, kv_cache_dtype="fp8",
    enforce_eager=False, options=(("async-scheduling", True), ("kv-transfer-config.kv_role", "kv_both")),
)  # fmt: skip
NAMES = names({"async-scheduling": [True, False], "kv-transfer-config.kv_role": ["kv_both", None], "odd": [1, "x"]})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("max_num_batched_tokens >= max_num_seqs * (num_speculative_tokens + 1)", True),
        ("max_num_batched_tokens > max_num_seqs * tokens_per_request", False),
        ("tensor_parallel_size in [8, 16]", True),
        ("tensor_parallel_size not in (8, 16)", False),
        ("num_speculative_tokens == 0 or 14 % num_speculative_tokens == 0", True),
        ("4 <= max_num_seqs < 8", False),
        ("kv_cache_dtype == 'fp8' and not enforce_eager", True),
        ("block_size == None", True),
        ("block_size != None", False),
        ("async_scheduling", True),
        ("kv_transfer_config_kv_role == 'kv_both'", True),
        ("(max_num_seqs if gpus > 4 else 1) == 8", True),
        ("-max_num_seqs + 16 // 2 - 1 / 4 < 0", True),
    ],
)
def test_a_rule_means_what_it_says(text: str, holds: bool) -> None:
    assert rule(text, NAMES, key="rules.0").holds(CONFIG) is holds


@pytest.mark.parametrize(
    "text", ["block_size % 16 == 0", "block_size > 4", "max_num_seqs % num_speculative_tokens == 9"]
)
def test_a_rule_on_an_unset_option_or_a_division_by_zero_does_not_bind(text: str) -> None:
    assert rule(text, NAMES, key="rules.0").holds(ServingConfig(max_num_seqs=4)) is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "one line of text"),
        ("max_num_seqs >\n 3", "one line of text"),
        ("max_num_seqs >=", "not an expression"),
        ("max_num_seqs = 3", "not an expression"),
        ("kv_cache_dtype == '\\d'", "not an expression: invalid escape"),
        ("kv_cache_dtype == '\\x00' + 'a'", "arithmetic needs numbers"),
        ("max_num_seqs\x00 > 1", "not an expression"),
        ("import os", "not an expression"),
        ("max_num_seq > 3", "unknown name 'max_num_seq'; did you mean 'max_num_seqs'"),
        ("zzz > 3", "unknown name 'zzz'; known:"),
        ("max_num_seqs ** 9999999 > 3", "a power cannot be used"),
        ("max_num_seqs << 9999999 > 3", "operator LShift cannot be used"),
        ("max_num_seqs * 99999999999999999 > 3", "numbers go up to"),
        ("max_num_seqs < 1e999", "numbers go up to"),
        ("__import__('os').system('x')", "a call cannot be used"),
        ("max_num_seqs.__class__ == 1", "an attribute cannot be used"),
        ("[max_num_seqs][0] == 1", "an index cannot be used"),
        ("[n for n in [1]] == 1", "ListComp cannot be used"),
        ("(lambda: max_num_seqs)", "Lambda cannot be used"),
        ("f'{max_num_seqs}' == 'a'", "JoinedStr cannot be used"),
        ("max_num_seqs == b'a'", "unknown constant"),
        ("max_num_seqs is 3", "write =="),
        ("kv_cache_dtype > 3", "order comparison needs numbers, not a text"),
        ("kv_cache_dtype * 99 == 'a'", "arithmetic needs numbers, not a text"),
        ("'a' * 999999999 == kv_cache_dtype", "arithmetic needs numbers"),
        ("odd * 999999 == 1", "needs numbers, not a mixture"),
        ("max_num_seqs == 'eight'", "compares a number with a text"),
        ("'e' in kv_cache_dtype", "`in` needs a list"),
        ("kv_cache_dtype", "a condition, not a text"),
        ("3 > 2", "names no option"),
        ("max_num_seqs > 1 " * 100, "at most 500 characters"),
        ("not " * 60 + "max_num_seqs", "nested more than"),
        ("-" * 450 + "max_num_seqs > 0", "nested more than"),
        ("(" * 240 + "max_num_seqs" + ")" * 240, "not an expression"),
    ],
)
def test_a_wrong_rule_is_refused_when_it_is_read_with_key_and_reason(text: str, reason: str) -> None:
    with pytest.raises(SpaceError) as caught:
        rules(["gpus > 0", text], NAMES)
    assert str(caught.value).startswith("rules.1: ")
    assert reason in str(caught.value)


def test_the_same_rule_twice_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"rules\.1: the same rule is given twice"):
        rules(["gpus > 0", "gpus > 0"], NAMES)


def read_or_refused(text: str) -> Rule | str:
    try:
        return rule(text, NAMES, key="rules.0")
    except SpaceError as error:
        return str(error)


ATOMS = [*serving_names(), "odd", "async_scheduling", "0", "1", "7.5", "'fp8'", "None", "True", "[1, 'a']"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", ">=", "in", "not in", "and", "or", "is"]


@given(st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"(not {t})"),
        inner.map(lambda t: f"(-{t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    ),
    max_leaves=12,
))  # fmt: skip
@settings(deadline=None)
def test_a_rule_that_was_read_never_raises_when_asked(text: str) -> None:
    asked = read_or_refused(text)
    if isinstance(asked, Rule):
        for config in (CONFIG, ServingConfig(), ServingConfig(options=(("odd", "%s %d"),), kv_cache_dtype="%s")):
            assert asked.holds(config) in (True, False)
    else:
        assert asked.startswith("rules.0: ")


@given(st.text(max_size=60))
@settings(deadline=None)
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    asked = read_or_refused(text)
    assert isinstance(asked, Rule) or asked.startswith("rules.0: ")
