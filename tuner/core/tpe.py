"""Optuna's TPE over a grid that is known beforehand: the same proposals, without a walk through every trial for each.

Optuna's own sampler reads the parameters of all trials anew on every ask, 0.15 s of 0.2 s at 10,000 trials (2 cores,
Optuna 5.0, 2026-12-01). This one keeps them in arrays. It stands on parts of Optuna that are not public, so it is for
the versions it was compared with; the tests compare each proposal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.samplers._tpe.sampler import default_gamma
from optuna.study import Study
from optuna.trial import FrozenTrial

COMPARED_WITH = "5.0."
_ROWS = 256

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Rows = np.ndarray[tuple[int], np.dtype[np.intp]]


def is_compared() -> bool:
    """Whether the installed Optuna is a version whose parts this sampler knows."""
    return optuna.__version__.startswith(COMPARED_WITH)


class GridTpe(TPESampler):
    """For one study whose every trial has every parameter and is told to `observe` too, in the same order."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], seed: int) -> None:
        super().__init__(seed=seed)
        self._distributions = dict(sorted(distributions.items()))
        self._count = 0
        # Columns: the parameters as Optuna counts them, then the value, then by how much the limits are missed.
        self._table: _Floats = np.empty((_ROWS, len(self._distributions) + 2))

    def observe(self, params: Mapping[str, Any], value: float, missed: float) -> None:
        """missed: 0 where every limit holds."""
        if self._count == len(self._table):
            self._table = np.concatenate([self._table, np.empty_like(self._table)])
        levels = [kind.to_internal_repr(params[name]) for name, kind in self._distributions.items()]
        self._table[self._count] = (*levels, value, missed)
        self._count += 1

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing before the first few trials are known; Optuna then draws each parameter by itself."""
        if not search_space or self._count < self._n_startup_trials:
            return {}
        return self._sample(study, trial, search_space)

    def _sample(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:  # noqa: ARG002
        below, above = self._split(default_gamma(self._count))
        good, other = (self._parzen(rows, search_space) for rows in (below, above))
        samples = good.sample(self._rng.rng, self._n_ei_candidates)
        best = self._compare(samples, self._compute_acquisition_func(samples, good, other))
        return {name: kind.to_external_repr(best[name]) for name, kind in search_space.items()}

    def _parzen(self, rows: _Rows, search_space: dict[str, BaseDistribution]) -> Any:
        observed = {name: self._table[rows, column] for column, name in enumerate(self._distributions)}
        return self._parzen_estimator_cls(observed, search_space, self._parzen_estimator_parameters)

    def _split(self, good: int) -> Sequence[_Rows]:
        """The best so many rows, and the others, each in the order of trials; what misses a limit comes last."""
        value, missed = self._table[: self._count, -2], self._table[: self._count, -1]
        order = np.lexsort((np.where(missed > 0, 0.0, -value), missed))  # stable, as Optuna's sorting is
        return np.sort(order[:good]), np.sort(order[good:])
