"""Kernel studies from file to table: one study a problem, passes compared, and what no pass was timed for."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kernels.table import Status, from_json, to_json
from search_spaces.gemm import LibraryGemm, SkinnyTile
from search_spaces.vllm_gemm import capability_of, vllm_choice
from tests.fakes import FakeClock, MemoryStudies
from tuner.app.errors import WrongInputError
from tuner.app.tables import studies_of, tuned_table
from tuner.core.decision import DecisionKind
from tuner.core.export import NothingToExportError
from tuner.core.kernel_quality import ERROR
from tuner.core.loop import Loop, Parts
from tuner.core.measurement import Measurement, Origin
from tuner.core.plan import plan
from tuner.core.recorded import METRIC, Recorded, RecordedEvaluator, Recording, key_of
from tuner.core.starts import LEASE_S
from tuner.core.study import Study
from tuner.core.study_file import StudyFileError, parse
from tuner.core.use_cases import open_studies
from tuner.core.workload import GemmProblem

PROBLEM = {"n": 1536, "k": 7168, "m": 1, "name": "mla.g_proj"}
OTHER = {**PROBLEM, "m": 2}
TILES = {"block_size": [64, 128, 224], "outputs_per_block": [2], "k_unroll": [1], "vector_width": [8]}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tiles",
        "model": "moonshotai/Kimi-K3",
        "hardware": {"gpu": "H200"},
        "space": "skinny_gemm",
        "evaluator": "recorded",
        "recording": "r.csv",
        "problems": [PROBLEM],
        "only": TILES,
        "baseline": {"block_size": 128, "outputs_per_block": 2},
        "objective": {"minimize": METRIC},
        "budget": {"trials": 8},
        **changes,
    }


class Passes(RecordedEvaluator):
    """Twelve passes of every tile; measured, with an error of each, where that is asked for."""

    def __init__(self, us: dict[int, float], *, origin: Origin = Origin.RECORDED, error: float | None = 0.5) -> None:
        entries = {}
        for problem in (PROBLEM, OTHER):
            key = GemmProblem(n=1536, k=7168, m=problem["m"]).key  # type: ignore[arg-type]
            tiles = {size: SkinnyTile(block_size=size, outputs_per_block=2).values() for size in us}
            entries[key] = {
                key_of("skinny_gemm", tiles[size]): Recorded(
                    "skinny_gemm", tiles[size], tuple(us[size] * (1 + p / 1000) for p in range(20))
                )
                for size in us
            }
        super().__init__(
            Recording(source="r.csv", entries=entries), gpu="NVIDIA H200", versions={"kernel": "k1", "vllm": "0.33.0"}
        )
        self.origin = origin
        self._error = error

    def start(self, request: Any, **arguments: Any) -> Any:
        manager = super().start(request, **arguments)
        origin, error = self.origin, self._error

        class Told:
            def __enter__(self) -> Any:
                running = manager.__enter__()
                measure = running.measure  # type: ignore[union-attr]

                def told(*args: Any, **kwargs: Any) -> Any:
                    got = measure(*args, **kwargs)
                    if not isinstance(got, Measurement):
                        return got
                    errors = {} if error is None else {ERROR: error}
                    return replace(got, origin=origin, metrics={**got.metrics, **errors})

                running.measure = told  # type: ignore[union-attr,method-assign]
                return running

            def __exit__(self, *args: Any) -> Any:
                return manager.__exit__(*args)

        return Told()


class Bench:
    def __init__(self, file: Any) -> None:
        self.clock = FakeClock()
        self.studies = MemoryStudies(self.clock)
        self.opened = open_studies(parse(file), self.studies, self.clock)

    def run(self, evaluator: Passes) -> "Bench":
        for study in self.opened:
            evaluator._starts.clear()
            lease = self.studies.claim("test", ttl_s=LEASE_S, study_id=study.id)
            assert lease is not None
            parts = Parts(studies=self.studies, evaluator=evaluator, clock=self.clock, reap=lambda _: False)
            Loop(study, lease, parts).run()
        return self

    def decision(self, study: Study | None = None) -> Any:
        (confirmation,) = self.studies.confirmations((study or self.opened[0]).id)
        assert confirmation.decision is not None
        return confirmation.decision


FAST = {64: 9.0, 128: 10.0, 224: 11.0}


def test_a_file_with_several_problems_opens_a_study_for_each_under_one_group() -> None:
    bench = Bench(document(problems=[PROBLEM, OTHER]))
    assert [study.file.workloads[0].key for study in bench.opened] == ["1536x7168-m1-bfloat16", "1536x7168-m2-bfloat16"]
    assert len({study.group for study in bench.opened}) == 1
    assert {s.id for s in studies_of(bench.studies, bench.opened[0].group or "")} == {s.id for s in bench.opened}


def test_a_recorded_study_computes_its_confirmation_and_is_never_validated() -> None:
    decision = Bench(document()).run(Passes(FAST)).decision()
    assert decision.kind is DecisionKind.NOT_MEASURED
    assert decision.estimate == pytest.approx(10 / 9 - 1)
    (compared,) = decision.comparisons
    assert compared.gain == pytest.approx(10 / 9 - 1, abs=0.01)
    assert len(compared.ratios) == 5


def test_a_recording_with_too_few_passes_ends_without_a_comparison_and_not_measured() -> None:
    evaluator = Passes(FAST)
    short = {
        key: {k: replace(r, us=r.us[:2]) for k, r in entries.items()}
        for key, entries in evaluator._recording.entries.items()
    }
    evaluator._recording = replace(evaluator._recording, entries=short)
    decision = Bench(document()).run(evaluator).decision()
    assert decision.kind is DecisionKind.NOT_MEASURED
    assert decision.comparisons == ()


def test_a_measured_tile_that_is_faster_in_every_pass_is_validated_and_exported_with_its_evidence() -> None:
    bench = Bench(document(evaluator="kernel")).run(Passes(FAST, origin=Origin.MEASURED))
    assert bench.decision().kind is DecisionKind.VALIDATED
    table = from_json(to_json(tuned_table(bench.studies, bench.opened)))
    assert (table.status, table.capability, table.kernel_version) == (Status.VALIDATED, "9.0", "k1")
    (entry,) = table.entries
    assert entry.tile == SkinnyTile(block_size=64, outputs_per_block=2)
    assert entry.baseline == SkinnyTile(block_size=128, outputs_per_block=2)
    assert entry.evidence is not None
    assert entry.evidence.passes == 5
    assert entry.evidence.us == pytest.approx(9.0, rel=0.02)


@pytest.mark.parametrize("error", [None, 1.5])
def test_a_tile_whose_error_is_too_large_or_unknown_is_not_validated(error: float | None) -> None:
    bench = Bench(document(evaluator="kernel")).run(Passes(FAST, origin=Origin.MEASURED, error=error))
    assert bench.decision().kind is DecisionKind.NO_VALIDATED_IMPROVEMENT


def test_a_table_of_recorded_studies_is_refused_or_says_that_nothing_was_measured() -> None:
    bench = Bench(document()).run(Passes(FAST))
    with pytest.raises(NothingToExportError, match="no tile of 1 studies was validated"):
        tuned_table(bench.studies, bench.opened)
    table = json.loads(to_json(tuned_table(bench.studies, bench.opened, allow_unvalidated=True)))
    assert table["status"] == "not_measured"
    assert table["tiles"][0]["evidence"] is None


def test_a_study_of_an_engine_is_no_table() -> None:
    served = parse(
        {k: v for k, v in document(evaluator="vllm").items() if k not in ("problems", "only", "baseline", "recording")}
        | {"space": {"knobs": {"max_num_seqs": [1, 2]}}, "workload": {"input_tokens": 1, "output_tokens": 1}}
        | {"objective": {"maximize": "decode_tokens_per_s_per_user"}}
    )
    studies = MemoryStudies(FakeClock())
    study = Study(id="s", name="s", file=served, file_key="k", created_at=datetime(2026, 12, 1, tzinfo=UTC))
    with pytest.raises(WrongInputError, match="is of no kernel"):
        tuned_table(studies, [study])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluator": "predicted"}, "timed by kernel or recorded"),
        ({"hardware": {"gpu": "H200", "gpus": 2}}, "runs on 1 GPU"),
        ({"recording": None}, "needs the file of measurements"),
    ],
)
def test_a_kernel_study_that_makes_no_sense_is_refused_by_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyFileError, match=words):
        parse(document(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": "dense_serving"}, "searched over the space 'skinny_gemm'"),
        ({"rules": ["block_size < 8"]}, "are its own"),
        ({"baseline": {"backend": "magic"}}, "cublas or dsv3_fused_a"),
    ],
)
def test_a_kernel_study_over_another_space_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(parse(document(**changes)))


def test_the_baseline_is_what_vllm_runs_on_that_gpu() -> None:
    assert capability_of("NVIDIA GB300") == "10.3"
    assert capability_of("cpu") is None
    assert vllm_choice("NVIDIA H200", 1536, 7168, 1) == SkinnyTile(block_size=224, outputs_per_block=2, k_unroll=4)
    assert vllm_choice("H200", 2304, 1536, 3) == LibraryGemm(backend="dsv3_fused_a")
    assert vllm_choice("H200", 7168, 4224, 4) == LibraryGemm()
    file = document(baseline={})
    (contest,) = plan(parse(file)).contests
    assert contest.baseline == vllm_choice("H200", 1536, 7168, 1)
