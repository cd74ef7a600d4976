"""Which prompts of a file a run sends, and which of a trace."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.core import datasets
from tuner.core.datasets import DatasetError, Turn
from tuner.core.workload import Dataset, ServingWorkload
from tuner.engines import sending, traffic


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def workload(kind: str, path: Path, **changes: int) -> ServingWorkload:
    data = Dataset(kind=kind, sha256=datasets.sha256(path), path=str(path))
    fields = {"input_tokens": 8, "output_tokens": 20, "context_tokens": 8, "concurrency": 2, "requests": 4, **changes}
    return ServingWorkload(dataset=data, **fields)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"prompt number {n}", **({"output_tokens": n} if n > 3 else {})} for n in range(1, 10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_sends_each_prompt_at_most_once_and_the_same_in_every_start(prompts: Path) -> None:
    here = workload("prompts", prompts)
    first, again, other = (sending.chosen(here, seed, words) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({one.text for one in first}) == 4
    assert len(sending.chosen(replace(here, requests=9), 1, words)) == 9


def test_a_prompt_asks_for_its_own_length_and_else_for_the_workloads(prompts: Path) -> None:
    every = sending.chosen(workload("prompts", prompts, requests=9), 1, words)
    lengths = {int(one.text.split()[-1]): one.output_tokens for one in every}
    assert lengths == {1: 20, 2: 20, 3: 20, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}
    warm = traffic.warm_up(workload("prompts", prompts, output_tokens=6))
    assert warm.requests == 2
    assert max(one.output_tokens for one in sending.chosen(warm, 1, words)) <= 6


def test_a_prompt_that_is_too_long_is_named_with_its_line(prompts: Path) -> None:
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": "far " * 30}) + "\n")
    with pytest.raises(DatasetError, match=r"prompts\.jsonl, line 10: 30 tokens, more than the workload's"):
        sending.chosen(workload("prompts", prompts, requests=10), 1, words)


def test_a_file_that_has_changed_since_is_refused(prompts: Path) -> None:
    prompts.write_text('{"prompt": "as it was"}\n')
    here = workload("prompts", prompts)
    prompts.write_text('{"prompt": "as it is"}\n')
    with pytest.raises(DatasetError, match="has changed since the study was opened"):
        sending.chosen(here, 1, words)


def test_conversations_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    talks = [("w " * question, "r " * answer) for question in (1, 4, 8, 9) for answer in (2, 4, 30)]
    path.write_text(
        json.dumps([{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in talks])
    )
    found = sending.chosen(workload("sharegpt", path), 1, words)
    assert sorted((len(one.text.split()), one.output_tokens) for one in found) == [(4, 4), (4, 20), (8, 4), (8, 20)]
    with pytest.raises(DatasetError, match=r"4 of its requests fit into 8 tokens, and 5 are to be sent"):
        sending.chosen(workload("sharegpt", path, requests=5), 1, words)


def turn(session: str, at_s: float, inputs: int, outputs: int, shared: int = 0) -> Turn:
    return Turn(
        line=1, session=session, at_s=at_s, input_tokens=inputs, output_tokens=outputs, shared_prefix_tokens=shared
    )


def test_the_warm_up_of_a_trace_is_the_first_request_of_a_few_sessions_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [("a", 0, 5), ("b", 3, 6), ("a", 4, 7), ("c", 5, 8)]
    path.write_text(
        "".join(
            json.dumps({"session": s, "timestamp_s": at, "input_tokens": n, "output_tokens": 50}) + "\n"
            for s, at, n in rows
        )
    )
    whole = workload("trace", path, output_tokens=50)
    assert [one.at_s for one in sending.turns(whole)] == [0, 3, 4, 5]
    warm = sending.turns(traffic.warm_up(whole))
    assert [(one.session, one.at_s, one.input_tokens, one.output_tokens) for one in warm] == [
        ("a", 0.0, 5, 32),
        ("b", 0.0, 6, 32),
    ]
    asked = sending.replay_question(warm, base_url="http://x", served="s", seed=3, request_s=5.0)
    assert json.loads(json.dumps(asked))["turns"][0] == {
        "session": "a",
        "at_s": 0.0,
        "input_tokens": 5,
        "output_tokens": 32,
        "shared_prefix_tokens": 0,
        "think_s": None,
    }


def test_the_share_that_repeats_is_what_was_said_before() -> None:
    turns = [turn("a", 0, 100, 10, 40), turn("b", 1, 100, 10, 60), turn("a", 2, 200, 10, 110)]
    assert sending.repeated_share(turns) == (0 + 40 + 110) / 400
