"""Say whether two numbers may be compared, and if not, which difference forbids it. Knows no measurement.

Comparable means: same model, workload, hardware, GPU count, software, and acceptance from the same source. Two
publications' numbers, two machines, two drivers are never joined into one percentage.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from search_spaces.candidate import Candidate, candidate_key
from search_spaces.serving import ServingConfig
from tuner.core.acceptance import CURVES, Acceptance
from tuner.core.measurement import Fingerprint
from tuner.core.vllm_args import KERNEL_TABLE_VARIABLE
from tuner.core.workload import ServingWorkload, Workload

AUTOTUNE_CACHE = "autotune_cache_sha256"
KERNEL_TABLE = "kernel_table_sha256"
# Settings that belong to the candidate, so that two candidates may differ in them. The engine fills its autotune cache
# itself, for the shapes it meets: on GB300 two runs of one configuration differed in 86 of 191 entries and by 9 % in
# serving (flashinfer issue 3920), so starts of one candidate must share it.
CANDIDATE_SETTINGS = frozenset({AUTOTUNE_CACHE, KERNEL_TABLE, KERNEL_TABLE_VARIABLE})


class IncomparableError(ValueError):
    """Two numbers that must not be compared; the message names every difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a number was measured on.

    drafts: tokens drafted per step; 0 without speculation.   sampler: draft and rejection sampling method, where set.
    """

    model: str
    workload: Workload
    fingerprint: Fingerprint
    candidate_key: str
    gpus: int
    drafts: int = 0
    sampler: tuple[str | None, str | None] = (None, None)

    @classmethod
    def of(cls, model: str, workload: Workload, fingerprint: Fingerprint, candidate: Candidate) -> "Conditions":
        serving = candidate if isinstance(candidate, ServingConfig) else None
        return cls(
            model=model,
            workload=workload,
            fingerprint=fingerprint,
            candidate_key=candidate_key(candidate),
            gpus=serving.gpus if serving is not None else fingerprint.gpus,
            drafts=serving.num_speculative_tokens if serving is not None else 0,
            sampler=(serving.draft_sample_method, serving.rejection_sample_method) if serving else (None, None),
        )

    @property
    def acceptance(self) -> Acceptance | None:
        return self.workload.acceptance if isinstance(self.workload, ServingWorkload) else None


def differences(a: Conditions, b: Conditions) -> list[str]:
    """Every difference that forbids a comparison, in words; empty where the two are comparable."""
    found = []
    if a.model != b.model:
        found.append(f"model: {a.model} and {b.model}")
    found += _workload_differences(a.workload, b.workload)
    if a.gpus != b.gpus:
        found.append(f"GPU count: {a.gpus} and {b.gpus}; show them side by side, per user and per GPU")
    found += _acceptance_differences(a, b)
    same = a.candidate_key == b.candidate_key
    return found + fingerprint_differences(a.fingerprint, b.fingerprint, same_candidate=same)


def require_comparable(a: Conditions, b: Conditions) -> None:
    """Raises IncomparableError."""
    found = differences(a, b)
    if found:
        raise IncomparableError("not comparable: " + "; ".join(found))


def fingerprint_differences(a: Fingerprint, b: Fingerprint, *, same_candidate: bool) -> list[str]:
    """Differences between two starts' environments; the same list forbids a comparison and makes a result stale.

    same_candidate: whether what a candidate brings along, and the engine's autotune cache, must be equal too.
    """
    found = [
        f"{words}: {mine or 'none'} and {theirs or 'none'}"
        for words, mine, theirs in (
            ("engine", a.engine, b.engine),
            ("hardware", a.gpu, b.gpu),
            ("GPUs held", a.gpus, b.gpus),
            ("driver", a.driver, b.driver),
            ("host", a.host, b.host),
        )
        if mine != theirs
    ]
    found += _mapping_differences("version of", a.versions, b.versions, ignored=frozenset())
    ignored = frozenset() if same_candidate else CANDIDATE_SETTINGS
    return found + _mapping_differences("setting", a.settings, b.settings, ignored=ignored)


def stale_reasons(then: Fingerprint, now: Fingerprint) -> list[str]:
    """What has changed since a result was validated: engine, GPU, driver, or a version, the model's among them.

    Another host of the same kind makes no result stale, nor do the settings, which an export carries with it.
    """
    today = replace(now, host=then.host, settings={})
    return fingerprint_differences(replace(then, settings={}), today, same_candidate=False)


def _mapping_differences(
    words: str, a: Mapping[str, str], b: Mapping[str, str], *, ignored: frozenset[str]
) -> list[str]:
    return [
        f"{words} {name}: {a.get(name, 'not set')} and {b.get(name, 'not set')}"
        for name in sorted({*a, *b} - ignored)
        if a.get(name) != b.get(name)
    ]


def _workload_differences(a: Workload, b: Workload) -> list[str]:
    if type(a) is not type(b):
        return [f"kind of workload: {a.kind} and {b.kind}"]
    return [
        f"workload {field.name}: {getattr(a, field.name)} and {getattr(b, field.name)}"
        for field in fields(a)
        if field.name not in ("acceptance", "name") and getattr(a, field.name) != getattr(b, field.name)
    ]


def acceptance_refusal(acceptance: Acceptance, candidates: Iterable[Candidate]) -> str:
    """Why those candidates, a contest's baseline included, may not be ranked under that acceptance; else empty.

    For a plan: the same reasons as in `differences`, before anything is run.
    """
    serving = [candidate for candidate in candidates if isinstance(candidate, ServingConfig)]
    drafts = sorted({config.num_speculative_tokens for config in serving})
    if acceptance.fixed_length is not None and len(drafts) > 1:
        return f"draft lengths {', '.join(map(str, drafts))} under {acceptance.source}: {_FIXED_LENGTH}"
    refused = (
        reason
        for config in serving
        for reason in _sampler_reasons(
            acceptance, config.num_speculative_tokens, (config.draft_sample_method, config.rejection_sample_method)
        )
    )
    return next(refused, "")


_FIXED_LENGTH = (
    "one fixed synthetic length says nothing of how acceptance grows with the draft length, so it cannot rank draft "
    "lengths: use a curve, or real text"
)


def _acceptance_differences(a: Conditions, b: Conditions) -> list[str]:
    """A synthetic length is an assumption: it may be compared where one measured curve gives it for every draft
    length, never where it is one fixed figure for different ones, since that figure alone would decide which wins."""
    mine, theirs = a.acceptance, b.acceptance
    if mine is None or theirs is None:
        return []
    if mine.source != theirs.source:
        return [f"acceptance source: {mine.source} and {theirs.source}"]
    if mine.fixed_length is not None and a.drafts != b.drafts:
        return [f"draft length: {a.drafts} and {b.drafts} under {mine.source}; {_FIXED_LENGTH}"]
    return [reason for c in (a, b) for reason in _sampler_reasons(mine, c.drafts, c.sampler)]


def _sampler_reasons(acceptance: Acceptance, drafts: int, sampler: tuple[str | None, str | None]) -> list[str]:
    if acceptance.curve is None or drafts == 0:
        return []
    curve = CURVES[acceptance.curve]
    measured = (curve.draft_sample_method, curve.rejection_sample_method)
    if all(asked in (None, known) for asked, known in zip(sampler, measured, strict=True)):
        return []
    return [
        f"sampler: curve {curve.name} was measured with {' and '.join(measured)} sampling, not with "
        f"{' and '.join(str(part) for part in sampler)}"
    ]
