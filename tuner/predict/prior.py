"""Predictions as beliefs, to order the first trials of a measured study. Knows no search."""

import math
from collections.abc import Sequence

from search_spaces.candidate import Candidate
from search_spaces.serving import ServingConfig
from tuner.core.plan import baseline_of
from tuner.core.ports import Belief, Prior
from tuner.core.spaces import space_of
from tuner.core.study_file import StudyFile
from tuner.core.workload import ServingWorkload, Workload
from tuner.predict.evaluator import metrics

SD = 0.15  # of the log of a predicted ratio; the batch-64 steps, set on one row each, are off by as much elsewhere


def prior(file: StudyFile) -> Prior:
    """Of the file's objective, where the model predicts it; nothing is believed of real acceptance."""
    space = space_of(file)
    name, sign = file.objective.metric, 1 if file.objective.larger_is_better else -1
    baselines = {gpus: baseline_of(file, space, gpus) for gpus in space.baselines}
    known: dict[Candidate, float | None] = {}

    def level(candidate: Candidate, workloads: Sequence[Workload]) -> float | None:
        if candidate not in known:
            known[candidate] = _log_level(candidate, workloads, name)
        return known[candidate]

    def believe(candidate: Candidate, workloads: Sequence[Workload]) -> Belief | None:
        if not isinstance(candidate, ServingConfig) or candidate.gpus not in baselines:
            return None
        mine, theirs = level(candidate, workloads), level(baselines[candidate.gpus], workloads)
        return Belief(sign * (mine - theirs), SD) if mine is not None and theirs is not None else None

    return believe


def _log_level(candidate: Candidate, workloads: Sequence[Workload], name: str) -> float | None:
    logs = []
    for workload in workloads:
        if not isinstance(candidate, ServingConfig) or not isinstance(workload, ServingWorkload):
            return None
        length = workload.acceptance.length(candidate.num_speculative_tokens)
        value = metrics(candidate, workload, length).get(name) if length is not None else None
        if not value:
            return None
        logs.append(math.log(value))
    return math.fsum(logs) / len(logs) if logs else None
