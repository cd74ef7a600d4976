"""Files of prompts, of conversations and of recorded traffic: read, checked line by line, hashed. Knows no engine.

Three kinds:

- `prompts`: JSON lines, `{"prompt": text}` and, where a request is to be shorter, `"output_tokens": n`.
- `sharegpt`: one JSON list of `{"conversations": [{"from": "human", "value": text}, {"from": "gpt", ...}, ...]}`. The
  first question is the prompt, and the answer that follows says how much is generated.
- `trace`: JSON lines, one a request: `session`, `timestamp_s`, `input_tokens`, `output_tokens` and, where it is known,
  `shared_prefix_tokens` and `think_s`. It holds times and lengths only; tokens are made up when it is replayed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

RANDOM, PROMPTS, SHAREGPT, TRACE = "random", "prompts", "sharegpt", "trace"
MOST_TOKENS = 10**8
MOST_SECONDS = 10**12  # milliseconds since 1970 would be more
MOST_BYTES = 2**30  # ShareGPT's own file has 0.6 GiB; a larger one would not fit into a helper's memory several times


class DatasetError(ValueError):
    """A file that cannot be used; the message names it, the line and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """line: where it stands; for a list, its place in it, from 1.   output_tokens: asked of the engine, where the file
    says so.   reply: the recorded answer, whose length in tokens is asked for, where there is one."""

    line: int
    text: str
    output_tokens: int | None = None
    reply: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a trace.

    at_s: since the first request of the trace.   think_s: the pause of its user after the answer before; where it is
    absent, the time between the two requests stands for it.   shared_prefix_tokens: at the start of the prompt, equal
    to those of the session's request before and its answer; of a session's first request, equal in all sessions.
    """

    line: int
    session: str
    at_s: float
    input_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    think_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a workload needs to know of its file. requests: that it holds.   sessions: of a trace, else 0.
    sessions_at_once: whose spans from first to last request overlap.   longest_input_tokens, longest_output_tokens: of
    a trace; of prompts, the longest output that a line asks for, else 0.   quiet_s: the longest pause of a trace."""

    requests: int
    sessions: int = 0
    sessions_at_once: int = 0
    longest_input_tokens: int = 0
    longest_output_tokens: int = 0
    quiet_s: float = 0.0


def sha256(path: Path) -> str:
    """Raises DatasetError."""
    try:
        if not path.is_file():
            raise DatasetError(f"{path}: no such file")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error


def examine(kind: str, path: Path) -> Facts:
    """Read the whole file. Raises DatasetError."""
    if kind == TRACE:
        return trace_facts(read_trace(path))
    prompts = read_prompts(kind, path)
    return Facts(
        requests=len(prompts), longest_output_tokens=max((prompt.output_tokens or 0 for prompt in prompts), default=0)
    )


def read_prompts(kind: str, path: Path) -> list[Prompt]:
    """Raises DatasetError."""
    read: Callable[[Path], Iterator[Prompt]] = {PROMPTS: _prompts, SHAREGPT: _conversations}[kind]
    found = list(read(path))
    if not found:
        raise DatasetError(f"{path}: holds no prompt")
    return found


def read_trace(path: Path) -> list[Turn]:
    """The requests in order of their time, the first at 0. Raises DatasetError."""
    turns = [_turn(path, number, row) for number, row in _rows(path)]
    if not turns:
        raise DatasetError(f"{path}: holds no request")
    turns.sort(key=lambda turn: turn.at_s)  # stable: equal times keep the order of the file
    _check_sessions(path, turns)
    first = turns[0].at_s
    return [
        Turn(
            line=turn.line,
            session=turn.session,
            at_s=turn.at_s - first,
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            shared_prefix_tokens=turn.shared_prefix_tokens,
            think_s=turn.think_s,
        )
        for turn in turns
    ]


def trace_facts(turns: Sequence[Turn]) -> Facts:
    spans: dict[str, list[float]] = {}
    for turn in turns:
        spans.setdefault(turn.session, []).append(turn.at_s)
    edges = sorted([(times[0], 0) for times in spans.values()] + [(times[-1], 1) for times in spans.values()])
    open_now = most = 0
    for _, closes in edges:
        open_now += -1 if closes else 1
        most = max(most, open_now)
    pauses = [later - earlier for times in spans.values() for earlier, later in pairwise(times)]
    pauses += [later.at_s - earlier.at_s for earlier, later in pairwise(turns)]
    return Facts(
        requests=len(turns),
        sessions=len(spans),
        sessions_at_once=most,
        longest_input_tokens=max(turn.input_tokens for turn in turns),
        longest_output_tokens=max(turn.output_tokens for turn in turns),
        quiet_s=max([*pauses, *(turn.think_s or 0.0 for turn in turns)], default=0.0),
    )


def _prompts(path: Path) -> Iterator[Prompt]:
    for number, row in _rows(path):
        _only(path, number, row, {"prompt"}, {"output_tokens"})
        text = row["prompt"]
        if not isinstance(text, str) or not text:
            raise _wrong(path, number, "prompt must be a text that is not empty")
        asked = _whole(path, number, row, "output_tokens", at_least=1) if "output_tokens" in row else None
        yield Prompt(line=number, text=text, output_tokens=asked)


def _conversations(path: Path) -> Iterator[Prompt]:
    """Conversations without a question that is answered are left out, as every reader of such files does."""
    try:
        document = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: no JSON: {error}") from error
    if not isinstance(document, list):
        raise DatasetError(f"{path}: must be a list of conversations")
    for place, entry in enumerate(document, start=1):
        turns = entry.get("conversations") if isinstance(entry, Mapping) else None
        if not isinstance(turns, list) or not all(
            isinstance(turn, Mapping) and isinstance(turn.get("value"), str) for turn in turns
        ):
            raise DatasetError(f"{path}, conversation {place}: needs conversations, each with from and value")
        said = [turn for turn in turns if turn.get("from") != "system"]
        if len(said) >= 2 and said[0].get("from") in ("human", "user") and said[0]["value"] and said[1]["value"]:
            yield Prompt(line=place, text=said[0]["value"], reply=said[1]["value"])


def _turn(path: Path, number: int, row: Mapping[str, Any]) -> Turn:
    _only(
        path,
        number,
        row,
        {"session", "timestamp_s", "input_tokens", "output_tokens"},
        {"shared_prefix_tokens", "think_s"},
    )
    session = row["session"]
    if isinstance(session, bool) or not isinstance(session, str | int) or session == "":
        raise _wrong(path, number, "session must be a name or a number")
    inputs = _whole(path, number, row, "input_tokens", at_least=1)
    shared = _whole(path, number, row, "shared_prefix_tokens", at_least=0) if "shared_prefix_tokens" in row else 0
    if shared > inputs:
        raise _wrong(path, number, f"shared_prefix_tokens is {shared}, more than the {inputs} input_tokens")
    return Turn(
        line=number,
        session=str(session),
        at_s=_seconds(path, number, row, "timestamp_s"),
        input_tokens=inputs,
        output_tokens=_whole(path, number, row, "output_tokens", at_least=1),
        shared_prefix_tokens=shared,
        think_s=_seconds(path, number, row, "think_s") if row.get("think_s") is not None else None,
    )


def _check_sessions(path: Path, turns: Sequence[Turn]) -> None:
    """A prefix can only be shared with what the session has said before."""
    said: dict[str, int] = {}
    for turn in turns:
        known = said.get(turn.session)
        if known is not None and turn.shared_prefix_tokens > known:
            raise _wrong(
                path,
                turn.line,
                f"shared_prefix_tokens is {turn.shared_prefix_tokens}, but the request of session {turn.session!r} "
                f"before has {known} tokens, its answer included",
            )
        said[turn.session] = turn.input_tokens + turn.output_tokens


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and content of each line that is not empty."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise _wrong(path, number, f"no JSON: {getattr(error, 'msg', error)}") from error
        if not isinstance(row, Mapping):
            raise _wrong(path, number, "must be a JSON object")
        yield number, row


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DatasetError(f"{path}: larger than {MOST_BYTES >> 30} GiB")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DatasetError(f"{path}, line {line}: not UTF-8") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _only(path: Path, number: int, row: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    missing = sorted(needed - set(row))
    if missing:
        raise _wrong(path, number, f"{missing[0]} is missing")
    unknown = sorted(set(row) - needed - allowed)
    if unknown:
        raise _wrong(path, number, f"unknown key {unknown[0]!r}; known: {', '.join(sorted(needed | allowed))}")


def _whole(path: Path, number: int, row: Mapping[str, Any], key: str, *, at_least: int) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= MOST_TOKENS:
        raise _wrong(path, number, f"{key} must be a whole number from {at_least} to {MOST_TOKENS}")
    return value


def _seconds(path: Path, number: int, row: Mapping[str, Any], key: str) -> float:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise _wrong(path, number, f"{key} must be a number of seconds, not negative")
    return float(value)


def _wrong(path: Path, number: int, reason: str) -> DatasetError:
    return DatasetError(f"{path}, line {number}: {reason}")
