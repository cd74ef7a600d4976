"""A server that is ready: run traffic on it, generate on its decode path, score on its prefill path."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from search_spaces.serving import ServingConfig
from tuner.core import vllm_args
from tuner.core.datasets import DatasetError
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose, finite
from tuner.core.ports import Answers, Generated, Scored, StartRequest, TaskSet
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload
from tuner.engines import gauges, path_proof, sending, traffic
from tuner.engines.engine import Deadlines
from tuner.engines.helper import AnswerError, Helper, HelperDiedError, NoAnswerError
from tuner.engines.server import Server
from tuner.engines.tasks import At, Tasks

Question = TypeVar("Question")
Answer = TypeVar("Answer")

# Of random prompts in the prefix cache; more means that prompts were seen before. The benchmark's random prompts are
# runs of consecutive token ids, so a vocabulary of 2,048 gives 2,048 prompts: 10 % hits after 60 of them (2026-12-01).
HIT_SHARE_AT_MOST = 0.05
_MOVING = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count")


@dataclass(frozen=True, slots=True)
class _Run:
    """What one run of traffic yields, before it is told what it was for."""

    metrics: dict[str, float]
    missing: dict[str, str]
    samples: dict[str, list[float]]
    seconds: float


@dataclass(kw_only=True)
class RunningServer:
    """Implements `Running`. stopped: whether the evaluator was closed; what fails then is no fault of it."""

    server: Server
    bench: Helper
    model: vllm_args.ModelRef
    request: StartRequest
    fingerprint: Fingerprint
    ready_s: float
    deadlines: Deadlines
    gauges: gauges.Gauges
    stopped: Callable[[], bool]
    tasks: Tasks | None = None
    _warm: set[ServingWorkload] = field(default_factory=set, init=False)

    @property
    def process(self) -> Process | None:
        return self.server.guarded.process

    @property
    def command(self) -> Sequence[str]:
        return self.server.command

    @property
    def log_path(self) -> str:
        return str(self.server.log)

    def measure(self, workload: Workload, *, purpose: Purpose, repeat: int) -> Measurement | Failed:
        if not isinstance(workload, ServingWorkload):
            return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=f"a server cannot run a {workload.kind} problem")
        if self.stopped():
            return self._failed("")
        if workload not in self._warm:
            warmed = self._traffic(traffic.warm_up(workload), f"warm-up {repeat}")
            if isinstance(warmed, Failed):
                return warmed
            self._warm.add(workload)
        run = self._measured(workload, f"repeat {repeat}")
        if isinstance(run, traffic.Incomplete) and run.again:
            run = self._measured(workload, f"repeat {repeat} again")
        if isinstance(run, traffic.Incomplete):
            return self._failed(run.sentence, otherwise=run.kind)
        if isinstance(run, Failed):
            return run
        return Measurement(
            start_id=self.request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.MEASURED,
            metrics=run.metrics,
            missing=run.missing,
            samples=run.samples,
            seconds=run.seconds,
        )

    def _measured(self, workload: ServingWorkload, name: str) -> _Run | traffic.Incomplete | Failed:
        """One run of traffic, with what the engine's counters and the machine's gauges say of it."""
        paths = path_proof.read(self.server.log.parent / path_proof.FOLDER)
        counted, used = self.server.counters(), gauges.cpu_seconds(self.server.guarded.members())
        began_s = time.monotonic()
        result = self._traffic(workload, name)
        ended_s = time.monotonic()
        if isinstance(result, Failed):
            return result
        cpu_s = gauges.cpu_used(used, gauges.cpu_seconds(self.server.guarded.members()))
        after = self.server.counters()
        hits = hit_share(counted, after)
        requests = traffic.requests_of(result, workload, dummy_weights=self.model.extra.get("load-format") == "dummy")
        if isinstance(requests, traffic.Incomplete):
            return requests
        if workload.dataset.is_random and hits is not None and hits > HIT_SHARE_AT_MOST:
            return traffic.Incomplete(
                FailureKind.WRONG_OUTPUT,
                f"{hits:.0%} of the random prompt tokens came from the prefix cache: they were seen before"
                " (engine.options: {enable-prefix-caching: false} turns it off)",
            )
        config = self.request.candidate
        assert isinstance(config, ServingConfig)
        found = traffic.metrics(requests, workload, gpus=config.gpus)
        accepted, drafted = traffic.speculation({**traffic.drafted(counted, after), **result})
        read, readings = self.gauges.between(began_s, ended_s)
        share: dict[str, float | None] = {"prefix_cache_hit_share": hits} if hits is not None else {}
        if workload.dataset.is_trace:
            share["repeated_prompt_share"] = sending.repeated_share(sending.turns(workload))
        steps = path_proof.worst(paths, path_proof.read(self.server.log.parent / path_proof.FOLDER))
        if steps is not None and steps.share is not None:
            share["specialized_share"] = steps.share
        metrics, missing = finite({**found, **accepted, **read, **share})
        samples = {**requests.samples(), **drafted, **readings, "server_cpu_s": [cpu_s]}
        return _Run(metrics, missing, samples, float(result.get("duration") or 0.0))

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> Sequence[Generated] | Failed:
        def one(prompt: Sequence[int]) -> Generated:
            choice = self._complete(
                prompt=list(prompt), max_tokens=max_tokens, logprobs=1, return_token_ids=True, ignore_eos=True
            )
            return Generated(
                prompt_ids=tuple(prompt),
                token_ids=tuple(int(token) for token in choice["token_ids"]),
                logprobs=tuple(_number(value) for value in choice["logprobs"]["token_logprobs"]),
                text=str(choice["text"]),
            )

        return self._all(one, prompts, concurrency)

    def score(self, outputs: Sequence[Generated]) -> Sequence[Scored] | Failed:
        def one(output: Generated) -> Scored:
            ids = [*output.prompt_ids, *output.token_ids]
            choice = self._complete(prompt=ids, max_tokens=1, prompt_logprobs=1)
            places = choice["prompt_logprobs"][len(output.prompt_ids) :]
            own = [_number(place[str(token)]["logprob"]) for place, token in zip(places, output.token_ids, strict=True)]
            best = [max(_number(entry["logprob"]) for entry in place.values()) for place in places]
            return Scored(logprobs=tuple(own), best=tuple(best))

        return self._all(one, outputs, 1)

    def answer(self, asked: TaskSet) -> Sequence[Answers] | Failed:
        if self.tasks is None:
            return self._failed("the study named no lm-eval", otherwise=FailureKind.INFRASTRUCTURE)
        watch = Standstill(self.server.counters, self.deadlines.request_s)
        try:
            return self.tasks.answers(At(base_url=self.server.base_url, model=self.server.name), asked, watch.sentence)
        except (AnswerError, HelperDiedError, NoAnswerError) as error:
            return self._no_answer(error, watch, "lm-eval")

    def _all(
        self, ask: Callable[[Question], Answer], questions: Sequence[Question], concurrency: int
    ) -> Sequence[Answer] | Failed:
        try:
            with ThreadPoolExecutor(max_workers=concurrency) as pool:
                return list(pool.map(ask, questions))
        except httpx.TimeoutException as error:
            return self._failed(f"a completion took too long: {error}", otherwise=FailureKind.HUNG)
        except (httpx.HTTPError, KeyError, ValueError, TypeError, IndexError) as error:
            return self._failed(f"a completion gave no usable answer: {type(error).__name__}: {error}")

    def _complete(self, **body: object) -> Any:
        answer = self.server.http.post(
            "/v1/completions",
            json={"model": self.server.name, "temperature": 0, "seed": 0, **body},
            timeout=self.deadlines.request_s,
        )
        answer.raise_for_status()
        return answer.json()["choices"][0]

    def _traffic(self, workload: ServingWorkload, run: str) -> Mapping[str, Any] | Failed:
        """The benchmark's own result of one run of traffic. run: names it among the start's runs of that workload."""
        watch = Standstill(self.server.counters, self.deadlines.request_s + _quiet_s(workload))
        try:
            self.bench.ask({}, timeout_s=self.deadlines.request_s)  # its imports are no part of the run
            question, further = self._question(workload, run)
            watch.begin()
            timeout_s = self.deadlines.run_s + (question["replay"]["turns"][-1]["at_s"] if "replay" in question else 0)
            result: dict[str, Any] = self.bench.ask(question, timeout_s=timeout_s, give_up=watch.sentence)
            return {**result, **further}
        except DatasetError as error:
            return self._failed(f"workload.dataset: {error}", otherwise=FailureKind.INFRASTRUCTURE)
        except (AnswerError, HelperDiedError, NoAnswerError) as error:
            return self._no_answer(error, watch, "the benchmark")

    def _no_answer(self, error: AnswerError | HelperDiedError | NoAnswerError, watch: "Standstill", who: str) -> Failed:
        """Of the process that was to send requests: it raised, died, or was given up."""
        match error:
            case AnswerError():
                return self._failed(f"{who} failed: {error}")
            case HelperDiedError():
                return self._failed(str(error), otherwise=FailureKind.INFRASTRUCTURE)
            case NoAnswerError():
                kind = FailureKind.HUNG if watch.standing else FailureKind.INCOMPLETE
                return self._failed(str(error), otherwise=kind)

    def _question(self, workload: ServingWorkload, run: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """For the benchmark, and what is to be known of its answer beside it. Raises DatasetError."""
        seed = traffic.seed(workload, run)
        tokenizer = {"model": self.model.model, "trust_remote_code": self.model.trust_remote_code}
        if workload.dataset.is_trace:
            turns = sending.turns(workload)
            replay = sending.replay_question(
                turns,
                base_url=self.server.base_url,
                served=self.server.name,
                seed=seed,
                request_s=self.deadlines.request_s,
            )
            return {"replay": replay, **tokenizer}, {"asked_output_lens": [turn.output_tokens for turn in turns]}
        dataset: list[str] = []
        further: dict[str, Any] = {}
        prompts: dict[str, Any] = {}
        if not workload.dataset.is_random:

            def count(texts: Sequence[str]) -> Sequence[int]:
                found: list[int] = self.bench.ask(
                    {"count": list(texts), **tokenizer}, timeout_s=self.deadlines.request_s
                )
                return found

            asked = sending.chosen(workload, seed, count)
            dataset = sending.arguments(f"{workload.key} {run}")
            prompts = {"prompts": [[one.text, one.output_tokens] for one in asked]}
            further["asked_output_lens"] = [one.output_tokens for one in asked]
        arguments = traffic.arguments(
            workload,
            base_url=self.server.base_url,
            model=self.model.model,
            served=self.server.name,
            seed=seed,
            dataset=dataset,
            trusted=self.model.trust_remote_code,
        )
        return {"arguments": arguments, **prompts}, further

    def _failed(self, sentence: str, *, otherwise: FailureKind = FailureKind.INCOMPLETE) -> Failed:
        if self.stopped():
            return Failed(kind=FailureKind.INFRASTRUCTURE, sentence="the evaluator was stopped")
        return self.server.failed(sentence, otherwise=otherwise)


class Standstill:
    """Tells when an engine under traffic has done nothing for `patience_s`: not one token, in or out.

    Its counters are read seldom, so that reading them costs the measurement nothing.
    """

    def __init__(self, counters: Callable[[], Mapping[str, float]], patience_s: float) -> None:
        self._counters = counters
        self._patience_s = patience_s
        self._pause_s = min(15.0, patience_s / 4)
        self._seen: Mapping[str, float] = {}
        self.standing = False
        self.begin()

    def begin(self) -> None:
        """Count from now."""
        self._moved_s = self._read_s = time.monotonic()

    def sentence(self) -> str:
        """Why to give up; empty while it moves."""
        now_s = time.monotonic()
        if now_s - self._read_s < self._pause_s:
            return ""
        self._read_s = now_s
        found = self._counters()
        seen = {name: found[name] for name in _MOVING if name in found}
        if seen and seen != self._seen:
            self._seen, self._moved_s = seen, now_s
            return ""
        self.standing = now_s - self._moved_s >= self._patience_s
        return f"the engine did nothing for {now_s - self._moved_s:.0f} s" if self.standing else ""


def _quiet_s(workload: ServingWorkload) -> float:
    """How long there may well be nothing to do for the engine."""
    return workload.quiet_s + (20 / workload.request_rate if workload.request_rate is not None else 0.0)


def hit_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Share of prompt tokens found in the prefix cache in between; None where the engine does not count."""
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    asked = after.get(queries, 0.0) - before.get(queries, 0.0)
    return (after.get(hits, 0.0) - before.get(hits, 0.0)) / asked if asked > 0 else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
