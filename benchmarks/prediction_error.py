"""How far predictions are from vLLM's published decode steps: `python -m benchmarks.prediction_error`.

Each published setting is predicted by constants that were fitted without it, interval included. aiconfigurator 0.12.0
is asked for the same settings where it can answer; it needs an interpreter of its own:
`python -m venv DIR && DIR/bin/pip install aiconfigurator==0.12.0`, then `--aiconfigurator DIR/bin/python`.
"""

import argparse
import json
import math
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import scipy

from benchmarks.writing import Goal, write
from tuner.core.plan import plan
from tuner.core.study_file import load
from tuner.predict.calibrate import calibrated, fit
from tuner.predict.constants import Calibration, calibration
from tuner.predict.prior import prior
from tuner.predict.published import Published, fitted_rows, published
from tuner.predict.step_time import SPECIALIZED, step_ms
from tuner.predict.traffic import prefill_ms
from tuner.predict.uncertainty import Z90, step_log_sd

EXAMPLE = Path(__file__).parents[1] / "examples" / "kimi_k3_gb300.yaml"
AICONFIGURATOR = Path("~/.cache/tuner/aiconfigurator-0.12.0/bin/python").expanduser()
SCRIPT = Path(__file__).parent / "aiconfigurator_estimates.py"
TABLES = ("0.24.0", "0.27.0")  # its "current" and its "next" tables of vLLM on GB300
ANNOUNCEMENT = "2026-10-16"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--aiconfigurator", type=Path, default=AICONFIGURATOR)
    other = arguments.parse_args().aiconfigurator
    began = time.perf_counter()
    space_s, candidates = whole_space()
    left_out = [line for setting in settings() for line in predicted_without({setting})]
    announced = [line for line in left_out if line["date"] == ANNOUNCEMENT]
    both_paths = {
        what: predicted_without({f"tp16 specialized, {what}", f"tp16 auto, {what}"})
        for what in ("1 request", "64 requests", "7 drafts")
    }
    theirs = aiconfigurator(other)
    results = {
        "left_out": left_out,
        "left_out_together_with_the_other_path": both_paths,
        "aiconfigurator": theirs,
        "on_the_rows_that_aiconfigurator_answers": side_by_side(left_out, theirs),
        "never_fitted": never_fitted(),
        "acceptance_that_B300_rows_imply": implied_acceptance(),
        "seconds_per_estimate": {"ours": seconds_per_estimate(), "aiconfigurator": theirs.get("seconds")},
        "whole_space": {"candidates": candidates, "seconds": round(space_s, 3)},
        "calibration": calibration().key,
    }
    goals = [
        goal("median absolute error, left out", "at most 10 %", statistics.median(map(off, left_out)), 0.10),
        goal("nine rows in ten, left out", "within 25 %", nine_in_ten(left_out), 0.25),
        goal(
            "announcement, 1 request, left out",
            "within 5 %",
            max(off(line) for line in announced if line["requests"] == 1),
            0.05,
        ),
        goal(
            "announcement, 64 requests, left out",
            "within 15 %",
            max(off(line) for line in announced if line["requests"] == 64),
            0.15,
        ),
        Goal(
            "90 % intervals cover the rows left out",
            "at least 80 %",
            share := sum(line["covered"] for line in left_out) / len(left_out),
            share >= 0.8,
        ),
        goal("the whole kimi_k3_gb300 space predicted, s", "under 1", space_s, 1.0),
    ]
    versions = {"numpy": numpy.__version__, "scipy": scipy.__version__, "aiconfigurator": str(theirs["version"])}
    write("prediction_error", seconds=time.perf_counter() - began, versions=versions, results=results, goals=goals)


def settings() -> Sequence[str]:
    return tuple(dict.fromkeys(row.setting for row in fitted_rows()))


def predicted_without(names: set[str]) -> list[dict[str, Any]]:
    """The rows of those settings, predicted by a fit that has seen none of them; both figures of a pair go together."""
    rows = fitted_rows()
    known = calibrated(fit([row for row in rows if row.setting not in names]))
    return [_line(row, known) for row in rows if row.setting in names]


def never_fitted() -> list[dict[str, Any]]:
    """Other engines and GPUs, by the shipped constants; others' prefills are added where the figure has them."""
    lines = []
    for row in published():
        if row.role == "compare" and row.acceptance is not None:
            line = _line(row, calibration())
            stall = _stall_ms(row)
            line["predicted_ms"] = round(line["predicted_ms"] + stall * row.acceptance, 3)
            line["ratio"] = round(line["predicted_ms"] / row.step_ms, 4)
            lines.append({**line, "engine": row.engine, "gpu": row.gpu, "notes": row.notes})
    return lines


def implied_acceptance() -> list[dict[str, Any]]:
    """vLLM's B300 rows with 8 drafts and unpublished acceptance: predicted step over decode time a token.

    One text and one draft have one acceptance, so the three should agree; how far they do not is the error.
    """
    lines = []
    for row in published():
        if row.role == "compare" and row.acceptance is None:
            decode_ms = row.token_ms - _stall_ms(row)
            step = step_ms(row.setup, calibration().constants)
            lines.append({"setting": row.setting, "predicted_ms": round(step, 3), "acceptance": step / decode_ms})
    return lines


def aiconfigurator(python: Path) -> dict[str, Any]:
    """Its answers on the stock path's settings, by each of its tables; it knows no decode backend."""
    if not python.exists():
        return {"version": "not installed", "answers": [], "why": f"{python} is not there"}
    rows = [row for row in fitted_rows() if row.backend != SPECIALIZED]
    asked = [_question(row, tables) for tables in TABLES for row in rows]
    done = subprocess.run(
        [str(python), str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        return {"version": "failed", "answers": [], "why": done.stderr[-500:]}
    answers = json.loads(done.stdout)
    found = []
    for question, row, answer in zip(asked, rows * len(TABLES), answers, strict=True):
        line: dict[str, Any] = {"setting": row.setting, "tables": question["backend_version"], **answer}
        if "tpot_ms" in answer:
            step = answer["tpot_ms"] * (row.acceptance or 1)
            line.update(published_ms=round(row.step_ms, 3), predicted_ms=round(step, 3))
            line["ratio"] = round(step / row.step_ms, 4)
        found.append(line)
    first, *rest = (answer["seconds"] for answer in answers)
    return {
        "version": "0.12.0",
        "answers": found,
        "seconds": {"first": first, "then": statistics.median(rest)},
        "cannot_answer": "the specialised path: it has no such option",
    }


def side_by_side(left_out: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Median absolute error on the same rows. Ours were left out of the fit; its tables saw none of them either."""
    answered = [line for line in theirs["answers"] if "ratio" in line]
    found: dict[str, Any] = {
        f"aiconfigurator, tables {tables}": statistics.median(off(line) for line in of_tables)
        for tables in TABLES
        if (of_tables := [line for line in answered if line["tables"] == tables])
    }
    names = {line["setting"] for line in answered}
    ours = [off(line) for line in left_out if line["setting"] in names]
    return {**found, "ours": statistics.median(ours)} if ours else found


def whole_space() -> tuple[float, int]:
    """Seconds to believe something of every feasible candidate on every workload, from cold."""
    file = load(EXAMPLE)
    what = plan(file)
    candidates = [candidate for contest in what.contests for candidate in contest.candidates]
    began = time.perf_counter()
    believe = prior(file)
    beliefs = [believe(candidate, what.workloads) for candidate in candidates]
    seconds = time.perf_counter() - began
    if None in beliefs:
        raise RuntimeError("a feasible candidate of the example is not predicted")
    return seconds, len(candidates)


def seconds_per_estimate() -> float:
    """One step with its interval, nothing remembered from before."""
    from tuner.predict import uncertainty

    rows, known = fitted_rows(), calibration()
    uncertainty.gradient.cache_clear()
    began = time.perf_counter()
    for row in rows:
        step_ms(row.setup, known.constants)
        step_log_sd(row.setup, known)
    return (time.perf_counter() - began) / len(rows)


def off(line: Mapping[str, Any]) -> float:
    return abs(float(line["ratio"]) - 1)


def nine_in_ten(lines: Sequence[Mapping[str, Any]]) -> float:
    """The error that nine rows in ten do not exceed."""
    return sorted(map(off, lines))[math.ceil(0.9 * len(lines)) - 1]


def goal(name: str, words: str, value: float, bound: float) -> Goal:
    return Goal(name, words, value, value <= bound)


def _line(row: Published, known: Calibration) -> dict[str, Any]:
    step = step_ms(row.setup, known.constants)
    spread = math.exp(Z90 * step_log_sd(row.setup, known))
    return {
        "setting": row.setting,
        "source": row.source,
        "date": row.date,
        "requests": row.requests,
        "published_ms": round(row.step_ms, 3),
        "predicted_ms": round(step, 3),
        "ratio": round(step / row.step_ms, 4),
        "low_ms": round(step / spread, 3),
        "high_ms": round(step * spread, 3),
        "covered": step / spread <= row.step_ms <= step * spread,
    }


def _stall_ms(row: Published) -> float:
    """What the other requests' prefills add to the mean time between two tokens, where the figure is a TPOT."""
    if row.metric != "tpot_mean_ms":
        return 0.0
    constants = calibration().constants
    alone = prefill_ms(
        row.input_tokens,
        tensor_parallel=row.tensor_parallel,
        first_step_ms=step_ms(row.setup, constants),
        constants=constants,
    )
    return (row.requests - 1) * alone / (row.output_tokens - 1)


def _question(row: Published, tables: str) -> dict[str, Any]:
    question: dict[str, Any] = {
        "backend_version": tables,
        "isl": row.input_tokens,
        "osl": row.output_tokens,
        "batch_size": row.requests,
        "tp_size": row.tensor_parallel,
        "moe_tp_size": row.tensor_parallel,
        "moe_ep_size": 1,
        "kvcache_quant_mode": "fp8",
    }
    if row.drafts and row.acceptance is not None:
        question.update(nextn=row.drafts, nextn_accepted=row.acceptance - 1)
    return question


if __name__ == "__main__":
    main()
