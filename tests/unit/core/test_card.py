"""A card stands by itself: what it states follows from its own samples, and what was changed in it is found."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_engine import FakeEvaluator
from tests.unit.core.test_loop import Bench, speed, study_file
from tuner.core.card import to_json, verify
from tuner.core.card_page import to_markdown
from tuner.core.decision import CardError
from tuner.core.measurement import Measurement
from tuner.core.use_cases import evidence_card, subject
from tuner.core.workload import Workload


def recompute(run: Measurement, workload: Workload, gpus: int) -> dict[str, float] | None:
    """The fake engine's metrics from its raw samples."""
    if "tpot_ms" not in run.samples:
        return None
    tpot = run.samples["tpot_ms"][0]
    return {"decode_tokens_per_s_per_user": 1000 / tpot, "ttft_p99_ms": 10 * tpot}


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    file = study_file(limits=[{"metric": "ttft_p99_ms", "at_most": 1000}], quality={"tasks": ["sums"]})
    bench = Bench(file, FakeEvaluator(speed, noise=0.002))
    bench.run()
    found = evidence_card(bench.studies, subject(bench.studies, bench.studies.get("s1")))
    assert found is not None
    loaded = json.loads(to_json(found))
    assert isinstance(loaded, dict)
    return loaded


def test_a_card_verifies_without_any_database(card: dict[str, Any]) -> None:
    assert verify(to_json(card), recompute) == []


def _raise_gain(card: dict[str, Any]) -> None:
    card["confirmation"]["decision"]["comparisons"][0]["gain"] += 0.01


def _tweak_metric(card: dict[str, Any]) -> None:
    run = next(m for m in card["measurements"] if m["metrics"])
    run["metrics"]["decode_tokens_per_s_per_user"] *= 1.001


def _tweak_sample(card: dict[str, Any]) -> None:
    run = next(m for m in card["measurements"] if "tpot_ms" in m["samples"])
    run["samples"]["tpot_ms"][0] *= 0.999


def _drop_start(card: dict[str, Any]) -> None:
    card["starts"].pop(3)


def _exclude_start(card: dict[str, Any]) -> None:
    card["starts"][-5]["excluded"] = "I did not like it"


def _hide_output(card: dict[str, Any]) -> None:
    card["confirmation"]["quality"][0]["value"] = 0.123


def _tweak_logprob(card: dict[str, Any]) -> None:
    run = [m for m in card["measurements"] if m["purpose"] == "quality"][1]
    run["samples"]["logprobs"] = [value - 3 for value in run["samples"]["logprobs"]]


def _turn_an_answer_right(card: dict[str, Any]) -> None:
    run = next(m for m in card["measurements"] if "right" in m["samples"])
    run["samples"]["right"][0] = 1.0


def _raise_an_accuracy(card: dict[str, Any]) -> None:
    result = next(r for r in card["confirmation"]["quality"] if r["name"] == "task_accuracy")
    result["detail"] = result["detail"].replace("90.0% right", "95.0% right")


def _widen_margin(card: dict[str, Any]) -> None:
    card["study"]["file"]["quality"]["margin"] = 0.2


def _raise_acceptance(card: dict[str, Any]) -> None:
    by_workload = next(iter(card["acceptance_by_position"].values()))
    next(iter(by_workload.values()))[1] = 0.7


def _change_status(card: dict[str, Any]) -> None:
    card["status"] = "Validated, everywhere"


def _change_file(card: dict[str, Any]) -> None:
    card["study"]["file"]["confirm"]["min_gain"] = 0.0


def _change_baseline(card: dict[str, Any]) -> None:
    card["baseline"]["max_num_seqs"] = 2


@pytest.mark.parametrize(
    "change",
    [
        _raise_gain,
        _tweak_metric,
        _tweak_sample,
        _drop_start,
        _exclude_start,
        _hide_output,
        _tweak_logprob,
        _turn_an_answer_right,
        _raise_an_accuracy,
        _widen_margin,
        _raise_acceptance,
        _change_status,
        _change_file,
        _change_baseline,
    ],
)
def test_what_was_changed_in_a_card_is_found(card: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    forged = json.loads(json.dumps(card))
    change(forged)
    with contextlib.suppress(CardError):
        assert verify(to_json(forged), recompute) != []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"card": "tuner evidence card 1"}', '{"card": "another"}'])
def test_what_is_no_card_is_said_to_be_none(text: str) -> None:
    with pytest.raises(CardError):
        verify(text, recompute)


def test_the_markdown_names_gain_ratios_limits_output_and_what_is_not_proved(card: dict[str, Any]) -> None:
    text = to_markdown(card)
    assert text.startswith("# Validated\n")
    for part in (
        "paired start ratios",
        "| ttft",
        "decode_against_prefill",
        "| 0.800, 0.500, 0.250 |",
        "task_accuracy",
        "90.0% right, the baseline 90.0%, of 200 questions",
        "**Not proved**",
        "## Starts",
        "tuner verify",
    ):
        assert part in text


def test_the_markdown_has_one_row_for_each_check_and_the_json_has_every_graph_size(card: dict[str, Any]) -> None:
    stored = card["confirmation"]["quality"]
    regrets = [result for result in stored if result["name"] == "regret"]
    assert len({result["at"] for result in regrets}) == len(regrets) > 1
    text = to_markdown(card)
    for name in {result["name"] for result in stored}:
        assert text.count(f"| {name} |") == 1
    assert f"yes, at all {len(regrets)} |" in text


def test_the_row_of_a_check_is_its_worst_place_and_says_at_how_many_it_failed(card: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(card))
    regrets = [result for result in changed["confirmation"]["quality"] if result["name"] == "regret"]
    regrets[0].update(value=0.04, limit=0.05)
    assert "| regret | 0.04 nats" in to_markdown(changed)
    regrets[-1].update(value=0.03, limit=0.02, passed=False)
    row = next(line for line in to_markdown(changed).splitlines() if line.startswith("| regret |"))
    assert row.startswith("| regret | 0.03 nats")
    assert regrets[-1]["at"] in row
    assert row.endswith(f"| NO, not at 1 of {len(regrets)} |")


def test_each_candidate_and_each_task_keeps_a_row_of_its_own(card: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(card))
    quality = changed["confirmation"]["quality"]
    task = next(result for result in quality if result["name"] == "task_accuracy")
    quality += [{**task, "at": "another task"}, {**task, "candidate_key": "another candidate"}]
    text = to_markdown(changed)
    assert text.count("| task_accuracy |") == 3
    assert text.count("## Output of ") == 2


def test_a_name_cannot_become_markup(card: dict[str, Any]) -> None:
    forged = json.loads(json.dumps(card))
    forged["summary"].append({"label": "Study", "text": "<script>|x|\n# heading"})
    text = to_markdown(forged)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n# heading" not in text
