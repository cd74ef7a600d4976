"""Planted defects are caught, harmless differences pass."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.serving import ServingConfig
from tuner.core.decision import QualityResult
from tuner.core.ports import Generated, Scored
from tuner.core.quality import (
    NO_NUMBER,
    Reading,
    decode_against_prefill,
    evaluate,
    graph_sizes,
    prompts,
    quantile,
    regret,
    repetition,
    tolerance,
)

TOKENS = 128
Change = Callable[[random.Random, int, float], tuple[float, float, float]]


def harmless(noise: float) -> Change:
    """Decode log p, prefill log p and the prefill's best, for a token of that true log p."""

    def change(draw: random.Random, _token: int, truth: float) -> tuple[float, float, float]:
        prefill = truth + draw.gauss(0, noise)
        return truth + draw.gauss(0, noise), prefill, max(prefill, truth)

    return change


def reading(change: Change, *, seed: int, by_baseline: Change | None = None, prompts_count: int = 8) -> Reading:
    """Outputs of a model whose true log probabilities lie between -3 and 0; the decode path and each scorer see them
    through `change`."""
    draw = random.Random(seed)
    outputs, own, other = [], [], []
    for prompt in prompts(prompts_count, 4, 1000, seed=1):
        truths = [-3 * draw.random() for _ in range(TOKENS)]
        seen = [change(draw, i, truth) for i, truth in enumerate(truths)]
        across = [(by_baseline or change)(draw, i, truth) for i, truth in enumerate(truths)]
        outputs.append(
            Generated(
                prompt_ids=prompt,
                token_ids=tuple(draw.randrange(1000) for _ in truths),
                logprobs=tuple(decode for decode, _, _ in seen),
                text="words",
            )
        )
        own.append(Scored(logprobs=tuple(p for _, p, _ in seen), best=tuple(b for _, _, b in seen)))
        other.append(Scored(logprobs=tuple(p for _, p, _ in across), best=tuple(b for _, _, b in across)))
    return Reading(outputs=outputs, own=own, by_baseline=other)


# The baseline as measured on a CPU: 99 % of the tokens within 0.0001, none beyond 0.0078 (vLLM 0.32.0, 2026-12-01).
FIRST, SECOND = reading(harmless(0.00004), seed=1), reading(harmless(0.00004), seed=2)


def failed(candidate: Reading, first: Reading = FIRST, second: Reading = SECOND) -> set[str]:
    return {result.name for result in evaluate("k", candidate, first, second, at="M=8") if not result.passed}


def test_the_baseline_itself_passes() -> None:
    assert failed(reading(harmless(0.00004), seed=3)) == set()


def test_other_arithmetic_of_the_size_seen_between_two_parallel_degrees_passes() -> None:
    """Within 0.23 of the baseline's scores (TP1 against TP2, bfloat16), while it agrees with its own prefill."""
    candidate = reading(harmless(0.0001), seed=3, by_baseline=harmless(0.05))
    assert failed(candidate) == set()


def test_a_decode_path_whose_probabilities_are_off_at_every_token_is_caught() -> None:
    def shifted(draw: random.Random, token: int, truth: float) -> tuple[float, float, float]:
        decode, prefill, best = harmless(0.0001)(draw, token, truth)
        return decode - 0.3, prefill, best

    assert {"decode_against_prefill", "decode_against_baseline"} <= failed(reading(shifted, seed=3))


def test_a_decode_path_that_picks_wrong_tokens_with_right_probabilities_is_caught_by_regret() -> None:
    """A logits processor runs after the log probabilities are taken, so only the choice itself shows it."""

    def corrupted(draw: random.Random, token: int, truth: float) -> tuple[float, float, float]:
        decode, prefill, best = harmless(0.0001)(draw, token, truth)
        return (decode, prefill, prefill + 2.0) if token % 7 == 0 else (decode, prefill, best)

    found = failed(reading(corrupted, seed=3))
    assert {"regret", "regret_by_baseline"} <= found
    assert "decode_against_prefill" not in found


def test_one_wrong_token_in_a_thousand_is_caught_by_the_worst_token() -> None:
    def rarely(draw: random.Random, token: int, truth: float) -> tuple[float, float, float]:
        decode, prefill, best = harmless(0.0001)(draw, token, truth)
        return (decode, prefill, prefill + 4.0) if token == 100 else (decode, prefill, best)

    assert failed(reading(rarely, seed=3)) == {"regret_worst", "regret_by_baseline_worst"}


def test_a_defect_that_prefill_shares_is_caught_by_the_baselines_scores() -> None:
    """An engine that is wrong on both paths agrees with itself."""

    def disagrees(draw: random.Random, token: int, truth: float) -> tuple[float, float, float]:
        decode, prefill, _ = harmless(0.0001)(draw, token, truth)
        return decode, prefill - 2.0, prefill + 1.0

    candidate = reading(harmless(0.0001), seed=3, by_baseline=disagrees)
    found = failed(candidate)
    assert {"decode_against_baseline", "regret_by_baseline"} <= found
    assert not found & {"decode_against_prefill", "regret"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_probability_that_is_no_number_is_caught_and_stays_valid_json(bad: float) -> None:
    def broken(draw: random.Random, token: int, truth: float) -> tuple[float, float, float]:
        decode, prefill, best = harmless(0.0001)(draw, token, truth)
        return (bad, prefill, best) if token == 5 else (decode, prefill, best)

    results = evaluate("k", reading(broken, seed=3), FIRST, SECOND)
    worst = next(r for r in results if r.name == "decode_against_prefill_worst")
    assert not worst.passed
    assert worst.value == NO_NUMBER


def test_scores_that_are_not_one_for_each_token_are_a_failure_and_not_cut_short() -> None:
    good = reading(harmless(0.0001), seed=3)
    short = [replace(score, logprobs=score.logprobs[:-1]) for score in good.own]
    assert "decode_against_prefill_worst" in failed(replace(good, own=short))
    with pytest.raises(ValueError, match="8 outputs and 7 scores"):
        decode_against_prefill(good.outputs, good.own[:-1])


def test_empty_and_blank_outputs_are_caught() -> None:
    good = reading(harmless(0.0001), seed=3)
    blank = [replace(good.outputs[0], text=" \n"), *good.outputs[1:]]
    assert failed(replace(good, outputs=blank)) == {"empty_outputs"}
    nothing = Generated(prompt_ids=(1,), token_ids=(), logprobs=(), text="")
    empty = Reading(
        outputs=[nothing] * 8, own=[Scored(logprobs=(), best=())] * 8, by_baseline=[Scored(logprobs=(), best=())] * 8
    )
    assert "empty_outputs" in failed(empty)
    assert "regret_worst" in failed(empty), "no token at all passes no check"


def test_output_that_repeats_itself_is_caught_unless_the_baselines_does_too() -> None:
    def repeating(made: Reading) -> Reading:
        return replace(made, outputs=[replace(o, token_ids=(7, 8) * (TOKENS // 2)) for o in made.outputs])

    good = reading(harmless(0.0001), seed=3)
    assert failed(repeating(good)) == {"repetition"}
    assert failed(repeating(good), repeating(FIRST), repeating(SECOND)) == set()


def test_a_noisier_baseline_allows_more() -> None:
    candidate = reading(harmless(0.05), seed=3)
    assert "decode_against_prefill" in failed(candidate)
    noisy = [reading(harmless(0.05), seed=seed) for seed in (4, 5)]
    assert failed(candidate, *noisy) == set()


def test_a_baseline_that_says_nothing_calibrates_nothing() -> None:
    empty = Reading(outputs=[], own=[], by_baseline=[])
    with pytest.raises(ValueError, match="generated nothing"):
        evaluate("k", FIRST, empty, SECOND)
    broken = replace(FIRST, own=[replace(s, logprobs=(math.nan,) * TOKENS) for s in FIRST.own])
    with pytest.raises(ValueError, match="calibrate nothing"):
        evaluate("k", FIRST, broken, SECOND)


def test_every_result_names_its_candidate_place_and_unit() -> None:
    results: Sequence[QualityResult] = evaluate("k", reading(harmless(0.0001), seed=3), FIRST, SECOND, at="M=8")
    assert {(r.candidate_key, r.at) for r in results} == {("k", "M=8")}
    assert all(r.unit and r.detail == "1024 tokens in 8 outputs" for r in results)
    assert len({r.name for r in results}) == len(results)


def test_tolerance_is_three_times_the_baselines_gaps_and_never_below_the_floor() -> None:
    floor = {"typical": 0.1, "worst": 0.5}
    assert tolerance([0.0], [0.0], floor=floor).typical == 0.1
    wide = tolerance([0.0] * 99 + [1.0], [0.2] * 100, floor=floor)
    assert (wide.typical, wide.worst) == (pytest.approx(0.6), 3.0)


def test_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([*[0.0] * 98, 5.0, 9.0]) == 5.0
    assert quantile([]) == 0.0


def test_regret_is_zero_where_the_scorer_would_have_chosen_the_same() -> None:
    output = Generated(prompt_ids=(1,), token_ids=(1, 2), logprobs=(-0.5, -0.5), text="ab")
    assert regret([output], [Scored(logprobs=(-0.5, -2.0), best=(-0.5, -0.5))]) == (0.0, 1.5)


@given(st.lists(st.integers(0, 3), max_size=24))
def test_repetition_equals_a_search_over_every_pair_of_places(tokens: list[int]) -> None:
    n = len(tokens)
    longest = max(
        (size for size in range(1, n) for a in range(n - size) for b in range(a + 1, n - size + 1)
         if tokens[a : a + size] == tokens[b : b + size]),
        default=0,
    )  # fmt: skip
    assert repetition(tokens) == (longest / n if n else 0.0)


def test_prompts_are_reproducible_different_and_clear_of_the_vocabularys_ends() -> None:
    made = prompts(8, 16, 1000, seed=5)
    assert made == prompts(8, 16, 1000, seed=5) != prompts(8, 16, 1000, seed=6)
    assert len(set(made)) == 8
    assert all(100 <= token < 900 for prompt in made for token in prompt)


def test_graph_sizes_run_every_captured_size_up_to_the_concurrency() -> None:
    config = ServingConfig(num_speculative_tokens=3, cudagraph_capture_sizes=(4, 8, 12, 16, 32, 64), max_num_seqs=16)
    assert graph_sizes(config, 8) == (1, 2, 3, 4, 8)
    assert graph_sizes(config, 6) == (1, 2, 3, 4, 6)
    assert graph_sizes(config, 64) == (1, 2, 3, 4, 8, 16), "no more than the engine runs at once"


def test_graph_sizes_left_to_the_engine_are_powers_of_two_and_the_concurrency() -> None:
    assert graph_sizes(ServingConfig(), 6) == (1, 2, 4, 6)
    assert graph_sizes(ServingConfig(), 1) == (1,)
