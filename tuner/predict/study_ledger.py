"""The ledger of a study: its measured trials against what the model predicts of them. Knows no table and no engine."""

from collections.abc import Sequence
from statistics import fmean

from search_spaces.serving import ServingConfig
from tuner.core.acceptance import AcceptanceError
from tuner.core.measurement import Origin
from tuner.core.study_file import StudyFile
from tuner.core.trial import Measured, Trial
from tuner.core.workload import ServingWorkload
from tuner.predict import PredictError
from tuner.predict.constants import GPU, MODEL, calibration
from tuner.predict.ledger import Ledger, Pair, ledger
from tuner.predict.traffic import metrics, traffic
from tuner.predict.uncertainty import step_log_sd


def study_ledger(file: StudyFile, trials: Sequence[Trial]) -> Ledger | None:
    """Of the objective's metric, a pair for each trial and workload; None where the model does not speak of the study.

    Only what was measured enters: a prediction held against predictions would agree with itself.
    """
    if file.model != MODEL or file.hardware.gpu != GPU:
        return None
    workloads = {
        workload.key: workload
        for workload in file.workloads
        if isinstance(workload, ServingWorkload) and workload.dataset.is_random
    }
    pairs = [
        pair
        for trial in trials
        for workload in workloads.values()
        if (pair := _pair(trial, workload, file.objective.metric)) is not None
    ]
    return ledger(pairs)


def _pair(trial: Trial, workload: ServingWorkload, metric: str) -> Pair | None:
    config, outcome = trial.candidate, trial.outcome
    if not isinstance(config, ServingConfig) or not isinstance(outcome, Measured):
        return None
    measured = [
        m.metrics[metric]
        for m in outcome.measurements
        if m.origin is Origin.MEASURED and m.workload_key == workload.key and m.metrics.get(metric, 0) > 0
    ]
    try:
        seen = traffic(config, workload, calibration().constants)
    except (PredictError, AcceptanceError):
        return None
    predicted = metrics(config, workload, seen).get(metric)
    if not measured or not predicted:
        return None
    return Pair(
        name=f"trial {trial.number} {workload.key}",
        predicted=predicted,
        log_sd=step_log_sd(seen.setup, calibration()),
        measured=fmean(measured),
    )
