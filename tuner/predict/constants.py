"""The constants of the step model: what was fitted, what kernel timings gave, what was published. Knows no model size.

`python -m tuner.predict.calibrate` writes `data/calibration.json`; this reads it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "data/calibration.json"
MODEL, GPU = "moonshotai/Kimi-K3", "GB300"
VLLM = "0.33.0"  # the version whose decode the constants describe
DATE = "2026-10-16"  # of the announcement's measurements; drift counts from here

# Of 93 layers, each runs so many kernels (vLLM's post of 2026-10-16).
KERNELS_A_LAYER = {"auto": 23, "latency_specialized": 13}
# The specialised output projection with its all-reduce takes 9.78 us on 16 ranks and 8.85 us on 8, at 16 tokens
# (comment in vLLM 0.33.0, specialized_decode/cutedsl/oproj/prepared.py); two such collectives a layer.
SPECIALIZED_COLLECTIVE_US = 0.93
COLLECTIVES_A_LAYER = 2
# Sampling of one draft after another by the Markov head: look-up, projection, gather, addition, two of the sampler
# (vLLM 0.33.0, v1/worker/gpu/spec_decode/dspark/speculator.py; counted there, not measured).
KERNELS_A_DRAFT = 6
HBM_BYTES_PER_MS = 8e12 / 1000  # GB300, vendor's figure
BF16_FLOPS_PER_MS = 2.5e15 / 1000  # dense, vendor's figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What published steps decided.

    kernel_us: one kernel of the chain, launch and dependency.   specialized_experts: share of the memory's bandwidth
    that the specialised experts reach.   collective_us: what one stock collective takes longer on 16 ranks than on 8.
    growth: by which the chain grows with each doubling of a step's tokens.   draft_ms: of a draft's pass, beyond its
    weights and kernels.   drift: by which the chain shortened a month, in log.
    """

    kernel_us: float
    specialized_experts: float
    collective_us: float
    growth: float
    draft_ms: float
    drift: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """dense, stock_experts: shares of the memory's bandwidth, from kernel timings.   prefill: share of the BF16
    FLOP/s that a prompt reaches, from one published TTFT.   bytes_per_ms: of the memory, by data sheet."""

    fitted: Fitted
    dense: float
    stock_experts: float
    prefill: float
    bytes_per_ms: float = HBM_BYTES_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """covariance: of the fitted values in the order of their names.   residual_sd: of the log of a step that the fit
    had not seen.   settings: those fitted.   inputs: file to hash.   key: of all this, for fingerprints."""

    constants: Constants
    covariance: tuple[tuple[float, ...], ...]
    residual_sd: float
    settings: tuple[str, ...]
    inputs: Mapping[str, str]
    key: str


@cache
def calibration() -> Calibration:
    """The one that is shipped."""
    text = files("tuner.predict").joinpath(FILE).read_text(encoding="utf-8")
    document = json.loads(text)
    return Calibration(
        constants=Constants(fitted=Fitted(**document["fitted"]), **document["given"]),
        covariance=tuple(map(tuple, document["covariance"])),
        residual_sd=document["residual_sd"],
        settings=tuple(document["settings"]),
        inputs=document["inputs"],
        key=hashlib.sha256(text.encode()).hexdigest()[:12],
    )
