"""Fit the step model's constants: `python -m tuner.predict.calibrate` writes data/calibration.json.

Bandwidths come from kernel timings, and six constants from vLLM's published decode steps, each held near a physical
guess, since fourteen figures of eleven settings decide six numbers only together with what is known beforehand.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from tuner.predict import kernels, layers, published
from tuner.predict.constants import BF16_FLOPS_PER_MS, FILE, HBM_BYTES_PER_MS, Calibration, Constants, Fitted
from tuner.predict.published import Published, fitted_rows
from tuner.predict.step_time import step_ms

INPUTS = (published.FILE, kernels.FILE, "data/kimi_k3_config.json")
# Guess and its sd before a step is seen.
#   kernel_us: a small kernel within a CUDA graph, with its dependency.
#   specialized_experts: that of large dense projections (0.75), since it streams packed weights.
#   collective_us: what the specialised one takes longer on 16 ranks, published: 0.93 us.
#   growth, drift: none, or a few per cent.   draft_ms: a third of a millisecond for gathers, logits and rejection.
GUESS = Fitted(kernel_us=2.0, specialized_experts=0.75, collective_us=0.93, growth=0.0, draft_ms=0.3, drift=0.05)
GUESS_SD = Fitted(kernel_us=1.0, specialized_experts=0.2, collective_us=1.0, growth=0.1, draft_ms=0.3, drift=0.05)
NAMES = tuple(f.name for f in fields(Fitted))
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """covariance: of the fitted values, had the rows only their own noise.   left_out: setting to the log of
    predicted over published, from a fit without that setting."""

    constants: Constants
    covariance: tuple[tuple[float, ...], ...]
    left_out: Mapping[str, float]

    @property
    def residual_sd(self) -> float:
        """Of the log of a step that a fit has not seen: root mean square over the settings left out."""
        return math.sqrt(sum(value**2 for value in self.left_out.values()) / len(self.left_out))


def fit(rows: Sequence[Published]) -> Fit:
    """Raises ValueError for fewer than two settings."""
    settings = tuple(dict.fromkeys(row.setting for row in rows))
    if len(settings) < 2:
        raise ValueError("a fit needs two settings or more, so that one can be left out")
    constants, covariance = _solve(rows)
    left_out: dict[str, float] = {}
    for setting in settings:
        without, _ = _solve([row for row in rows if row.setting != setting])
        ratios = [math.log(step_ms(row.setup, without) / row.step_ms) for row in rows if row.setting == setting]
        left_out[setting] = math.fsum(ratios) / len(ratios)
    return Fit(constants=constants, covariance=covariance, left_out=left_out)


@cache
def dense_share() -> float:
    """Of the memory's bandwidth that BF16 projections of up to 16 tokens reach: time is a + bytes / bandwidth."""
    found = [(t.n * t.k * layers.BF16, t.us) for t in kernels.timings() if t.op == "gemm"]
    return _pace(found) / HBM_BYTES_PER_MS


@cache
def stock_experts_share() -> float:
    """The same of the stock path's experts (FlashInfer's TRT-LLM-gen kernel), at 8 and 16 ranks, up to 64 tokens."""
    shares = []
    for ranks in sorted(layers.EXPERT_COLUMNS):
        expert = layers.weights(ranks).expert
        found = [
            (min(layers.EXPERTS, t.size * layers.TOP_K) * expert, t.us)
            for t in kernels.timings()
            if t.op == "moe" and t.ranks == ranks
        ]
        shares.append(_pace(found) / HBM_BYTES_PER_MS)
    return math.fsum(shares) / len(shares)


def prefill_share(constants: Constants) -> float:
    """Of the vendor's BF16 FLOP/s, from vLLM's one published TTFT on a GPU of this kind, less one decode step."""
    row = next(row for row in published.published() if row.role == "prefill")
    busy_ms = row.value - step_ms(row.setup, constants)
    return layers.prefill_flops(row.input_tokens) / (BF16_FLOPS_PER_MS * row.tensor_parallel * busy_ms)


def document(found: Fit) -> dict[str, object]:
    """What is stored, rounded so that another machine's arithmetic writes the same."""
    return {
        "fitted": {name: _round(value) for name, value in zip(NAMES, astuple(found.constants.fitted), strict=True)},
        "given": {
            "dense": _round(found.constants.dense),
            "stock_experts": _round(found.constants.stock_experts),
            "prefill": _round(found.constants.prefill),
        },
        "covariance": [[float(f"{value:.3g}") for value in line] for line in found.covariance],
        "residual_sd": float(f"{found.residual_sd:.3g}"),
        "settings": {name: float(f"{value:.3g}") for name, value in found.left_out.items()},
        "inputs": {
            name: hashlib.sha256(files("tuner.predict").joinpath(name).read_bytes()).hexdigest() for name in INPUTS
        },
    }


def calibrated(found: Fit) -> Calibration:
    """A fit in the form in which predictions take it, for what is fitted on the spot."""
    return Calibration(
        constants=found.constants,
        covariance=found.covariance,
        residual_sd=found.residual_sd,
        settings=tuple(found.left_out),
        inputs={},
        key="not stored",
    )


def _solve(rows: Sequence[Published]) -> tuple[Constants, tuple[tuple[float, ...], ...]]:
    guess, sd = np.array(astuple(GUESS)), np.array(astuple(GUESS_SD))
    given = Constants(fitted=GUESS, dense=dense_share(), stock_experts=stock_experts_share(), prefill=1.0)

    def residuals(scaled: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "list[float]":
        constants = _with(given, tuple(guess + sd * scaled))
        steps = [math.log(step_ms(row.setup, constants) / row.step_ms) / row.log_sd for row in rows]
        return [*steps, *scaled]

    # None of the constants may be negative, or a share of the bandwidth above one.
    low = (0.1 * (np.array(NAMES) == "kernel_us") + 0.1 * (np.array(NAMES) == "specialized_experts") - guess) / sd
    high = np.where(np.array(NAMES) == "specialized_experts", (1.0 - guess) / sd, np.inf)
    found = least_squares(residuals, np.clip(np.zeros(len(NAMES)), low + 1e-3, high), bounds=(low, high), xtol=1e-12)
    scale = np.diag(sd)
    slopes = np.array(found.jac, dtype=np.float64)
    covariance = scale @ np.linalg.inv(slopes.T @ slopes) @ scale
    constants = _with(given, tuple(float(value) for value in guess + sd * found.x))
    constants = replace(constants, prefill=prefill_share(constants))
    return constants, tuple(tuple(float(value) for value in line) for line in covariance)


def _with(constants: Constants, values: Sequence[float]) -> Constants:
    return replace(constants, fitted=Fitted(**dict(zip(NAMES, values, strict=True))))


def _pace(found: Sequence[tuple[float, float]]) -> float:
    """Bytes per millisecond of the straight line through (bytes, us)."""
    slope = float(np.polyfit([size for size, _ in found], [us for _, us in found], 1)[0])
    return 1000 / slope


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main() -> None:
    text = json.dumps(document(fit(fitted_rows())), indent=1) + "\n"
    Path(str(files("tuner.predict").joinpath(FILE))).write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
