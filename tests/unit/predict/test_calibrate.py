"""The stored constants are what the script fits, and the fit finds constants that are there to be found."""

import json
import math
from dataclasses import astuple, replace
from importlib.resources import files

import pytest

from tuner.predict.calibrate import GUESS, NAMES, Fit, document, fit
from tuner.predict.constants import FILE, Constants, Fitted, calibration
from tuner.predict.published import Published, fitted_rows, months_before, published
from tuner.predict.step_time import step_ms


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(fitted_rows())


def test_the_stored_calibration_is_what_the_script_fits_from_the_stored_inputs(found: Fit) -> None:
    stored = json.loads(files("tuner.predict").joinpath(FILE).read_text())
    again = document(found)
    assert stored["inputs"] == again["inputs"]
    for part in ("fitted", "given", "settings"):
        assert stored[part] == pytest.approx(again[part], rel=1e-3, abs=1e-4)
    assert stored["residual_sd"] == pytest.approx(again["residual_sd"], rel=1e-2)


def test_the_fit_finds_the_constants_behind_steps_that_follow_them_exactly() -> None:
    """Published steps replaced by those of other constants; little noise, so that the guess hardly counts."""
    truth = Fitted(kernel_us=1.4, specialized_experts=0.7, collective_us=2.5, growth=0.04, draft_ms=0.5, drift=0.09)
    constants = replace(calibration().constants, fitted=truth)
    rows = [as_if(row, step_ms(row.setup, constants)) for row in fitted_rows()]
    assert astuple(fit(rows).constants.fitted) == pytest.approx(astuple(truth), rel=0.02)


def as_if(row: Published, step: float) -> Published:
    token_ms = step / (row.acceptance or 1)
    value = token_ms if row.metric == "tpot_mean_ms" else 1000 * row.requests / token_ms
    return replace(row, value=value, log_sd=1e-4)


def test_the_fitted_constants_are_physical(found: Fit) -> None:
    fitted = found.constants.fitted
    assert 0.5 < fitted.kernel_us < 5
    assert 0.4 < fitted.specialized_experts < 1
    assert min(fitted.collective_us, fitted.growth, fitted.draft_ms) >= 0
    assert 0.6 < found.constants.dense < 0.9
    assert 0.3 < found.constants.stock_experts < 0.9
    assert 0.05 < found.constants.prefill < 0.7


def test_a_left_out_setting_is_predicted_by_constants_that_have_not_seen_it(found: Fit) -> None:
    name = "tp16 specialized, 64 requests"
    rows = [row for row in fitted_rows() if row.setting != name]
    constants: Constants = fit(rows).constants
    row = next(row for row in fitted_rows() if row.setting == name)
    assert found.left_out[name] == pytest.approx(math.log(step_ms(row.setup, constants) / row.step_ms))


def test_other_engines_gpus_and_unpublished_acceptances_are_never_fitted() -> None:
    for row in fitted_rows():
        assert (row.engine, row.gpu) == ("vllm", "GB300")
        assert row.acceptance is not None
        assert row.log_sd > 0
    assert {row.engine for row in published() if row.role == "compare"} > {"sglang", "tensorrt-llm"}


def test_two_figures_of_one_setting_are_left_out_together() -> None:
    figures = [row.value for row in fitted_rows() if row.setting == "tp16 specialized, 7 drafts"]
    assert figures == [842, 838]


def test_a_fit_of_one_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="two settings"):
        fit(fitted_rows()[:1])


def test_every_constant_has_a_guess_to_be_held_near() -> None:
    assert len(NAMES) == len(astuple(GUESS)) == len(calibration().covariance)


def test_a_date_that_is_not_known_to_the_day_is_no_drift() -> None:
    assert months_before("2026-07-27") == pytest.approx(2.66, abs=0.01)
    assert months_before("2026") == months_before("2026-08") == 0


def test_a_step_needs_a_published_acceptance_and_a_decode_figure() -> None:
    unknown = next(row for row in published() if row.role == "compare" and row.acceptance is None)
    with pytest.raises(ValueError, match="acceptance was not published"):
        _ = unknown.step_ms
    prefill = next(row for row in published() if row.role == "prefill")
    with pytest.raises(ValueError, match="no decode time"):
        _ = prefill.token_ms
