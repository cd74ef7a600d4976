"""A server that is ready: run traffic on it, generate on its decode path, score on its prefill path."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from search_spaces.serving import ServingConfig
from tuner.core import vllm_args
from tuner.core.measurement import FailureKind, Fingerprint, Measurement, Origin, Process, Purpose, finite
from tuner.core.ports import Generated, Scored, StartRequest
from tuner.core.trial import Failed
from tuner.core.workload import ServingWorkload, Workload
from tuner.engines import traffic
from tuner.engines.engine import Deadlines
from tuner.engines.helper import AnswerError, Helper, HelperError
from tuner.engines.server import Server

Question = TypeVar("Question")
Answer = TypeVar("Answer")

HIT_SHARE_AT_MOST = 0.05  # of random prompts in the prefix cache; more means that a prompt was seen before


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
    stopped: Callable[[], bool]
    _runs: int = field(default=0, init=False)

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
        before = self._counters()
        question = traffic.arguments(
            workload,
            base_url=self.server.base_url,
            model=self.model.model,
            served=self.server.name,
            seed=workload.seed * 10_007 + repeat * 101 + 1,
            warmups=workload.concurrency if self._runs == 0 else 1,
        )
        self._runs += 1
        try:
            result = self.bench.ask({"arguments": question}, timeout_s=self.deadlines.run_s)
        except (AnswerError, HelperError) as error:
            return self._failed(f"the benchmark gave no result: {error}")
        requests = traffic.requests_of(result, workload)
        if isinstance(requests, traffic.Incomplete):
            failed = self._failed(requests.sentence)
            if failed.kind is FailureKind.INCOMPLETE:
                return Failed(kind=requests.kind, sentence=failed.sentence, evidence=failed.evidence)
            return failed
        config = self.request.candidate
        assert isinstance(config, ServingConfig)
        found = traffic.metrics(requests, workload, gpus=config.gpus)
        accepted, counters = traffic.speculation(result)
        hits = hit_share(before, self._counters())
        if workload.dataset == "random" and hits is not None and hits > HIT_SHARE_AT_MOST:
            return Failed(
                kind=FailureKind.WRONG_OUTPUT,
                sentence=f"{hits:.0%} of the random prompt tokens came from the prefix cache: they were seen before",
            )
        share = {"prefix_cache_hit_share": hits} if hits is not None else {}
        metrics, missing = finite({**found, **accepted, **share})
        return Measurement(
            start_id=self.request.start_id,
            workload_key=workload.key,
            purpose=purpose,
            repeat=repeat,
            origin=Origin.MEASURED,
            metrics=metrics,
            missing=missing,
            samples={**requests.samples(), **counters},
            seconds=float(result.get("duration") or 0.0),
        )

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

    def _all(
        self, ask: Callable[[Question], Answer], questions: Sequence[Question], concurrency: int
    ) -> Sequence[Answer] | Failed:
        try:
            with ThreadPoolExecutor(max_workers=concurrency) as pool:
                return list(pool.map(ask, questions))
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

    def _counters(self) -> Mapping[str, float]:
        """The engine's own counters; empty where it has none to give."""
        try:
            text = self.server.http.get("/metrics").text
        except httpx.HTTPError:
            return {}
        return parse_counters(text)

    def _failed(self, sentence: str) -> Failed:
        if self.stopped():
            return Failed(kind=FailureKind.INFRASTRUCTURE, sentence="the evaluator was stopped")
        return self.server.failed(sentence)


def parse_counters(text: str) -> dict[str, float]:
    """Prometheus text to name and sum over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:") and " " in line:
            name, _, value = line.rpartition(" ")
            try:
                found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0.0) + float(value)
            except ValueError:
                continue
    return found


def hit_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Share of prompt tokens found in the prefix cache in between; None where the engine does not count."""
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    asked = after.get(queries, 0.0) - before.get(queries, 0.0)
    return (after.get(hits, 0.0) - before.get(hits, 0.0)) / asked if asked > 0 else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
