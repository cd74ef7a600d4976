"""An evaluator that computes its numbers, for tests of the loop. It can be told to fail, to hang and to be noisy."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from search_spaces.candidate import Candidate, candidate_key
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose
from tuner.core.ports import Answers, Generated, Running, Scored, StartRequest, TaskSet
from tuner.core.trial import Failed
from tuner.core.workload import Workload

Speed = Callable[[Candidate, Workload], float]


@dataclass
class FakeEvaluator:
    """speed: tokens per second of a candidate under a workload.   noise: sd of the log of one start's factor.
    fails: candidate key to the failures of its next starts, first first.   wrong: keys whose decode path is broken.
    forgets: candidate key to how many of each task's 200 questions it alone answers wrongly."""

    speed: Speed
    noise: float = 0.0
    seed: int = 0
    origin: Origin = Origin.MEASURED
    fails: dict[str, list[Failed]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    forgets: dict[str, int] = field(default_factory=dict)
    hold: threading.Event | None = None
    starts: list[StartRequest] = field(default_factory=list)
    measured: list[tuple[str, str, int]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def fingerprint(self, gpus: int) -> Fingerprint:
        return Fingerprint(engine="fake", versions={"fake": "1"}, gpu="fake", gpus=gpus)

    @contextlib.contextmanager
    def start(
        self, request: StartRequest, *, started: Callable[[Process, Sequence[str], str], None]
    ) -> Iterator[Running | Failed]:
        with self._lock:
            self.starts.append(request)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            factor = 2.718281828 ** self._random.gauss(0.0, self.noise)
        started(Process(pid=1, started_s=1.0, host="fake"), ("fake", "serve"), "/dev/null")
        try:
            failures = self.fails.get(candidate_key(request.candidate), [])
            yield failures.pop(0) if failures else FakeRunning(self, request, factor)
        finally:
            with self._lock:
                self.running -= 1

    def close(self) -> None:
        self._closed.set()
        if self.hold is not None:
            self.hold.set()


@dataclass
class FakeRunning:
    evaluator: FakeEvaluator
    request: StartRequest
    factor: float
    ready_s: float = 0.0
    log_path: str = "/dev/null"
    command: Sequence[str] = ("fake", "serve")

    @property
    def fingerprint(self) -> Fingerprint:
        return self.evaluator.fingerprint(1)

    @property
    def process(self) -> Process | None:
        return None

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        if self.evaluator.hold is not None:
            self.evaluator.hold.wait(timeout=30)
            if self.evaluator._closed.is_set():
                return Failed(kind=FailureKind.INFRASTRUCTURE, sentence="the engine was stopped")
        key = candidate_key(self.request.candidate)
        self.evaluator.measured.append((key, workload.key, repeat))
        value = self.evaluator.speed(self.request.candidate, workload) * self.factor
        return Measurement(
            start_id=self.request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=self.evaluator.origin,
            metrics={"decode_tokens_per_s_per_user": value, "ttft_p99_ms": 10_000 / value},
            samples={"tpot_ms": [1000 / value], "drafts": [100.0], "acceptance_by_position": [0.8, 0.5, 0.25]},
            seconds=0.001,
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        assert concurrency > 0
        broken = candidate_key(self.request.candidate) in self.evaluator.wrong
        return [
            Generated(
                prompt_ids=tuple(prompt),
                token_ids=tuple(range(7, 7 + max_tokens)),
                logprobs=tuple((-4.0 if broken else -1.0) for _ in range(max_tokens)),
                text="".join(chr(97 + i % 26) for i in range(max_tokens)),
            )
            for prompt in prompts
        ]

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        return [
            Scored(logprobs=tuple(-1.0 for _ in output.token_ids), best=tuple(-1.0 for _ in output.token_ids))
            for output in outputs
        ]

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        forgotten = self.evaluator.forgets.get(candidate_key(self.request.candidate), 0)
        count = asked.limit or 200
        return [
            Answers(
                task=f"{name}: exact_match",
                questions=tuple(range(count)),
                right=tuple(number % 10 > 0 and number >= forgotten for number in range(count)),
            )
            for name in asked.tasks
        ]
