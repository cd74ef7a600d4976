"""The search tries each feasible candidate once, and learns from what it is told."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.candidate import candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.ports import Belief
from tuner.core.search import Search, sampler


def candidates(seqs: int = 8, drafts: int = 6, batches: int = 4) -> list[ServingConfig]:
    return [
        ServingConfig(
            max_num_seqs=2**s,
            num_speculative_tokens=d,
            speculative_method="ngram" if d else None,
            max_num_batched_tokens=512 * 2**b,
            cudagraph_capture_sizes=((d + 1), (d + 1) * 2**s),
        )
        for s in range(1, seqs + 1)
        for d in range(drafts)
        for b in range(batches)
    ]


def log_speed(candidate: ServingConfig) -> float:
    """Best at max_num_seqs 32 and 3 drafts; the batch budget does nothing."""
    return -0.1 * abs(math.log2(candidate.max_num_seqs or 1) - 5) - 0.05 * abs(candidate.num_speculative_tokens - 3)


def best_found(search: Search, asks: int) -> float:
    best = -math.inf
    for _ in range(asks):
        choice = search.ask()
        assert choice is not None
        assert isinstance(choice.candidate, ServingConfig)
        value = log_speed(choice.candidate)
        best = max(best, value)
        search.tell(candidate_key(choice.candidate), value)
    return best


def test_a_budget_that_covers_the_set_tries_every_candidate_once() -> None:
    some = candidates(3, 3, 2)
    search = Search(candidates=some, trials=len(some), seed=0)
    asked = [search.ask() for _ in some]
    assert {choice.candidate for choice in asked if choice} == set(some)
    assert search.ask() is None


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_no_candidate_is_asked_twice(seed: int) -> None:
    some = candidates(4, 3, 2)
    search = Search(candidates=some, trials=12, seed=seed)
    keys = []
    while (choice := search.ask()) is not None:
        keys.append(candidate_key(choice.candidate))
        search.tell(keys[-1], None if len(keys) % 3 == 0 else 0.1 * len(keys))
    assert len(keys) == len(set(keys)) == len(some)


def test_the_same_seed_asks_the_same_candidates() -> None:
    runs = []
    for _ in range(2):
        search = Search(candidates=candidates(), trials=15, seed=3)
        runs.append([search.ask() for _ in range(15)])
    assert runs[0] == runs[1]


def test_learning_beats_chance_on_a_smooth_surface() -> None:
    """Thirty trials of 192: over ten seeds the mean shortfall is under half of what random choice leaves."""
    some = candidates()
    learnt = [best_found(Search(candidates=some, trials=30, seed=seed), 30) for seed in range(10)]
    by_chance = []
    for seed in range(10):
        import random

        by_chance.append(max(log_speed(c) for c in random.Random(seed).sample(some, 30)))
    assert sum(learnt) >= 0.5 * sum(by_chance)


def test_seeds_come_first_and_then_the_highest_beliefs() -> None:
    some = candidates()
    beliefs = {candidate_key(c): Belief(log_speed(c), 0.1) for c in some}
    search = Search(candidates=some, trials=10, seed=1, seeds=[some[5]], beliefs=beliefs)
    first = search.ask()
    assert first is not None
    assert (first.candidate, first.why) == (some[5], "seed")
    later = [search.ask() for _ in range(6)]
    believed = [choice for choice in later if choice is not None and choice.why == "belief"]
    assert believed
    assert log_speed(believed[0].candidate) == max(map(log_speed, some))  # type: ignore[arg-type]


def test_beliefs_that_are_wrong_are_no_longer_followed() -> None:
    some = candidates()
    beliefs = {candidate_key(c): Belief(-log_speed(c), 0.1) for c in some}
    search = Search(candidates=some, trials=40, seed=1, beliefs=beliefs)
    assert search.trust() > 0.5
    best_found(search, 12)
    assert search.trust() == 0.0


def test_good_beliefs_find_the_best_in_a_handful_of_trials() -> None:
    some = candidates()
    beliefs = {candidate_key(c): Belief(log_speed(c), 0.1) for c in some}
    assert best_found(Search(candidates=some, trials=30, seed=2, beliefs=beliefs), 5) == pytest.approx(0.0)


def test_a_miss_of_the_limits_counts_against_a_candidate_and_no_number_is_learnt_from_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuner.core.search.is_compared", lambda: False)  # Optuna's own sampler keeps what it is told
    some = candidates(3, 3, 2)
    search = Search(candidates=some, trials=10, seed=0)
    search.tell(candidate_key(some[0]), None)
    search.tell(candidate_key(some[1]), 0.4, worst_margin=-0.2)
    told = search._optuna.get_trials(deepcopy=False)
    assert len(told) == 1
    assert told[0].constraints == {"limits": 0.2}
    assert search.left == len(some) - 2


def test_the_search_asks_the_same_with_its_own_sampler_as_with_optunas(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[str]:
        search, keys = Search(candidates=candidates(), trials=60, seed=3), []
        for number in range(50):
            choice = search.ask()
            assert choice is not None
            keys.append(candidate_key(choice.candidate))
            value = None if number % 7 == 0 else log_speed(choice.candidate)
            search.tell(keys[-1], value, worst_margin=0.1 if number % 3 else -0.1)
        assert search.sampler_name == type(sampler(60, 3)).__name__
        return keys

    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)  # no torch, so TPE
    ours = asked()
    monkeypatch.setattr("tuner.core.search.is_compared", lambda: False)
    assert asked() == ours


def test_options_that_follow_from_others_are_no_axis() -> None:
    search = Search(candidates=candidates(), trials=10, seed=0)
    assert set(search._grid.distributions) == {"max_num_seqs", "num_speculative_tokens", "max_num_batched_tokens"}
