"""Recordings: what a file says comes back, pass by pass, and never as a measurement of now."""

import gzip
import json
from pathlib import Path

import pytest

from search_spaces.gemm import LibraryGemm, SkinnyTile
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import StartRequest
from tuner.core.recorded import METRIC, Recorded, RecordedEvaluator, Recording, RecordingError, load, write
from tuner.core.trial import Failed
from tuner.core.workload import GemmProblem

SWEEP = Path(__file__).parents[3] / "kernels/data/h200_skinny_gemm_sweep.csv.gz"
PROBLEM = GemmProblem(n=64, k=128, m=2)
TILE = SkinnyTile(block_size=32, outputs_per_block=2)
LONG = "n,k,m,block_size,outputs_per_block,k_unroll,vector_width,pass,kernel_us,failed\n"


def replay(evaluator: RecordedEvaluator, candidate: SkinnyTile | LibraryGemm, repeat: int = 0) -> Measurement | Failed:
    request = StartRequest(start_id="s", candidate=candidate, purpose=Purpose.SEARCH, workloads=(PROBLEM,))
    with evaluator.start(request, started=lambda *_: None) as running:
        assert not isinstance(running, Failed)
        return running.measure(PROBLEM, purpose=Purpose.SEARCH, repeat=repeat)


def recording(folder: Path, text: str, name: str = "r.csv") -> Recording:
    path = folder / name
    path.write_text(text)
    return load(path)


def test_the_shipped_sweep_keeps_every_timing_of_every_tile() -> None:
    sweep = load(SWEEP)
    entries = [entry for problem in sweep.entries.values() for entry in problem.values()]
    assert len(sweep.entries) == 96
    assert len(entries) == 11_568
    assert {len(entry.us) for entry in entries} == {2, 3}
    first = sweep.of(GemmProblem(n=1536, k=7168, m=1))
    tile = SkinnyTile(block_size=32, outputs_per_block=1, k_unroll=1, vector_width=4)
    assert [entry.us for entry in first.values() if entry.values == tile.values()] == [(25.912, 26.116, 25.468)]


def test_each_start_of_a_candidate_replays_its_next_pass_and_then_there_are_no_more(tmp_path: Path) -> None:
    evaluator = RecordedEvaluator(recording(tmp_path, LONG + "64,128,2,32,2,1,8,1,5.0,\n64,128,2,32,2,1,8,2,5.5,\n"))
    got = [replay(evaluator, TILE) for _ in range(2)]
    assert [m.metrics[METRIC] for m in got if isinstance(m, Measurement)] == [5.0, 5.5]
    assert {m.origin for m in got if isinstance(m, Measurement)} == {Origin.RECORDED}
    third = replay(evaluator, TILE)
    assert isinstance(third, Failed)
    assert "2 passes" in third.sentence


def test_passes_may_stand_in_any_order(tmp_path: Path) -> None:
    text = LONG + "64,128,2,32,2,1,8,2,5.5,\n64,128,2,32,2,1,8,1,5.0,\n"
    (entry,) = recording(tmp_path, text).of(PROBLEM).values()
    assert entry.us == (5.0, 5.5)
    assert entry.mean_us == 5.25


def test_a_recorded_failure_is_replayed_as_that_failure(tmp_path: Path) -> None:
    evaluator = RecordedEvaluator(recording(tmp_path, LONG + "64,128,2,32,2,1,8,1,,wrong_output\n"))
    got = replay(evaluator, TILE)
    assert isinstance(got, Failed)
    assert got.kind is FailureKind.WRONG_OUTPUT


def test_a_candidate_that_was_not_recorded_is_no_number(tmp_path: Path) -> None:
    evaluator = RecordedEvaluator(recording(tmp_path, LONG + "64,128,2,32,2,1,8,1,5.0,\n"))
    assert isinstance(replay(evaluator, LibraryGemm()), Failed)


def test_a_second_run_in_one_start_is_not_invented(tmp_path: Path) -> None:
    evaluator = RecordedEvaluator(recording(tmp_path, LONG + "64,128,2,32,2,1,8,1,5.0,\n"))
    assert isinstance(replay(evaluator, TILE, repeat=1), Failed)


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    rows = [
        (PROBLEM, Recorded("skinny_gemm", TILE.values(), (5.0, 5.25))),
        (PROBLEM, Recorded("library_gemm", {"backend": "cublas"}, (6.5,))),
        (GemmProblem(n=8, k=8, m=1, dtype="float16"), Recorded("skinny_gemm", {"x": True}, (), FailureKind.HUNG)),
    ]
    write(tmp_path / name, rows)
    again = load(tmp_path / name)
    found = [(key, entry) for key, entries in again.entries.items() for entry in entries.values()]
    assert found == [(problem.key, recorded) for problem, recorded in rows]
    assert (gzip.decompress if name.endswith(".gz") else bytes)((tmp_path / name).read_bytes()).count(b"\n") == 5


def test_a_cache_of_kernel_tuner_is_read_in_microseconds(tmp_path: Path) -> None:
    cache = {
        "device_name": "H200", "kernel_name": "gemm", "problem_size": [64],
        "tune_params_keys": ["block_size", "unroll"],
        "tune_params": {"block_size": [32, 64], "unroll": [1]}, "objective": "time",
        "cache": {
            "32,1": {"block_size": 32, "unroll": 1, "time": 0.005, "times": [0.004, 0.006]},
            "64,1": {"block_size": 64, "unroll": 1, "time": "CompilationFailedConfig"},
            "96,1": {"block_size": 96, "unroll": 1, "__error__": "RuntimeFailedConfig"},
        },
    }  # fmt: skip
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(cache))
    first, second, third = load(path, problem=PROBLEM).of(PROBLEM).values()
    assert first.us == pytest.approx((4.0, 6.0))
    assert second.failed is FailureKind.REJECTED_BY_ENGINE
    assert third.failed is FailureKind.CRASHED
    with pytest.raises(RecordingError, match="which problem"):
        load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "needs the columns"),
        (LONG + "64,128,2,32,2,1,8,1,fast,\n", "line 2"),
        (LONG + "64,128,2,32,2,1,8,1,0,\n", "no time"),
        (LONG + "64,128,2,32,2,1,8,1,nan,\n", "no time"),
        (LONG + "64,128,2,32,2,1,8,1,,\n", "line 2"),
        (LONG + "64,128,2,32,2,1,8,1,5,\n64,128,2,32,2,1,8,1,6,\n", "line 3: pass 1"),
        (LONG + "64,128,2,32,2,1,8,1,,slow\n", "slow"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        recording(tmp_path, text)


@pytest.mark.parametrize("name", ["absent.csv", "broken.csv.gz", "broken.json"])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    if name != "absent.csv":
        (tmp_path / name).write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(RecordingError, match=name):
        load(tmp_path / name, problem=PROBLEM)
