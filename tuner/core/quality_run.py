"""Make the generations and scores that `quality` judges: three starts, one after the other.

The baseline, the candidate, the baseline again: what differs between the two baselines is the tolerance, and the second
one scores the candidate's tokens. The first two also answer the tasks, where there are any. Acceptance is real in all
three, whatever the workload says.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.serving import ServingConfig
from tuner.core import quality, task_accuracy
from tuner.core.decision import QualityResult
from tuner.core.measurement import FailureKind, Measurement, Origin, Purpose
from tuner.core.ports import Answers, Generated, Running, Scored, TaskSet
from tuner.core.starts import Finished, Job, Starts
from tuner.core.study_file import StudyFile
from tuner.core.trial import Failed, Trial
from tuner.core.workload import ServingWorkload

UNCHECKED = "output could be checked"  # the check that fails where an engine or lm-eval could not be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One set of prompts. at: what it exercises, for the evidence.   concurrency: requests in flight."""

    at: str
    prompts: tuple[tuple[int, ...], ...]
    concurrency: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Told:
    """What one start said: by probe its outputs, its own scores of them, and its scores of another start's outputs; by
    task its answers."""

    outputs: Mapping[str, Sequence[Generated]]
    own: Mapping[str, Sequence[Scored]]
    of_others: Sequence[Mapping[str, Sequence[Scored]]]
    answers: Sequence[Answers]


def probes(file: StudyFile, candidate: ServingConfig) -> tuple[Probe, ...]:
    """One at each graph size up to the concurrency, and one at each context length of the workload."""
    asked = file.quality
    serving = [workload for workload in file.workloads if isinstance(workload, ServingWorkload)]
    concurrency = _concurrency(file)
    room = max((workload.max_model_len for workload in serving), default=asked.prompt_tokens + asked.output_tokens)
    output_tokens = min(asked.output_tokens, max(1, room - asked.prompt_tokens))
    found = [
        Probe(
            at=f"{requests} requests x {candidate.tokens_per_request} tokens a step",
            prompts=_prompts(
                file, max(asked.prompts, requests), min(asked.prompt_tokens, room - output_tokens), requests
            ),
            concurrency=requests,
            output_tokens=output_tokens,
        )
        for requests in quality.graph_sizes(candidate, concurrency)
    ]
    for context in sorted({workload.context_tokens for workload in serving}):
        length = min(context, room - output_tokens)
        if length > asked.prompt_tokens:
            prompts = _prompts(file, 1, length, context)
            found.append(Probe(at=f"context {context}", prompts=prompts, concurrency=1, output_tokens=output_tokens))
    return tuple(found)


def check_output(
    starts: Starts, file: StudyFile, *, candidate: Trial, baseline: Trial
) -> tuple[QualityResult, ...] | Failed:
    """Every check of the candidate's output; Failed where an engine could not be asked."""
    if not isinstance(candidate.candidate, ServingConfig):
        return Failed(kind=FailureKind.INFRASTRUCTURE, sentence=f"a {candidate.candidate.kind} has no output to check")
    asked = probes(file, candidate.candidate)
    tasks = TaskSet(tasks=file.quality.tasks, limit=file.quality.limit, concurrency=_concurrency(file))
    told: list[_Told] = []
    ids: list[str] = []
    for trial in (baseline, candidate, baseline):
        finished = starts.run(
            Job(
                candidate=trial.candidate,
                gpus=trial.gpus,
                purpose=Purpose.QUALITY,
                runs=(),
                trial=trial.number,
                fresh=True,
                real_acceptance=True,
                talk=_talk(asked, [earlier.outputs for earlier in told], tasks if len(told) < 2 else None),
            )
        )
        answer = _answer(finished)
        if isinstance(answer, Failed):
            return answer
        told.append(answer)
        ids.append(finished.start.id)
    runs = _runs(asked, told, ids)
    for run in runs:
        starts.record(run)
    return evaluated(candidate.key, ids, runs, file.quality.margin)


def _runs(asked: Sequence[Probe], told: Sequence[_Told], ids: Sequence[str]) -> list[Measurement]:
    """What is stored: each probe and each task of each start, as flat numbers."""
    first, middle, second = told
    found = []
    for told_by, start_id, by_baseline in (
        (first, ids[0], second.of_others[0]),
        (middle, ids[1], second.of_others[1]),
        (second, ids[2], second.own),
    ):
        samples = {
            probe.at: to_samples(
                quality.Reading(
                    outputs=told_by.outputs[probe.at], own=told_by.own[probe.at], by_baseline=by_baseline[probe.at]
                )
            )
            for probe in asked
        }
        samples |= {task_accuracy.PREFIX + a.task: task_accuracy.to_samples(a) for a in told_by.answers}
        found += [
            Measurement(
                start_id=start_id,
                workload_key=key,
                purpose=Purpose.QUALITY,
                repeat=0,
                origin=Origin.MEASURED,
                metrics={},
                samples=values,
            )
            for key, values in samples.items()
        ]
    return found


def evaluated(
    candidate_key: str, start_ids: Sequence[str], runs: Sequence[Measurement], margin: float
) -> tuple[QualityResult, ...] | Failed:
    """The checks from what is stored.

    start_ids: in the order baseline, candidate, baseline.   runs: of those starts, for quality.   margin: of the tasks.
    """
    stored = {(run.start_id, run.workload_key): run.samples for run in runs}
    results: list[QualityResult] = []
    for key in dict.fromkeys(run.workload_key for run in runs):
        try:
            if key.startswith(task_accuracy.PREFIX):
                first, middle = (task_accuracy.from_samples(key, stored[start, key]) for start in start_ids[:2])
                results.append(task_accuracy.judged(candidate_key, middle, first, margin))
            else:
                readings = [from_samples(stored[start, key]) for start in start_ids]
                results += quality.evaluate(candidate_key, readings[1], readings[0], readings[2], at=key)
        except KeyError:
            return Failed(kind=FailureKind.INCOMPLETE, sentence=f"{key} was not asked of both sides")
        except ValueError as error:
            return Failed(kind=FailureKind.WRONG_OUTPUT, sentence=f"nothing can be compared at {key}: {error}")
    return tuple(results)


def to_samples(reading: quality.Reading) -> dict[str, list[float]]:
    """A reading as flat lists of numbers, one value for each generated token; what is no number becomes NO_NUMBER."""
    outputs = reading.outputs
    return {
        "lengths": [float(len(output.token_ids)) for output in outputs],
        "blank": [float(not output.text.strip()) for output in outputs],
        "token_ids": [float(token) for output in outputs for token in output.token_ids],
        "logprobs": _flat(output.logprobs for output in outputs),
        "own_logprobs": _flat(score.logprobs for score in reading.own),
        "own_best": _flat(score.best for score in reading.own),
        "by_baseline_logprobs": _flat(score.logprobs for score in reading.by_baseline),
        "by_baseline_best": _flat(score.best for score in reading.by_baseline),
    }


def from_samples(samples: Mapping[str, Sequence[float]]) -> quality.Reading:
    """The inverse, but for the prompts and the text, of which only whether it was blank is kept."""
    lengths = [int(length) for length in samples["lengths"]]

    def parts(name: str) -> list[tuple[float, ...]]:
        values, found, place = samples[name], [], 0
        for length in lengths:
            found.append(tuple(values[place : place + length]))
            place += length
        return found

    tokens = [tuple(int(token) for token in part) for part in parts("token_ids")]
    outputs = [
        Generated(prompt_ids=(), token_ids=ids, logprobs=logprobs, text="" if blank else "text")
        for ids, logprobs, blank in zip(tokens, parts("logprobs"), samples["blank"], strict=True)
    ]

    def scores(name: str) -> list[Scored]:
        pairs = zip(parts(f"{name}_logprobs"), parts(f"{name}_best"), strict=True)
        return [Scored(logprobs=logprobs, best=best) for logprobs, best in pairs]

    return quality.Reading(outputs=outputs, own=scores("own"), by_baseline=scores("by_baseline"))


def _flat(parts: Iterable[Sequence[float]]) -> list[float]:
    return [value if math.isfinite(value) else -quality.NO_NUMBER for part in parts for value in part]


def _talk(
    asked: Sequence[Probe], others: Sequence[Mapping[str, Sequence[Generated]]], tasks: TaskSet | None
) -> Callable[[Running], _Told | Failed]:
    def talk(running: Running) -> _Told | Failed:
        outputs: dict[str, Sequence[Generated]] = {}
        own: dict[str, Sequence[Scored]] = {}
        for probe in asked:
            made = running.generate(probe.prompts, max_tokens=probe.output_tokens, concurrency=probe.concurrency)
            if isinstance(made, Failed):
                return made
            scored = running.score(made)
            if isinstance(scored, Failed):
                return scored
            outputs[probe.at], own[probe.at] = made, scored
        of_others: list[dict[str, Sequence[Scored]]] = []
        for earlier in others:
            scores: dict[str, Sequence[Scored]] = {}
            for at, made in earlier.items():
                scored = running.score(made)
                if isinstance(scored, Failed):
                    return scored
                scores[at] = scored
            of_others.append(scores)
        answers = running.answer(tasks) if tasks is not None and tasks.tasks else ()
        return answers if isinstance(answers, Failed) else _Told(outputs, own, of_others, answers)

    return talk


def _answer(finished: Finished) -> _Told | Failed:
    if finished.failed is not None:
        return finished.failed
    assert isinstance(finished.talked, _Told)
    return finished.talked


def _prompts(file: StudyFile, count: int, length: int, salt: int) -> tuple[tuple[int, ...], ...]:
    return quality.prompts(count, max(1, length), file.quality.vocabulary_size, file.seed * 1_000_003 + salt)


def _concurrency(file: StudyFile) -> int:
    """The largest that the study asks about."""
    return max((w.concurrency for w in file.workloads if isinstance(w, ServingWorkload)), default=1)
