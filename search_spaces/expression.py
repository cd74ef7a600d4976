"""Rules that users write: `max_num_batched_tokens >= max_num_seqs * (num_speculative_tokens + 1)`.

Everything that can be wrong with a rule is found when it is read; asking a read rule never raises. Evaluation is
simpleeval's; nothing here calls `eval`. The language: option names, numbers, texts, True, False, None; + - * / // %;
comparisons, `in [...]`; and, or, not; `a if condition else b`. No powers, calls, attributes or indexing.
"""

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from simpleeval import SimpleEval  # type: ignore[import-untyped]

from search_spaces.knob import Scalar
from search_spaces.rule import Rule
from search_spaces.serving import ServingConfig
from search_spaces.space import SpaceError

LONGEST = 500  # characters
DEEPEST = 40  # nested operations; simpleeval recurses, and a rule that was read must never fail when asked
LARGEST_NUMBER = 10**12
SOURCE = "the study file"

Names = Mapping[str, type]
_NUMBER, _TEXT, _ANY = int, str, object

_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_OTHER: dict[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, several: value in several,
    ast.NotIn: lambda value, several: value not in several,
}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_SAMENESS = (ast.Eq, ast.NotEq)
_MEMBERSHIP = (ast.In, ast.NotIn)


def serving_names() -> dict[str, type]:
    """What a rule on a serving configuration may name: its options, `gpus` and `tokens_per_request`."""
    hints = get_type_hints(ServingConfig)
    found = {f.name: _kind(hints[f.name]) for f in fields(ServingConfig) if f.name != "options"}
    del found["cudagraph_capture_sizes"]
    return {**found, "gpus": _NUMBER, "tokens_per_request": _NUMBER}


def rule(text: str, names: Names, *, key: str) -> Rule:
    """A rule of the user's, ready to be asked of any candidate.

    names: what it may name, each with `int` (numbers and flags), `str` or `object` (unknown).
    key: where the text stands in the study file, such as `rules.0`.
    Where a candidate leaves unset what the rule calculates with, or makes it divide by zero, the rule does not bind: it
    holds.

    Raises:
        SpaceError: anything wrong with the text; the message starts with the key.
    """
    tree = _parsed(text, key)
    _check(tree, names, key)
    used = tuple(sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}))
    evaluator = SimpleEval(operators=_ARITHMETIC | _OTHER, functions={}, names={})
    evaluator.nodes[ast.List] = evaluator.nodes[ast.Tuple] = lambda node: tuple(evaluator._eval(e) for e in node.elts)

    def holds(candidate: Any) -> bool:
        evaluator.names = {name: value_of(candidate, name) for name in used}
        try:
            return bool(evaluator.eval(text, previously_parsed=tree))
        except (TypeError, ArithmeticError):
            return True

    return Rule(name=f"user: {text}", sentence=f"the study's rule does not hold: {text}", source=SOURCE, holds=holds)


def rules(texts: Sequence[str], names: Names, *, key: str = "rules") -> tuple[Rule, ...]:
    """Raises SpaceError for the first text that is wrong, or given twice."""
    found: list[Rule] = []
    for position, text in enumerate(texts):
        if text in texts[:position]:
            raise SpaceError(f"{key}.{position}: the same rule is given twice: {text}")
        found.append(rule(text, names, key=f"{key}.{position}"))
    return tuple(found)


def value_of(candidate: Any, name: str) -> Scalar:
    """A field or property of the candidate, else its further option, spelt as `identifier` spells it."""
    if hasattr(type(candidate), name):
        value: Scalar = getattr(candidate, name)
        return value
    return next((value for key, value in getattr(candidate, "options", ()) if identifier(key) == name), None)


def identifier(option: str) -> str:
    """How a rule spells an option: `kv-transfer-config.kv_role` is `kv_transfer_config_kv_role`."""
    return option.replace("-", "_").replace(".", "_")


def kind_of(choices: Sequence[Scalar]) -> type:
    """The type that a rule may take an option's values for."""
    kinds = {_TEXT if isinstance(choice, str) else _NUMBER for choice in choices if choice is not None}
    return kinds.pop() if len(kinds) == 1 else _ANY


def _kind(hint: object) -> type:
    return _TEXT if str in (hint, *get_args(hint)) else _NUMBER


def _parsed(text: str, key: str) -> ast.expr:
    if len(text) > LONGEST:
        raise SpaceError(f"{key}: a rule has at most {LONGEST} characters, this one has {len(text)}")
    if "\n" in text or not text.strip():
        raise SpaceError(f"{key}: a rule is one line of text")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning such as "invalid escape sequence" is a refusal here
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SpaceError(f"{key}: not an expression: {reason}: {text}") from error


def _check(tree: ast.expr, names: Names, key: str) -> None:
    if _depth(tree) > DEEPEST:
        raise SpaceError(f"{key}: operations are nested more than {DEEPEST} deep")
    try:
        kind = _type(tree, names)
    except SpaceError as error:
        raise SpaceError(f"{key}: {error}: {ast.unparse(tree)}") from error
    if kind is _TEXT:
        raise SpaceError(f"{key}: a rule is a condition, not a text: {ast.unparse(tree)}")
    if not any(isinstance(node, ast.Name) for node in ast.walk(tree)):
        raise SpaceError(f"{key}: names no option, so it is always or never true: {ast.unparse(tree)}")


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        depth += 1
    return depth


def _type(node: ast.AST, names: Names) -> type:
    """The type of a sub-expression. Raises SpaceError with the reason, the key left to the caller."""
    match node:
        case ast.Name(id=name):
            if name not in names:
                raise SpaceError(f"unknown name {name!r}{_near(name, names)}")
            return names[name]
        case ast.Constant(value=value):
            return _constant(value)
        case ast.BoolOp(values=values):
            return _together([_type(value, names) for value in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _type(operand, names)
            return _NUMBER
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _number(_type(operand, names), "-")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            for side in (left, right):
                _number(_type(side, names), "arithmetic")
            return _NUMBER
        case ast.IfExp(test=test, body=body, orelse=orelse):
            _type(test, names)
            return _together([_type(body, names), _type(orelse, names)])
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            _comparison(left, ops, comparators, names)
            return _NUMBER
    raise SpaceError(f"{_called(node)} cannot be used in a rule")


def _comparison(left: ast.expr, ops: Sequence[ast.cmpop], right: Sequence[ast.expr], names: Names) -> None:
    kind = _type(left, names)
    for op, side in zip(ops, right, strict=True):
        if isinstance(op, _MEMBERSHIP):
            if not isinstance(side, ast.List | ast.Tuple) or len(ops) > 1:
                raise SpaceError("`in` needs a list such as [1, 2], and stands alone")
            for element in side.elts:
                _type(element, names)
            return
        if not isinstance(op, (*_ORDER, *_SAMENESS)):
            raise SpaceError("`is` cannot be used in a rule; write ==")
        other = _type(side, names)
        unset = any(isinstance(s, ast.Constant) and s.value is None for s in (left, side))
        if isinstance(op, _ORDER):
            _number(kind, "an order comparison")
            _number(other, "an order comparison")
        elif not unset and {kind, other} == {_NUMBER, _TEXT}:
            raise SpaceError("compares a number with a text, which are never equal")
        left, kind = side, other


def _constant(value: object) -> type:
    if value is None:
        return _ANY
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER:
        return _NUMBER
    raise SpaceError(f"numbers go up to {LARGEST_NUMBER:,}" if isinstance(value, int | float) else "unknown constant")


def _number(kind: type, where: str) -> type:
    if kind is not _NUMBER:
        raise SpaceError(f"{where} needs numbers, not {'a text' if kind is _TEXT else 'a mixture or None'}")
    return _NUMBER


def _together(kinds: Sequence[type]) -> type:
    return kinds[0] if len(set(kinds)) == 1 else _ANY


def _near(name: str, names: Names) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(names))}"


def _called(node: ast.AST) -> str:
    if isinstance(node, ast.BinOp):
        return "a power" if isinstance(node.op, ast.Pow) else f"the operator {type(node.op).__name__}"
    return {ast.Call: "a call", ast.Attribute: "an attribute", ast.Subscript: "an index"}.get(
        type(node), type(node).__name__
    )
