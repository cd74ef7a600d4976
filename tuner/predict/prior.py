"""Predictions as beliefs, to order the first trials of a measured study. Knows no search."""

import math
from collections.abc import Sequence
from operator import attrgetter

from search_spaces.candidate import Candidate
from search_spaces.serving import ServingConfig
from tuner.core.acceptance import AcceptanceError
from tuner.core.plan import baseline_of
from tuner.core.ports import Belief, Prior
from tuner.core.spaces import space_of
from tuner.core.study_file import StudyFile
from tuner.core.workload import ServingWorkload, Workload
from tuner.predict import PredictError
from tuner.predict.constants import GPU, MODEL, calibration
from tuner.predict.step_time import Setup
from tuner.predict.traffic import metrics, traffic
from tuner.predict.uncertainty import ratio_log_sd

# What turns off the predicted road by kernels, tables and clocks that the model does not tell apart.
LEAST_SD = 0.02
# By workload: the log of the metric, and the step behind it.
Levels = tuple[tuple[float, Setup], ...]
# All of a configuration that a prediction sees; a space has many points that differ in the rest alone.
_SEEN = attrgetter(
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "dcp_comm_backend",
    "enable_expert_parallel",
    "decode_backend",
    "speculative_method",
    "num_speculative_tokens",
    "kv_cache_dtype",
    "mamba_ssm_cache_dtype",
    "max_num_seqs",
    "enforce_eager",
    "cudagraph_mode",
    "cudagraph_capture_sizes",
    "options",
)


def prior(file: StudyFile) -> Prior:
    """Of the file's objective, where it is predicted. Nothing is believed of real acceptance, of another model or GPU,
    or of a metric that is not predicted."""
    known = file.model == MODEL and file.hardware.gpu == GPU
    space = space_of(file)
    sign = 1 if file.objective.larger_is_better else -1
    baselines = {gpus: baseline_of(file, space, gpus) for gpus in space.baselines} if known else {}
    spreads: dict[tuple[Setup, Setup], float] = {}
    levels: dict[tuple[object, ...], Levels | None] = {}

    def level(candidate: Candidate, workloads: Sequence[Workload]) -> Levels | None:
        key = (*_SEEN(candidate), *workloads)
        if key not in levels:
            levels[key] = _levels(candidate, workloads, file.objective.metric)
        return levels[key]

    def spread(mine: Setup, theirs: Setup) -> float:
        if (mine, theirs) not in spreads:
            spreads[mine, theirs] = ratio_log_sd(mine, theirs, calibration())
        return spreads[mine, theirs]

    def believe(candidate: Candidate, workloads: Sequence[Workload]) -> Belief | None:
        if not isinstance(candidate, ServingConfig) or candidate.gpus not in baselines:
            return None
        mine, theirs = level(candidate, workloads), level(baselines[candidate.gpus], workloads)
        if not mine or not theirs:
            return None
        pairs = list(zip(mine, theirs, strict=True))
        mean = math.fsum(a - b for (a, _), (b, _) in pairs) / len(pairs)
        # The workloads' errors go together, so their mean is no surer than one of them.
        sd = max(spread(a, b) for (_, a), (_, b) in pairs)
        return Belief(sign * mean, max(sd, LEAST_SD))

    return believe


def _levels(candidate: Candidate, workloads: Sequence[Workload], name: str) -> Levels | None:
    """None where any workload is not predicted."""
    found: list[tuple[float, Setup]] = []
    for workload in workloads:
        if not isinstance(candidate, ServingConfig) or not isinstance(workload, ServingWorkload):
            return None
        try:
            seen = traffic(candidate, workload, calibration().constants)
        except (PredictError, AcceptanceError):
            return None
        value = metrics(candidate, workload, seen).get(name)
        if not value:
            return None
        found.append((math.log(value), seen.setup))
    return tuple(found)
