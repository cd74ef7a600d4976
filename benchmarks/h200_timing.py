"""Time a plan's tiles on the GPU: one worker searches, then each pass is a worker of its own.

In a pass, baseline and finalists of a problem follow one another in a drawn order. A pass is a start: passes are
compared, not runs within one. How many there are is fixed by the time that the search left, before the first of them.
Every timing is a line of the output as soon as it is known, and a second call goes on after the last one.
"""

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200_plan import CUBLAS, Candidate, candidate_of, document_of, problem_of
from kernels.evaluator import KernelEvaluator, WorkerKind
from search_spaces.decode_gemm import DecodeTile
from search_spaces.gemm import SkinnyTile
from tuner.core.measurement import Measurement, Purpose
from tuner.core.ports import StartRequest
from tuner.core.recorded import METRIC
from tuner.core.trial import Failed

# Finalists a group and passes, the first that the time allows. The groups are vLLM's kernel and ours with and without
# the early start, so there are up to six finalists, or three: six passes reach p < 0.05 for three, seven for six.
LEAST_PASSES = 5
AFFORDED = ((2, 8), (2, 7), (1, 8), (1, 7), (1, 6))
WORTH_CONFIRMING = 1.005  # times faster in the search; less could hardly be shown
WORKER_S = 8.0  # allowed for a worker's start

Line = dict[str, Any]


class Log:
    """Lines of JSON; what an earlier call wrote is there at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = read_lines(path.read_text()) if path.exists() else []
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))  # what was cut off is gone

    def add(self, line: Line) -> None:
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["line"] == kind]


def absolute(text: str) -> Path:
    """Workers run in another folder. Symbolic links stay, since an interpreter is known by its path."""
    return Path(text).absolute()


def one_environment(lines: Sequence[Line]) -> Line | None:
    """What the timings were made on; None where they do not say. Raises SystemExit where it is not one machine."""
    found = [line for line in lines if line.get("line") == "environment"]
    if any(line != found[0] for line in found):
        raise SystemExit("the timings are not of one machine and one set of versions")
    return found[0] if found else None


def geometric_mean(ratios: Iterable[float]) -> float | None:
    found = list(ratios)
    return statistics.geometric_mean(found) if found else None


def read_lines(text: str) -> list[Line]:
    """Without a last line that was cut off."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def time_all(arguments: argparse.Namespace) -> None:
    document = json.loads(arguments.plan.read_text())
    plan = document["problems"]
    if arguments.problems:
        plan = plan[:: max(1, len(plan) // arguments.problems)]
    log, kind, begun = Log(arguments.output), worker_kind(arguments), time.monotonic()

    def left_s() -> float:
        return float(arguments.seconds) - (time.monotonic() - begun)

    def left_to_search_s() -> float:
        return min(left_s(), float(arguments.search_seconds) - (time.monotonic() - begun))

    search(plan, log, kind, left_to_search_s, about={name: document[name] for name in ("vllm", "kernel", "capability")})
    print(f"search: {time.monotonic() - begun:.0f} s", counts(log.of("search")), flush=True)
    if left_s() <= 0:
        return
    if not log.of("passes"):
        most, passes = afforded(log.of("search"), left_s())
        log.add({"line": "passes", "passes": arguments.passes or passes, "finalists": most})
    planned = log.of("passes")[0]
    number_of_passes = planned["passes"]
    contests = contests_of(log.of("search"), planned["finalists"])
    print(f"{len(contests)} problems to confirm in {number_of_passes} passes", flush=True)
    for number in range(number_of_passes):
        done = {problem_of(line).key for line in log.of("pass") if line["pass"] == number}
        if done and len(done) < len(contests):
            print(f"pass {number} ended early, and another process would be another pass", flush=True)
        if not done and not one_pass(number, contests, log, kind, left_s):
            print(f"out of time in pass {number}; the same command goes on with the next", flush=True)
            return
        print(f"pass {number}: {time.monotonic() - begun:.0f} s", flush=True)


def worker_kind(arguments: argparse.Namespace) -> WorkerKind:
    from tuner.engines.engine import Engine
    from tuner.engines.helper import AnswerError, Helper, HelperError

    engine = Engine(python=arguments.engine, path=tuple(arguments.path), environment={})
    options = {"target": arguments.target, "device": arguments.device}
    if arguments.vllm:
        options["vllm"] = str(arguments.vllm)
    if arguments.library:
        options |= {"library": str(arguments.library), "runtime": str(arguments.runtime)}
    folder = arguments.output.parent / "workers"
    return WorkerKind(
        make=lambda: Helper(engine, "tuner_inside.kernel_worker", folder, first_answer_s=120),
        gone=HelperError,
        raised=AnswerError,
        options=options,
    )


def search(
    plan: Sequence[Line], log: Log, kind: WorkerKind, left_s: Callable[[], float], *, about: Mapping[str, str]
) -> None:
    done = {problem_of(line).key for line in log.of("search")}
    with Worker(kind) as evaluator:
        made = evaluator.fingerprint(1)
        environment = {"gpu": made.gpu, "driver": made.driver, "versions": dict(made.versions), "plan": dict(about)}
        log.add({"line": "environment", **environment})
        print(environment, flush=True)
        for row in plan:
            if problem_of(row).key in done:
                continue
            if left_s() <= 0:
                print("out of time in the search; what it did not reach is not confirmed", flush=True)
                return
            begun = time.monotonic()
            candidates = [CUBLAS, *map(candidate_of, row["candidates"])]
            timings = [timed(evaluator, row, candidate, "search") for candidate in candidates]
            log.add({"line": "search", **row, "timings": timings, "seconds": round(time.monotonic() - begun, 3)})


def contests_of(searched: Sequence[Line], most: int) -> list[tuple[Line, list[Candidate]]]:
    return [(row, chosen) for row in searched if (chosen := finalists(row, most))]


def finalists(row: Line, most: int) -> list[Candidate]:
    """The baseline and each group's fastest tiles of the search, or nothing where none is worth a confirmation.
    most: of a group."""
    us = {candidate_of(t["candidate"]): t["us"] for t in row["timings"] if "us" in t}
    baseline = baseline_of(row)
    if baseline not in us:
        return []
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for tile in sorted(us, key=us.__getitem__):
        if tile not in (baseline, CUBLAS) and us[tile] * WORTH_CONFIRMING <= us[baseline]:
            groups[group_of(tile)].append(tile)
    worth = [tile for group in groups.values() for tile in group[:most]]
    return [baseline, *worth] if worth else []


def group_of(candidate: Candidate) -> str:
    """Tiles of one group stand for one another; the early start is flattered here (NOTES of h200_decide.py)."""
    if isinstance(candidate, DecodeTile):
        return "decode_early" if candidate.early else "decode_late"
    return candidate.kind


def baseline_of(row: Line) -> Candidate:
    """What vLLM runs; cuBLAS where that is `dsv3_fused_a`, which needs vLLM's compiled extension."""
    stock = candidate_of(row["stock"])
    return stock if isinstance(stock, SkinnyTile) else CUBLAS


def afforded(searched: Sequence[Line], left_s: float) -> tuple[int, int]:
    """Finalists a group and passes that the time allows, by what a timing took in the search; else the least."""
    each_s = sum(row["seconds"] for row in searched) / sum(len(row["timings"]) for row in searched)
    for most, passes in AFFORDED:
        timings = sum(len(chosen) for _, chosen in contests_of(searched, most))
        if passes * (WORKER_S + each_s * timings) <= left_s:
            return most, passes
    return AFFORDED[-1]


def one_pass(
    number: int,
    contests: Sequence[tuple[Line, list[Candidate]]],
    log: Log,
    kind: WorkerKind,
    left_s: Callable[[], float],
) -> bool:
    """False where the time did not suffice for all of it."""
    draw = random.Random(number)
    with Worker(kind) as evaluator:
        for row, chosen in draw.sample(contests, len(contests)):
            if left_s() <= 0:
                return False
            timings = [timed(evaluator, row, c, f"pass {number}") for c in draw.sample(chosen, len(chosen))]
            log.add({"line": "pass", "pass": number, "problem": row["problem"], "timings": timings})
    return True


def timed(evaluator: KernelEvaluator, row: Line, candidate: Candidate, purpose: str) -> Line:
    problem = problem_of(row)
    request = StartRequest(start_id=purpose, candidate=candidate, purpose=Purpose.SEARCH, workloads=(problem,))
    with evaluator.start(request, started=lambda *_: None) as running:
        got = running if isinstance(running, Failed) else running.measure(problem, purpose=Purpose.SEARCH, repeat=0)
    if isinstance(got, Measurement):
        samples = [round(us, 4) for us in got.samples[METRIC]]
        return {"candidate": document_of(candidate), "us": statistics.median(samples), "samples": samples}
    return {"candidate": document_of(candidate), "failed": got.kind.value, "sentence": got.sentence[:300]}


class Worker:
    """A new worker process, gone at the end."""

    def __init__(self, kind: WorkerKind) -> None:
        self._evaluator = KernelEvaluator(kind, timeout_s=60)

    def __enter__(self) -> KernelEvaluator:
        return self._evaluator

    def __exit__(self, *_: object) -> None:
        self._evaluator.close()


def counts(rows: Sequence[Line]) -> dict[str, int]:
    def names() -> Iterator[str]:
        for row in rows:
            for timing in row["timings"]:
                yield timing.get("failed", "timed")

    found: dict[str, int] = {}
    for name in names():
        found[name] = found.get(name, 0) + 1
    return found
