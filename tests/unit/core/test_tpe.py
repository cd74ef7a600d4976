"""Our TPE proposes what Optuna's own proposes, of everything that it was told."""

import random
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import TrialState, create_trial

from tuner.core.tpe import GridTpe, is_compared

SPACE: dict[str, BaseDistribution] = {
    "tokens": IntDistribution(0, 6),
    "backend": CategoricalDistribution([0, 1, 2]),
    "drafts": IntDistribution(0, 3),
}

pytestmark = pytest.mark.skipif(not is_compared(), reason="another Optuna; its own sampler is used")


def proposals(sampler: BaseSampler, asks: int, *, missing: float) -> list[dict[str, Any]]:
    """missing: share of trials that miss a limit. What is told is another point than what was asked, as in a search."""
    chance = random.Random(1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    found = []
    for _ in range(asks):
        asked = study.ask(SPACE)
        study.tell(asked, state=TrialState.FAIL)
        found.append(asked.params)
        params = {**asked.params, "tokens": min(6, asked.params["tokens"] + chance.randrange(2))}
        value = float(
            -abs(params["tokens"] - 4) + params["backend"]
        )  # many are equal, which sorting must keep in order
        missed = float(chance.randrange(1, 3)) if chance.random() < missing else -1.0
        study.add_trial(create_trial(value=value, params=params, distributions=SPACE, constraints={"limits": missed}))
        if isinstance(sampler, GridTpe):
            sampler.observe(params, value, max(0.0, missed))
    return found


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.97])
def test_each_proposal_is_the_one_of_optunas_own_sampler(seed: int, missing: float) -> None:
    theirs = proposals(TPESampler(seed=seed), 300, missing=missing)
    ours = proposals(GridTpe(SPACE, seed), 300, missing=missing)
    assert ours == theirs
    assert len({tuple(sorted(p.items())) for p in ours}) > 5


def test_a_space_without_an_axis_has_one_proposal() -> None:
    study = optuna.create_study(sampler=GridTpe({}, 0))
    assert study.ask({}).params == {}
