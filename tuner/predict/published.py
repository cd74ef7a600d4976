"""Published decode measurements of Kimi K3, as steps that the model can be held against. Fits nothing.

`data/published.csv` holds one figure a row, with its source. A row is fitted (`fit`), compared with and never fitted
(`compare`: another engine or GPU, or an acceptance that was not published), or sets the prefill's pace (`prefill`).
"""

import csv
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files

from tuner.predict.constants import DATE
from tuner.predict.step_time import Setup

FILE = "data/published.csv"
DAYS_A_MONTH = 30.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One figure. acceptance: tokens per step; None where it was not published.   log_sd: how far the figure may be
    from the step that it stands for, in log: rounding, machine, text; 0 where it is not fitted."""

    setting: str
    role: str
    source: str
    date: str
    engine: str
    gpu: str
    tensor_parallel: int
    backend: str
    drafts: int
    acceptance: float | None
    requests: int
    input_tokens: int
    output_tokens: int
    metric: str
    value: float
    log_sd: float
    notes: str

    @property
    def token_ms(self) -> float:
        """Milliseconds between two tokens of one user.

        Raises:
            ValueError: the figure is no decode time.
        """
        if self.metric == "tpot_mean_ms":
            return self.value
        if self.metric == "decode_tokens_per_s":
            return 1000 * self.requests / self.value
        raise ValueError(f"{self.metric} is no decode time")

    @property
    def step_ms(self) -> float:
        """Raises ValueError where the acceptance was not published."""
        if self.acceptance is None:
            raise ValueError(f"{self.setting}: its acceptance was not published")
        return self.token_ms * self.acceptance

    @property
    def setup(self) -> Setup:
        """As its publication says; FP8 keys and values and no DCP, as vLLM's recipe for the model has it."""
        return Setup(
            path=self.backend,
            tensor_parallel=self.tensor_parallel,
            requests=self.requests,
            drafts=self.drafts,
            tokens=self.requests * (self.drafts + 1),
            context=self.input_tokens + self.output_tokens // 2,
            months=months_before(self.date),
        )


def months_before(day: str) -> float:
    """From `day` (or year, or month: then zero, since it is not known) to the constants' date."""
    if len(day) != len(DATE):
        return 0.0
    return (date.fromisoformat(DATE) - date.fromisoformat(day)).days / DAYS_A_MONTH


@cache
def published() -> tuple[Published, ...]:
    text = files("tuner.predict").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(
        Published(
            setting=row["setting"],
            role=row["role"],
            source=row["source"],
            date=row["date"],
            engine=row["engine"],
            gpu=row["gpu"],
            tensor_parallel=int(row["gpus"]),
            backend=row["decode_backend"],
            drafts=int(row["drafts"]),
            acceptance=float(row["acceptance"]) if row["acceptance"] else None,
            requests=int(row["requests"]),
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            metric=row["metric"],
            value=float(row["value"]),
            log_sd=float(row["log_sd"] or 0),
            notes=row["notes"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def fitted_rows() -> tuple[Published, ...]:
    return tuple(row for row in published() if row.role == "fit")
