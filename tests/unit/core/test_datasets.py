"""Files of prompts, conversations and traffic: what is read, and the sentence for each line that is wrong."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.core import datasets
from tuner.core.datasets import DatasetError, Facts, Turn

ROW = {"session": "a", "timestamp_s": 3.5, "input_tokens": 10, "output_tokens": 5}


def written(folder: Path, rows: list[Any]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"prompt": "a"}, "{"], "data.jsonl, line 2: no JSON"),
        ([{"prompt": "a"}, "", [1]], "data.jsonl, line 3: must be a JSON object"),
        ([{"text": "a"}], "line 1: prompt is missing"),
        ([{"prompt": "a", "max_tokens": 4}], "line 1: unknown key 'max_tokens'; known: output_tokens, prompt"),
        ([{"prompt": ""}], "line 1: prompt must be a text that is not empty"),
        ([{"prompt": 7}], "line 1: prompt must be a text"),
        ([{"prompt": "a", "output_tokens": 0}], "line 1: output_tokens must be a whole number from 1 to 100000000"),
        ([{"prompt": "a", "output_tokens": True}], "line 1: output_tokens must be a whole number"),
        ([{"prompt": "a", "output_tokens": 1.5}], "line 1: output_tokens must be a whole number"),
        ([], "data.jsonl: holds no prompt"),
    ],
)
def test_a_wrong_line_of_prompts_is_named(tmp_path: Path, rows: list[Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as raised:
        datasets.read_prompts("prompts", written(tmp_path, rows))
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"session": ""}, "session must be a name or a number"),
        ({"session": None}, "session must be a name or a number"),
        ({"timestamp_s": "now"}, "timestamp_s must be a number of seconds"),
        ({"timestamp_s": -1}, "timestamp_s must be a number of seconds, not negative"),
        ({"timestamp_s": math.nan}, "no JSON: NaN is no number"),
        ({"timestamp_s": 10**400}, "timestamp_s must be a number of seconds"),
        ({"input_tokens": 0}, "input_tokens must be a whole number from 1 to 100000000"),
        ({"output_tokens": "5"}, "output_tokens must be a whole number from 1 to 100000000"),
        ({"shared_prefix_tokens": -1}, "shared_prefix_tokens must be a whole number from 0 to 100000000"),
        ({"shared_prefix_tokens": 11}, "shared_prefix_tokens is 11, more than the 10 input_tokens"),
        ({"think_s": -0.1}, "think_s must be a number of seconds, not negative"),
        ({"prompt": "secret"}, "unknown key 'prompt'"),
        (
            {"input_tokens": 99, "shared_prefix_tokens": 16},
            "shared_prefix_tokens is 16, but the request of session 'a' before has 15 tokens",
        ),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = written(tmp_path, [ROW, {**ROW, "timestamp_s": 4, **change}])
    with pytest.raises(DatasetError) as raised:
        datasets.read_trace(path)
    assert f"{path}, line 2: " in str(raised.value)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("key", sorted(ROW))
def test_a_missing_key_of_a_trace_is_named(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in ROW.items() if name != key}
    with pytest.raises(DatasetError, match=rf"line 1: {key} is missing"):
        datasets.read_trace(written(tmp_path, [row]))


def test_a_trace_begins_at_zero_and_is_in_order_of_time(tmp_path: Path) -> None:
    rows = [{**ROW, "session": 7, "timestamp_s": 9}, ROW, {**ROW, "session": 7, "timestamp_s": 4, "think_s": None}]
    turns = datasets.read_trace(written(tmp_path, rows))
    assert [(turn.session, turn.at_s, turn.line) for turn in turns] == [("a", 0.0, 2), ("7", 0.5, 3), ("7", 5.5, 1)]


def test_the_facts_of_a_trace_are_its_longest_and_its_most_at_once(tmp_path: Path) -> None:
    rows = [
        {**ROW, "session": "a", "timestamp_s": 0},
        {**ROW, "session": "b", "timestamp_s": 1, "input_tokens": 30},
        {**ROW, "session": "a", "timestamp_s": 8, "output_tokens": 50},
        {**ROW, "session": "b", "timestamp_s": 9, "think_s": 12.0},
        {**ROW, "session": "c", "timestamp_s": 10},
    ]
    assert datasets.examine("trace", written(tmp_path, rows)) == Facts(
        requests=5,
        sessions=3,
        sessions_at_once=2,
        longest_input_tokens=30,
        longest_output_tokens=50,
        quiet_s=12.0,
    )


def test_conversations_give_their_first_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    talks = [
        {"id": 1, "conversations": [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1"}]},
        {"conversations": [{"from": "gpt", "value": "starts with an answer"}, {"from": "human", "value": "x"}]},
        {"conversations": [{"from": "human", "value": "no answer"}]},
        {"conversations": []},
        {
            "conversations": [
                {"from": "system", "value": "be kind"},
                {"from": "user", "value": "q5"},
                {"from": "assistant", "value": "a5"},
                {"from": "user", "value": "again"},
            ]
        },
    ]
    path = tmp_path / "chats.json"
    path.write_text(json.dumps(talks))
    found = datasets.read_prompts("sharegpt", path)
    assert [(prompt.line, prompt.text, prompt.reply) for prompt in found] == [(1, "q1", "a1"), (5, "q5", "a5")]
    assert datasets.examine("sharegpt", path) == Facts(requests=2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[\n{"conversations": [}\n]', "chats.json, line 2: no JSON"),
        ("{}", "chats.json: must be a list of conversations"),
        ('[{"conversations": [{"from": "human"}]}]', "chats.json, conversation 1: needs conversations"),
        ("[3]", "chats.json, conversation 1: needs conversations"),
        ("[]", "chats.json: holds no prompt"),
    ],
)
def test_a_file_that_holds_no_conversations_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text)
    with pytest.raises(DatasetError) as raised:
        datasets.read_prompts("sharegpt", path)
    assert sentence in str(raised.value)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.jsonl: no such file"):
        datasets.sha256(tmp_path / "nowhere.jsonl")
    with pytest.raises(DatasetError, match=r": no such file"):
        datasets.sha256(tmp_path)
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DatasetError, match=r"binary\.jsonl, line 2: not UTF-8"):
        datasets.read_prompts("prompts", path)


def test_line_separators_within_a_prompt_do_not_end_its_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}', encoding="utf-8")
    assert [prompt.text for prompt in datasets.read_prompts("prompts", path)] == ["a\u2028b\x85c", "d"]


@given(st.binary(max_size=200))
def test_any_bytes_are_prompts_or_refused_with_a_sentence(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "data"
    path.write_bytes(raw)
    for kind in ("prompts", "sharegpt", "trace"):
        with contextlib.suppress(DatasetError):
            assert datasets.examine(kind, path).requests > 0


def test_sessions_that_follow_each_other_are_one_at_once() -> None:
    turns = [
        Turn(line=n, session=str(n), at_s=float(n), input_tokens=1, output_tokens=1) for n in range(5)
    ]  # fmt: skip
    assert datasets.trace_facts(turns).sessions_at_once == 1
    assert datasets.trace_facts(turns).quiet_s == 1.0
