"""A study as an Optuna SQLite file, for those who look with optuna-dashboard. Reads a study; decides nothing."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.app.errors import WrongInputError
from tuner.core.objective import judge
from tuner.core.ports import Studies
from tuner.core.side_by_side import means
from tuner.core.study import Study
from tuner.core.trial import Failed, Measured, Rejected, Trial

SHOWN_AS_NONE = "engine's default"


def export_optuna(studies: Studies, study: Study, file: Path) -> int:
    """Number of trials written; one Optuna study for each GPU count, its value the ratio to that count's baseline.

    Raises:
        WrongInputError: the file exists, or its folder does not.
    """
    if file.exists():
        raise WrongInputError(f"{file}: exists already; an Optuna file is written anew")
    if not file.parent.is_dir():
        raise WrongInputError(f"{file.parent}: no such folder")
    trials = [trial for trial in studies.trials(study.id) if trial.outcome is not None]
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        for gpus in sorted({trial.gpus for trial in trials}):
            mine = [trial for trial in trials if trial.gpus == gpus]
            _write(storage, study, gpus, mine)
        storage.engine.dispose()
    finally:
        optuna.logging.set_verbosity(before)
    return len(trials)


def _write(storage: optuna.storages.RDBStorage, study: Study, gpus: int, trials: Sequence[Trial]) -> None:
    made = optuna.create_study(storage=storage, study_name=f"{study.name} ({gpus} GPUs)", direction="maximize")
    made.set_user_attr("value", f"{study.file.objective.metric} as a ratio to the baseline, better above 1")
    made.set_user_attr("tuner_study", study.id)
    made.set_user_attr("state", study.state.value)
    baseline = next((trial for trial in trials if trial.baseline), None)
    choices = _choices(trials)
    made.add_trials([_trial(study, trial, baseline, choices) for trial in trials])


def _choices(trials: Sequence[Trial]) -> dict[str, CategoricalDistribution]:
    found: dict[str, list[str]] = {}
    for trial in trials:
        for name, value in trial.candidate.values().items():
            values = found.setdefault(name, [])
            if _text(value) not in values:
                values.append(_text(value))
    return {name: CategoricalDistribution(values) for name, values in found.items()}


def _text(value: object) -> str:
    return SHOWN_AS_NONE if value is None else str(value)


def _trial(
    study: Study, trial: Trial, baseline: Trial | None, choices: Mapping[str, CategoricalDistribution]
) -> FrozenTrial:
    parameters = {name: _text(value) for name, value in trial.candidate.values().items()}
    attributes: dict[str, object] = {"tuner_trial": trial.number, "chosen_by": trial.chosen_by}
    if trial.baseline:
        attributes["baseline"] = True
    value = None
    outcome = trial.outcome
    if isinstance(outcome, Rejected):
        attributes["rejected"] = [reason.sentence for reason in outcome.reasons]
    elif isinstance(outcome, Failed):
        attributes |= {"failed": outcome.kind.value, "reason": outcome.sentence}
    elif isinstance(outcome, Measured):
        attributes["metrics"] = means(trial)
        if baseline is not None and isinstance(baseline.outcome, Measured):
            verdict = judge(
                outcome.measurements, baseline.outcome.measurements, study.file.objective, study.file.limits
            )
            value = verdict.value
            attributes |= {"feasible": verdict.feasible, "reasons": list(verdict.reasons)}
    usable = value is not None and math.isfinite(value)
    return create_trial(
        state=TrialState.COMPLETE if usable else TrialState.FAIL,
        value=value if usable else None,
        params=parameters,
        distributions={name: choices[name] for name in parameters},
        user_attrs=attributes,
    )
