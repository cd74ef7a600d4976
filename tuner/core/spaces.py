"""The space that a study file means: a built-in or an inline one, extended, pinned and narrowed."""

from search_spaces.catalog import build
from search_spaces.gemm import SKINNY, LibraryGemm, SkinnyTile, skinny_space
from search_spaces.setting import Setting
from search_spaces.space import Space, SpaceError
from search_spaces.user_space import extended, inline
from search_spaces.vllm_gemm import vllm_choice
from tuner.core.acceptance import CURVES
from tuner.core.study_file import InlineSpace, StudyFile
from tuner.core.workload import ServingWorkload

VLLM_VERSION = "0.33.0"  # assumed where neither the study file nor the engine names one


def space_of(file: StudyFile) -> Space:
    """Raises SpaceError naming the key and the reason."""
    if file.problems:
        return _kernel_space(file)
    if isinstance(file.space, InlineSpace):
        space = inline(file.space.name, file.space.knobs, file.space.rules, file.space.baseline)
    else:
        space = build(file.space, setting_of(file))
    return extended(space, file.knobs, file.rules).narrowed(fix=file.fix, only=file.only)


def _kernel_space(file: StudyFile) -> Space:
    """Of the file's one problem. The baseline is what vLLM runs, unless the file names what is run today."""
    if file.space != SKINNY:
        raise SpaceError(f"space: `problems` are searched over the space {SKINNY!r}, not {file.space!r}")
    if file.knobs or file.rules:
        raise SpaceError("knobs, rules: the tiles of a kernel are its own; `only` and `fix` narrow them")
    if len(file.problems) > 1:
        raise SpaceError("problems: each is a study of its own")
    (problem,) = file.problems
    baseline: SkinnyTile | LibraryGemm = vllm_choice(file.hardware.gpu, problem.n, problem.k, problem.m)
    if file.baseline:
        kind = LibraryGemm if "backend" in file.baseline else SkinnyTile
        try:
            baseline = kind.from_values(file.baseline)
        except (ValueError, TypeError) as error:
            raise SpaceError(f"baseline: {error}") from error
    space = skinny_space(problem.n, problem.k, problem.m, baseline=baseline)
    return space.narrowed(fix=file.fix, only=file.only)


def setting_of(file: StudyFile) -> Setting:
    serving = [workload for workload in file.workloads if isinstance(workload, ServingWorkload)]
    curves = {workload.acceptance.curve for workload in serving} - {None}
    samplers = {f"{CURVES[c].draft_sample_method}/{CURVES[c].rejection_sample_method}" for c in curves if c is not None}
    return Setting(
        model=file.model,
        gpu=file.hardware.gpu,
        gpus=file.hardware.gpus,
        gpus_per_node=file.hardware.gpus_per_node,
        max_model_len=max((workload.max_model_len for workload in serving), default=1),
        max_concurrency=max((workload.concurrency for workload in serving), default=1),
        vllm_version=file.engine.version or VLLM_VERSION,
        draft_models=file.engine.draft_models,
        draft_sampling=samplers.pop() if len(samplers) == 1 else None,
    )
