"""Non-inferiority of paired answers, against a numerical likelihood and the exact distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest

from tuner.core.accuracy import _won_share, fewest_questions, non_inferior

counts = st.integers(min_value=0, max_value=40)


def answers(both: int, lost: int, won: int, neither: int) -> tuple[list[bool], list[bool]]:
    rows = [(True, True)] * both + [(True, False)] * lost + [(False, True)] * won + [(False, False)] * neither
    return [b for b, _ in rows], [c for _, c in rows]


def test_equal_answers_on_many_questions_are_not_inferior() -> None:
    found = non_inferior(*answers(900, 10, 10, 80), margin=0.02)
    assert found.passed
    assert found.difference == 0
    assert -0.02 < found.lower < 0


def test_equal_answers_on_few_questions_prove_nothing() -> None:
    """Without a discordant question the observed variance is 0; the variance under the hypothesis is not."""
    assert not non_inferior(*answers(20, 0, 0, 0), margin=0.02).passed


def test_a_real_loss_beyond_the_margin_is_inferior_and_mcnemar_sees_it() -> None:
    found = non_inferior(*answers(850, 60, 10, 80), margin=0.02)
    assert not found.passed
    assert found.lower < -0.02
    assert found.mcnemar_p < 1e-6


def test_the_published_loss_without_significance_does_not_pass_a_small_margin() -> None:
    """0.68 points on GSM8K's 1,319 questions with p about 0.1 (vLLM pull request 50592) is no proof of equality."""
    found = non_inferior(*answers(1260, 18, 9, 32), margin=0.01)
    assert found.difference == pytest.approx(-0.0068, abs=1e-4)
    assert 0.05 < found.mcnemar_p < 0.2
    assert not found.passed


@given(both=st.integers(1, 200), lost=counts, won=counts, margin=st.floats(0.005, 0.2))
def test_the_bound_and_the_test_agree(both: int, lost: int, won: int, margin: float) -> None:
    found = non_inferior(*answers(both, lost, won, 3), margin=margin)
    if abs(found.lower + margin) > 1e-6:
        assert found.passed == (found.lower > -margin)
    assert found.lower <= found.difference


@given(both=st.integers(1, 200), lost=counts, won=counts, difference=st.floats(-0.2, -0.005))
def test_the_restricted_likelihood_is_at_its_maximum(both: int, lost: int, won: int, difference: float) -> None:
    n = both + lost + won + 3
    likeliest = _won_share(n, lost, won, difference) - difference

    def minus_log_likelihood(lost_share: float) -> float:
        won_p, kept = lost_share + difference, 1 - 2 * lost_share - difference
        terms = [(lost, lost_share), (won, won_p), (n - lost - won, kept)]
        return -sum(count * np.log(max(p, 1e-300)) for count, p in terms if count)

    best = minimize_scalar(minus_log_likelihood, bounds=(-difference, (1 - difference) / 2), method="bounded")
    assert minus_log_likelihood(likeliest) <= best.fun + 1e-4


@given(margin=st.floats(0.004, 0.3))
def test_the_fewest_questions_are_those_that_equal_answers_just_pass_with(margin: float) -> None:
    fewest = fewest_questions(margin)
    assert non_inferior(*answers(fewest, 0, 0, 0), margin=margin).passed
    assert not non_inferior(*answers(fewest - 1, 0, 0, 0), margin=margin).passed


@given(lost=counts, won=counts)
def test_mcnemar_is_the_exact_binomial_test(lost: int, won: int) -> None:
    found = non_inferior(*answers(10, lost, won, 0), margin=0.05)
    expected = binomtest(lost, lost + won, 0.5).pvalue if lost + won else 1.0
    assert found.mcnemar_p == pytest.approx(expected)


def test_the_error_of_the_test_stays_near_its_level_at_the_margin_itself() -> None:
    """2,000 benchmarks of 500 questions in which the candidate truly loses by exactly the margin."""
    rng = np.random.default_rng(3)
    draws = rng.multinomial(500, [0.80, 0.06, 0.03, 0.11], size=2000)
    passed = sum(non_inferior(*answers(*map(int, row)), margin=0.03).passed for row in draws)
    assert passed / 2000 < 0.065


@pytest.mark.parametrize(
    ("baseline", "candidate", "margin"), [([], [], 0.1), ([True], [True, False], 0.1), ([True], [True], 0.0)]
)
def test_what_cannot_be_tested_is_refused(baseline: list[bool], candidate: list[bool], margin: float) -> None:
    with pytest.raises(ValueError, match=r"same questions|margin"):
        non_inferior(baseline, candidate, margin=margin)
