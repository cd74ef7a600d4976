"""From a study file to what would be done: the feasible set, one contest a GPU count, the starts and their cost.

Knows no engine; nothing here runs anything.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.gemm import SkinnyTile
from search_spaces.rule import Reason
from search_spaces.serving import ServingConfig
from search_spaces.space import Feasible, Space
from tuner.core.comparability import acceptance_refusal
from tuner.core.metrics import UnknownMetricError
from tuner.core.objective import check_metrics
from tuner.core.ports import Check
from tuner.core.spaces import space_of
from tuner.core.study_file import StudyFile, StudyFileError
from tuner.core.workload import ServingWorkload, Workload

DRIFT_EVERY = 8  # trials of a contest between two measurements of its baseline
QUALITY_STARTS = 3  # baseline, candidate, baseline again, for a finalist that the statistics have passed
START_MINUTES = {"GB300": 20.0, "GB200": 20.0, "cpu": 1.0}  # until a study measures its own; an estimate, labelled so
OTHER_START_MINUTES = 5.0
PASS_MINUTES = 0.05  # a kernel's start is one timing pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The candidates that may be compared with one another: one GPU count, one baseline, one decision.

    trials: its share of the budget.
    """

    gpus: int
    baseline: Candidate
    candidates: tuple[Candidate, ...]
    seeds: tuple[Candidate, ...]
    trials: int

    @property
    def baseline_key(self) -> str:
        return candidate_key(self.baseline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Starts by reason, and the GPU hours that they hold at `start_minutes` each.

    least_gpu_hours: baselines, one trial a contest and the confirmation; a budget below cannot end in a decision.
    """

    starts: Mapping[str, int]
    gpu_hours: float
    least_gpu_hours: float
    start_minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """points: distinct candidates of the knobs.   feasible: those left.   rejected: by rule or check."""

    space: Space
    points: int
    feasible: int
    rejected: Mapping[str, int]
    sentences: Mapping[str, str]
    contests: tuple[Contest, ...]
    workloads: tuple[Workload, ...]
    cost: Cost

    def contest(self, gpus: int) -> Contest:
        return next(contest for contest in self.contests if contest.gpus == gpus)


def plan(file: StudyFile, checks: Sequence[Check] = ()) -> Plan:
    """Of one study; a file with several problems has a plan for each of its `parts`.

    Raises StudyFileError or SpaceError where the file leaves nothing to try; the message names key and reason.
    """
    try:
        check_metrics(file.objective, file.limits)
    except UnknownMetricError as error:
        raise StudyFileError(f"objective, limits: {error}") from error
    space = space_of(file)
    feasible = _given(file, space) if file.candidates else space.feasible()
    rejected = Counter(feasible.rejected)
    sentences = {rule.name: rule.sentence for rule in space.rules}
    kept: list[Candidate] = []
    for candidate in feasible.candidates:
        reasons = [reason for check in (table_check(file), *checks) for reason in check(candidate)]
        for reason in reasons:
            rejected[reason.rule] += 1
            sentences.setdefault(reason.rule, reason.sentence)
        if not reasons:
            kept.append(candidate)
    if not kept:
        most = ", ".join(f"{name} ({count})" for name, count in rejected.most_common(3))
        raise StudyFileError(f"space: no feasible point is left of {feasible.points}; rejected most by {most}")
    contests = _contests(file, space, kept)
    _refuse_wrong_acceptance(file, contests)
    return Plan(
        space=space,
        points=feasible.points,
        feasible=len(kept),
        rejected=dict(rejected.most_common()),
        sentences={name: sentence for name, sentence in sentences.items() if name in rejected},
        contests=contests,
        workloads=file.workloads,
        cost=cost(file, contests),
    )


def table_check(file: StudyFile) -> Check:
    """A tuned tile table that no file is named for cannot be run."""

    def check(candidate: Candidate) -> Sequence[Reason]:
        table = candidate.kernel_table if isinstance(candidate, ServingConfig) else None
        if table in (None, "stock") or table in file.engine.kernel_tables:
            return ()
        sentence = f"a tile table named {table!r} needs its file in the study file: engine.kernel_tables"
        return (Reason(rule="table-has-a-file", sentence=sentence, source="study file"),)

    return check


def _given(file: StudyFile, space: Space) -> Feasible:
    """The configurations that the file names, in place of the space's points; its rules still hold."""
    candidates: list[Candidate] = []
    rejected: Counter[str] = Counter()
    kind = SkinnyTile if file.problems else ServingConfig
    for place, values in enumerate(file.candidates):
        draft = file.engine.draft_models.get(str(values.get("speculative_method")))
        try:
            candidate = kind.from_values({**({"speculative_model": draft} if draft else {}), **values})
        except (ValueError, TypeError) as error:
            raise StudyFileError(f"candidates.{place}: {error}") from error
        reasons = [reason.rule for reason in space.reasons(candidate)]
        rejected.update(reasons)
        if not reasons:
            candidates.append(candidate)
    return Feasible(len(file.candidates), tuple(candidates), dict(rejected))


def _refuse_wrong_acceptance(file: StudyFile, contests: Sequence[Contest]) -> None:
    """Raises StudyFileError where the acceptance asked for cannot rank these candidates, or no engine can feign it."""
    for acceptance in dict.fromkeys(w.acceptance for w in file.workloads if isinstance(w, ServingWorkload)):
        for contest in contests:
            if acceptance.synthetic and file.evaluator == "vllm" and file.hardware.gpu.lower() == "cpu":
                everyone = (contest.baseline, *contest.candidates)
                if any(isinstance(c, ServingConfig) and c.num_speculative_tokens for c in everyone):
                    raise StudyFileError(f"workload.acceptance: {_NOT_ON_A_CPU}")
            reason = acceptance_refusal(acceptance, [contest.baseline, *contest.candidates])
            if reason:
                raise StudyFileError(f"workload.acceptance: {reason}")


# vllm/utils/cpu_triton_utils.py of 0.32.0: "Synthetic acceptance not supported with CPU sampling".
_NOT_ON_A_CPU = (
    "vLLM's CPU engine dies at its first draft under synthetic acceptance, which its sampler has for GPUs only: use "
    "real text (acceptance: real)"
)


def refuse_hopeless(file: StudyFile, cost: Cost) -> None:
    """Raises StudyFileError where the budget cannot reach the confirmation."""
    hours = file.budget.gpu_hours
    if hours is not None and hours < cost.least_gpu_hours:
        raise StudyFileError(
            f"budget.gpu_hours: {hours:g} cannot reach the confirmation; one trial for each GPU count and its "
            f"confirmation need {cost.least_gpu_hours:.1f} (at {cost.start_minutes:g} minutes a start; set "
            f"budget.start_minutes if yours differ)"
        )


def cost(file: StudyFile, contests: Sequence[Contest]) -> Cost:
    usual = PASS_MINUTES if file.problems else START_MINUTES.get(file.hardware.gpu, OTHER_START_MINUTES)
    minutes = file.budget.start_minutes or usual
    starts: Counter[str] = Counter()
    hours = least = 0.0
    for contest in contests:
        search = {"baseline": 1, "search": contest.trials, "drift": contest.trials // DRIFT_EVERY}
        confirmation = confirmation_starts(file)
        starts.update(search)
        starts.update(confirmation)
        hours += sum([*search.values(), *confirmation.values()]) * contest.gpus * minutes / 60
        least += (2 + sum(confirmation.values())) * contest.gpus * minutes / 60
    return Cost(starts=dict(starts), gpu_hours=hours, least_gpu_hours=least, start_minutes=minutes)


def confirmation_starts(file: StudyFile) -> dict[str, int]:
    """Starts of one contest's confirmation, by purpose."""
    confirm = file.confirm
    return {
        "noise": confirm.noise_starts,
        "confirm": confirm.starts_a_side * (1 + confirm.finalists),
        "quality": QUALITY_STARTS * confirm.finalists if file.quality.enabled and not file.problems else 0,
    }


def _contests(file: StudyFile, space: Space, feasible: Sequence[Candidate]) -> tuple[Contest, ...]:
    by_gpus: dict[int, list[Candidate]] = {}
    for candidate in feasible:
        by_gpus.setdefault(space.gpus(candidate), []).append(candidate)
    shares = _shares(file.budget.trials, {gpus: len(found) for gpus, found in sorted(by_gpus.items())})
    contests = []
    for gpus, candidates in sorted(by_gpus.items()):
        if gpus not in space.baselines:
            raise StudyFileError(f"space {space.name!r} has no baseline for {gpus} GPUs")
        baseline = baseline_of(file, space, gpus)
        reasons = space.reasons(baseline)
        if reasons:
            raise StudyFileError(f"baseline: {reasons[0].sentence} (rule {reasons[0].rule}, {reasons[0].source})")
        seeds = tuple(seed for seed in space.seeds if space.gpus(seed) == gpus)
        contests.append(
            Contest(gpus=gpus, baseline=baseline, candidates=tuple(candidates), seeds=seeds, trials=shares[gpus])
        )
    return tuple(contests)


def _shares(trials: int, sizes: Mapping[int, int]) -> dict[int, int]:
    """The trials split evenly; what a small contest cannot use goes to the others."""
    shares: dict[int, int] = {}
    left = trials
    for position, (gpus, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[gpus] = min(size, max(1, left // (len(sizes) - position)))
        left -= shares[gpus]
    return shares


def baseline_of(file: StudyFile, space: Space, gpus: int) -> Candidate:
    """The space's baseline for that GPU count, with the options that the study file says are run today."""
    baseline = space.baselines[gpus]
    if not file.baseline or not isinstance(baseline, ServingConfig):
        return baseline
    try:
        changed = ServingConfig.from_values({**baseline.values(), **file.baseline})
    except (ValueError, TypeError) as error:
        raise StudyFileError(f"baseline: {error}") from error
    return replace(changed, max_model_len=baseline.max_model_len)
