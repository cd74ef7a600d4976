"""What one run of traffic sends where a file says it: prompts chosen from it, or a trace's requests. Starts nothing.

A run takes its prompts in an order that its seed gives, so every start of every candidate is asked the same.
"""

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.core import datasets
from tuner.core.datasets import DatasetError, Prompt, Turn
from tuner.core.workload import Dataset, ServingWorkload

# The length in tokens of each text, by the served model's tokenizer.
Count = Callable[[Sequence[str]], Sequence[int]]

LEAST_TOKENS = 4  # of a conversation's question and answer: shorter ones are greetings, and too short for a TPOT


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as it is sent. output_tokens: asked of the engine."""

    text: str
    output_tokens: int


def chosen(workload: ServingWorkload, seed: int, count: Count) -> list[Asked]:
    """As many prompts of the workload's file as it has requests.

    A conversation that is longer than the workload's input tokens, or very short, is passed over; an answer counts up
    to the workload's output tokens.

    Raises:
        DatasetError: the file has changed since the study was opened, a prompt is longer than the workload's input
            tokens, or there are too few conversations that fit.
    """
    order = list(_prompts(workload.dataset))
    random.Random(seed).shuffle(order)
    found: list[Asked] = []
    while order and len(found) < workload.requests:
        batch, order = order[: workload.requests], order[workload.requests :]
        found += _fitting(workload, batch, count)
    if len(found) < workload.requests:
        raise DatasetError(
            f"{workload.dataset.path}: {len(found)} of its requests fit into {workload.input_tokens} tokens, and "
            f"{workload.requests} are to be sent; raise input_tokens or lower requests"
        )
    return found[: workload.requests]


def _fitting(workload: ServingWorkload, prompts: Sequence[Prompt], count: Count) -> list[Asked]:
    lengths = count([prompt.text for prompt in prompts])
    if workload.dataset.kind == datasets.SHAREGPT:
        replies = count([prompt.reply or "" for prompt in prompts])
        return [
            Asked(prompt.text, min(reply, workload.output_tokens))
            for prompt, length, reply in zip(prompts, lengths, replies, strict=True)
            if LEAST_TOKENS <= length <= workload.input_tokens and reply >= LEAST_TOKENS
        ]
    for prompt, length in zip(prompts, lengths, strict=True):
        if length > workload.input_tokens:
            raise DatasetError(
                f"{workload.dataset.path}, line {prompt.line}: {length} tokens, more than the workload's "
                f"input_tokens ({workload.input_tokens})"
            )
    return [Asked(p.text, min(p.output_tokens or workload.output_tokens, workload.output_tokens)) for p in prompts]


def arguments(run: str) -> list[str]:
    """For `vllm bench serve`, which is handed the prompts beside them. run: unique within a start.

    The salt keeps the prefix cache of one run from the next: what prompts share within a run is found there, as it
    would be in service, and what an earlier run has sent is not.
    """
    return ["--dataset-name", "custom", "--dataset-path", "-", "--extra-body", json.dumps({"cache_salt": run})]


def turns(workload: ServingWorkload) -> list[Turn]:
    """The requests of the workload's trace. Where the workload asks for fewer, as a warm-up does, the first ones of so
    many sessions, all at once.

    Raises:
        DatasetError: the file has changed since the study was opened.
    """
    every = _trace(workload.dataset)
    if workload.requests >= len(every):
        return list(every)
    first: dict[str, Turn] = {}
    for turn in every:
        first.setdefault(turn.session, turn)
    return [
        replace(turn, at_s=0.0, output_tokens=min(turn.output_tokens, workload.output_tokens))
        for turn in list(first.values())[: workload.requests]
    ]


def replay_question(
    turns: Sequence[Turn], *, base_url: str, served: str, seed: int, request_s: float
) -> dict[str, Any]:
    plain = [{name: value for name, value in asdict(turn).items() if name != "line"} for turn in turns]
    return {"turns": plain, "seed": seed, "base_url": base_url, "served": served, "request_s": request_s}


def repeated_share(turns: Sequence[Turn]) -> float:
    """Share of the prompt tokens that an earlier prompt, or its answer, has at the same place: the most that a prefix
    cache can find. The first session to begin with the common prefix finds nothing yet."""
    known = 0
    repeated = 0
    seen: set[str] = set()
    for turn in turns:
        if turn.session in seen:
            repeated += turn.shared_prefix_tokens
        else:
            repeated += min(turn.shared_prefix_tokens, known)
            known = max(known, turn.shared_prefix_tokens)
        seen.add(turn.session)
    return repeated / sum(turn.input_tokens for turn in turns)


@functools.lru_cache(maxsize=2)
def _prompts(dataset: Dataset) -> tuple[Prompt, ...]:
    return tuple(datasets.read_prompts(dataset.kind, _unchanged(dataset)))


@functools.lru_cache(maxsize=2)
def _trace(dataset: Dataset) -> tuple[Turn, ...]:
    return tuple(datasets.read_trace(_unchanged(dataset)))


def _unchanged(dataset: Dataset) -> Path:
    path = Path(dataset.path)
    if datasets.sha256(path) != dataset.sha256:
        raise DatasetError(f"{path}: has changed since the study was opened; open another study with --new")
    return path
