"""Predictions for people: a step's terms as bars, what they rest on, and how predictions fared in a study."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from search_spaces.candidate import candidate_key, difference
from search_spaces.serving import ServingConfig
from tuner.app.errors import WrongInputError
from tuner.app.wiring import checks_of
from tuner.core.plan import Contest, plan
from tuner.core.ports import Studies
from tuner.core.study import Study
from tuner.core.study_file import StudyFile
from tuner.core.trial import Measured
from tuner.core.workload import ServingWorkload
from tuner.predict import PredictError
from tuner.predict.explain import Prediction, explain
from tuner.predict.ledger import Ledger, Pair, ledger
from tuner.predict.prior import prior
from tuner.predict.uncertainty import Z90

BAR = 40


def predict_document(file: StudyFile) -> dict[str, Any]:
    """For each GPU count the baseline and the candidate that is believed best, each under every workload.

    Raises:
        WrongInputError: a kernel study.
        PredictError: a model, a GPU or an acceptance that is not predicted.
    """
    what = plan(file, checks_of(file))
    workloads = [workload for workload in what.workloads if isinstance(workload, ServingWorkload)]
    if not workloads:
        raise WrongInputError("workload: only serving studies are predicted")
    return {
        "name": file.name,
        "origin": "predicted",
        "contests": [_contest(file, contest, workloads) for contest in what.contests],
    }


def _contest(file: StudyFile, contest: Contest, workloads: Sequence[ServingWorkload]) -> dict[str, Any]:
    believe = prior(file)
    believed = [(belief.mean, c) for c in contest.candidates if (belief := believe(c, workloads)) is not None]
    if not believed:
        raise PredictError(
            f"nothing is predicted of {file.objective.metric} for {file.model} on {file.hardware.gpu}: "
            "predictions speak of Kimi K3's decode on GB300, with acceptance by a curve"
        )
    least = min((-mean, len(difference(c, contest.baseline)), candidate_key(c)) for mean, c in believed)
    best = next(c for _, c in believed if candidate_key(c) == least[2])
    changes = {name: mine for name, (mine, _) in difference(best, contest.baseline).items()}
    return {
        "gpus": contest.gpus,
        "baseline": _explained(contest.baseline, workloads, file),
        "best": {**_explained(best, workloads, file), "changes": changes},
    }


def _explained(config: object, workloads: Sequence[ServingWorkload], file: StudyFile) -> dict[str, Any]:
    if not isinstance(config, ServingConfig):
        raise WrongInputError("space: only serving configurations are predicted")
    return {
        "config": config.values(),
        "predictions": [_plain(explain(config, workload, vllm=file.engine.version)) for workload in workloads],
    }


def _plain(prediction: Prediction) -> dict[str, Any]:
    """JSON-ready."""
    found = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    nearest = [asdict(near) for near in prediction.nearest]
    return {n: dict(v) if isinstance(v, Mapping) else v for n, v in found.items()} | {"nearest": nearest}


def print_predictions(console: Console, file: StudyFile) -> None:
    document = predict_document(file)
    console.print("[bold]Predicted: nothing was run.[/] One decode step, term by term.")
    for contest in document["contests"]:
        for side in ("baseline", "best"):
            for prediction in contest[side]["predictions"]:
                _print_one(console, contest["gpus"], side, prediction)
            for name, value in contest[side].get("changes", {}).items():
                console.print(f"  {name}: {value}", markup=False)


def _print_one(console: Console, gpus: int, side: str, prediction: dict[str, Any]) -> None:
    console.print(f"\n[bold]{gpus} GPUs, {side}[/], {prediction['workload']}, kernels of the {prediction['path']} path")
    table = Table(Column("", no_wrap=True), Column("ms", justify="right"), "", box=None, pad_edge=False)
    scale = BAR / prediction["step_ms"]
    before = 0.0
    for name, ms in prediction["terms"].items():
        if not ms:
            continue
        table.add_row(name, f"{ms:.3f}", " " * round(before * scale) + "█" * max(1, round(ms * scale)))
        before += ms
    table.add_row("step", f"{prediction['step_ms']:.3f}", "█" * BAR)
    console.print(table, soft_wrap=False)
    console.print(
        f"{prediction['acceptance_length']:.2f} tokens a step: TPOT {prediction['tpot_ms']:.3f} ms, "
        f"90 % interval {prediction['low_ms']:.3f} to {prediction['high_ms']:.3f}; "
        f"fits {prediction['largest_context']} tokens of context, or {prediction['most_requests']} requests"
    )
    for near in prediction["nearest"]:
        differs = ", ".join(near["differs"]) or "nothing"
        console.print(
            f"  near: {near['setting']}, published {near['published_ms']:.2f} ms, "
            f"predicted {near['predicted_ms']:.2f}; differs in {differs} ({near['source']})",
            markup=False,
        )
    for regime in prediction["extrapolates"]:
        console.print(f"  extrapolates: {regime}", markup=False)


def study_ledger(studies: Studies, study: Study) -> Ledger | None:
    """How predictions fared in a measured study; None where the model does not speak of it, or nothing was measured."""
    if study.file.evaluator != "vllm":
        return None
    workloads = {w.key: w for w in study.file.workloads if isinstance(w, ServingWorkload)}
    pairs = []
    for trial in studies.trials(study.id):
        if not isinstance(trial.outcome, Measured) or not isinstance(trial.candidate, ServingConfig):
            continue
        for run in trial.outcome.measurements:
            measured = run.metrics.get("tpot_mean_ms")
            predicted = _predicted(trial.candidate, workloads[run.workload_key], study.file) if measured else None
            if predicted is not None and measured:
                spread = _log_sd(predicted)
                name = f"trial {trial.number}, {run.workload_key}"
                pairs.append(Pair(name=name, predicted=predicted.tpot_ms, log_sd=spread, measured=measured))
    return ledger(pairs) if pairs else None


def _predicted(config: ServingConfig, workload: ServingWorkload, file: StudyFile) -> Prediction | None:
    if file.space != "kimi_k3_gb300" or file.hardware.gpu != "GB300":
        return None
    try:
        return explain(config, workload, vllm=file.engine.version)
    except PredictError:
        return None


def _log_sd(prediction: Prediction) -> float:
    """Back from the interval that the prediction claims."""
    return math.log(prediction.high_ms / prediction.low_ms) / (2 * Z90)
