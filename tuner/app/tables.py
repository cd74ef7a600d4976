"""Kernel studies as one tuned tile table: each validated tile with its evidence, or a table that says it has none."""

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime

from kernels.table import Entry, Evidence, Status, TunedTable
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.vllm_gemm import VLLM_VERSION, capability_of
from tuner.app.errors import WrongInputError
from tuner.core.decision import Confirmation, Decision, DecisionKind
from tuner.core.export import NothingToExportError
from tuner.core.measurement import Fingerprint, Purpose
from tuner.core.ports import Studies
from tuner.core.recorded import METRIC
from tuner.core.study import Study
from tuner.core.workload import GemmProblem


def studies_of(studies: Studies, text: str) -> Sequence[Study]:
    """Those of a group, or the one study whose id begins so. Raises UnknownStudyError."""
    from tuner.core.use_cases import resolve

    return studies.group(text) or [studies.get(resolve(studies, text))]


def tuned_table(studies: Studies, found: Sequence[Study], *, allow_unvalidated: bool = False) -> TunedTable:
    """Of studies of kernels on one GPU.

    allow_unvalidated: where no tile was validated, the searches' best tiles, marked `not_measured`; vLLM's plug-in
    takes no such table.

    Raises:
        NothingToExportError: no tile was validated, and unvalidated ones were not asked for.
        WrongInputError: a study is of no kernel, or the studies were measured on different machines.
    """
    for study in found:
        if not study.file.problems:
            raise WrongInputError(f"--format table: study {study.id} is of no kernel; export it as vllm, cli or json")
    decided = [
        (study, confirmation, confirmation.decision)
        for study in found
        for confirmation in studies.confirmations(study.id)
        if confirmation.decision is not None
    ]
    validated = [item for item in decided if item[2].kind is DecisionKind.VALIDATED]
    chosen = validated or (decided if allow_unvalidated else [])
    made = [entry for item in chosen if (entry := _entry(studies, *item, measured=bool(validated))) is not None]
    if not made:
        sentence = decided[0][2].sentence if decided else "nothing is decided yet"
        raise NothingToExportError(f"no tile of {len(found)} studies was validated; the first: {sentence}")
    print_ = _fingerprint(studies, [study for study, *_ in validated])
    gpu = print_.gpu if print_ is not None else found[0].file.hardware.gpu
    capability = capability_of(gpu)
    if capability is None:
        raise WrongInputError(f"hardware.gpu: vLLM has no tile table for {gpu}")
    versions = dict(print_.versions) if print_ is not None else {}
    return TunedTable(
        gpu=gpu,
        capability=capability,
        driver=print_.driver if print_ is not None else "",
        vllm_version=versions.pop("vllm", "") or found[0].file.engine.version or VLLM_VERSION,
        kernel_version=versions.pop("kernel", ""),
        versions=versions,
        status=Status.VALIDATED if validated else Status.NOT_MEASURED,
        date=datetime.now(UTC).date().isoformat(),
        entries=tuple(made),
    )


def _entry(
    studies: Studies, study: Study, confirmation: Confirmation, decision: Decision, *, measured: bool
) -> Entry | None:
    """None where the winner is no tile, vLLM's own kernel or library among them."""
    (problem,) = study.file.workloads
    candidates = {trial.key: trial.candidate for trial in studies.trials(study.id)}
    tile, baseline = candidates.get(decision.winner_key or ""), candidates[decision.baseline_key]
    if not isinstance(problem, GemmProblem) or not isinstance(tile, SkinnyTile) or tile == baseline:
        return None
    if not isinstance(baseline, SkinnyTile | LibraryGemm):
        return None
    evidence = _evidence(studies, study, confirmation, decision) if measured else None
    return Entry(problem=problem, tile=tile, baseline=baseline, evidence=evidence)


def _evidence(studies: Studies, study: Study, confirmation: Confirmation, decision: Decision) -> Evidence:
    compared = next(c for c in decision.comparisons if c.candidate_key == decision.winner_key)
    owner = {start.id: start.candidate_key for start in studies.starts(study.id)}
    runs = studies.measurements(study.id, purpose=Purpose.CONFIRM)

    def median_us(key: str) -> float:
        return statistics.median(run.metrics[METRIC] for run in runs if owner.get(run.start_id) == key)

    return Evidence(
        gain=compared.gain,
        lower=compared.lower,
        p=compared.p,
        passes=len(compared.ratios),
        us=median_us(compared.candidate_key),
        baseline_us=median_us(confirmation.baseline_key),
    )


def _fingerprint(studies: Studies, found: Sequence[Study]) -> Fingerprint | None:
    """Raises WrongInputError where they were not all measured on one GPU with one set of versions."""
    prints = [
        start.fingerprint
        for study in found
        for start in studies.starts(study.id)
        if start.purpose is Purpose.CONFIRM and start.ended == "stopped"
    ]
    for other in prints[1:]:
        if (other.gpu, other.driver, other.versions) != (prints[0].gpu, prints[0].driver, prints[0].versions):
            raise WrongInputError(
                "the studies were measured on different machines or versions: export each group alone"
            )
    return prints[0] if prints else None
