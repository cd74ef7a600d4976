"""What predictions are worth to a search, and what wrong ones cost: `python -m benchmarks.prior_value`.

The search of the product looks for the best of Kimi K3's configurations on 8 GB300, on a surface that is not the
prediction model's (benchmarks/recombined.py), with 1 % of noise in each answer. No seeds: the published configuration
would be tried first in every arm. Counted are the trials until one within 2 % of the best was tried.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from scipy.stats import spearmanr

from benchmarks.recombined import TENSOR_PARALLEL, tokens_per_s
from benchmarks.writing import Goal, write
from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.plan import plan
from tuner.core.ports import Belief
from tuner.core.search import Search
from tuner.core.study_file import StudyFile, parse
from tuner.core.workload import ServingWorkload
from tuner.predict.prior import prior

EXAMPLE = Path(__file__).parents[1] / "examples" / "kimi_k3_gb300.yaml"
SEEDS = 6
TRIALS = 250  # of one search; one that is not there by then counts as 251, which favours the slower arm
NEAR = 0.98
NOISE = 0.01
WRONG = math.log(3)
PER_USER, IN_ALL = "decode_tokens_per_s_per_user", "decode_tokens_per_s"
Beliefs = Mapping[str, Belief]


@dataclass(frozen=True, slots=True)
class Surface:
    """values: candidate's key to its true figure.   beliefs: the model's, before anything is tried."""

    name: str
    candidates: Sequence[Candidate]
    values: Mapping[str, float]
    beliefs: Beliefs


def main() -> None:
    began = time.perf_counter()
    arms: dict[str, Callable[[Beliefs, int], Beliefs | None]] = {
        "no prior": lambda _beliefs, _seed: None,
        "prior": lambda beliefs, _seed: beliefs,
        "wrong by 3 at random": at_random,
        "wrong by 3 against the truth": against,
    }
    tried: dict[str, list[int]] = {name: [] for name in arms}
    surfaces: list[dict[str, Any]] = []
    for surface in map(surface_of, questions()):
        line: dict[str, Any] = {"surface": surface.name, **agreement(surface)}
        for name, spoil in arms.items():
            found = [trials(surface, spoil(surface.beliefs, seed), seed) for seed in range(SEEDS)]
            tried[name] += found
            line[name] = {"median": statistics.median(found), "mean": statistics.fmean(found), "most": max(found)}
        surfaces.append(line)
        print(line, flush=True)
    means = {name: statistics.fmean(found) for name, found in tried.items()}
    medians = {name: statistics.median(found) for name, found in tried.items()}
    ratios = {name: mean / means["no prior"] for name, mean in means.items()}
    goals = [
        Goal("trials with predictions over trials without", "below 1", ratios["prior"], ratios["prior"] < 1),
        *(
            Goal(f"trials with a prior {name}, over without", "at most 1.2", ratios[name], ratios[name] <= 1.2)
            for name in ("wrong by 3 at random", "wrong by 3 against the truth")
        ),
    ]
    results = {
        "trials_mean": means,
        "trials_median": medians,
        "searches": {name: len(found) for name, found in tried.items()},
        "not_there_by_the_cap": {name: sum(n > TRIALS for n in found) for name, found in tried.items()},
        "surfaces": surfaces,
        "seeds": SEEDS,
        "cap": TRIALS,
    }
    versions = {"optuna": optuna.__version__, "numpy": np.__version__}
    write("prior_value", seconds=time.perf_counter() - began, versions=versions, results=results, goals=goals)


def questions() -> list[tuple[StudyFile, str]]:
    """One user and several, short contexts and long ones."""
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    found = []
    for concurrency, metric in ((1, PER_USER), (8, PER_USER), (8, IN_ALL), (32, IN_ALL)):
        for context in (1, 65_536):
            workload = {**document["workload"], "concurrency": concurrency, "context_tokens": context}
            file = parse({**document, "workload": workload, "objective": {"maximize": metric}, "limits": []})
            found.append((file, f"{metric}, {concurrency} users, context {context}"))
    return found


def surface_of(question: tuple[StudyFile, str]) -> Surface:
    file, name = question
    what = plan(file)
    (workload,) = what.workloads
    believe = prior(file)
    candidates = what.contest(TENSOR_PARALLEL).candidates
    values: dict[str, float] = {}
    beliefs: dict[str, Belief] = {}
    for candidate in candidates:
        assert isinstance(candidate, ServingConfig)
        assert isinstance(workload, ServingWorkload)
        key = candidate_key(candidate)
        values[key] = tokens_per_s(candidate, workload, per_user=file.objective.metric == PER_USER)
        belief = believe(candidate, what.workloads)
        if belief is not None:
            beliefs[key] = belief
    return Surface(name, candidates, values, beliefs)


def trials(surface: Surface, beliefs: Beliefs | None, seed: int) -> int:
    """Until a candidate within 2 % of the best was tried, itself counted."""
    search = Search(candidates=surface.candidates, trials=TRIALS, seed=seed, beliefs=beliefs)
    noise = np.random.default_rng(seed + 1000)
    good = NEAR * max(surface.values.values())
    for number in range(1, TRIALS + 1):
        choice = search.ask()
        assert choice is not None
        value = surface.values[candidate_key(choice.candidate)]
        if value >= good:
            return number
        search.tell(candidate_key(choice.candidate), math.log(value) + float(noise.normal(0, NOISE)))
    return TRIALS + 1


def at_random(beliefs: Beliefs, seed: int) -> Beliefs:
    """Each ratio three times too high or too low, by chance."""
    chance = np.random.default_rng(seed)
    return {key: Belief(b.mean + WRONG * float(chance.choice((-1, 1))), b.sd) for key, b in beliefs.items()}


def against(beliefs: Beliefs, _seed: int) -> Beliefs:
    """The better half three times too low, the worse half three times too high."""
    middle = statistics.median(b.mean for b in beliefs.values())
    return {key: Belief(b.mean - math.copysign(WRONG, b.mean - middle), b.sd) for key, b in beliefs.items()}


def agreement(surface: Surface) -> dict[str, float]:
    """How like the surface the model's beliefs are, and how rare what is looked for is."""
    keys = list(surface.beliefs)
    best = max(surface.values.values())
    return {
        "rank_correlation": float(
            spearmanr([surface.beliefs[k].mean for k in keys], [surface.values[k] for k in keys]).statistic
        ),
        "share_within_2_percent": sum(v >= NEAR * best for v in surface.values.values()) / len(surface.values),
        "first_believed_over_best": surface.values[max(keys, key=lambda k: surface.beliefs[k].mean)] / best,
    }


if __name__ == "__main__":
    main()
