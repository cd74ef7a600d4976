"""Replay recorded traffic: sessions in parallel, each one's requests in turn, with its pauses and shared prefixes.

vLLM's benchmark can send requests at given times, but not wait for an answer before the next one of its session, nor
put that answer into the next prompt. So requests are sent here; what is noted of each is what the benchmark notes.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """One request. start_s: on the process's clock.   ttft_s: to the first chunk.   gaps_s: between chunks.
    late_s: sent so long after it was due.   token_ids: of the answer, where they were asked for."""

    start_s: float = 0.0
    ttft_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    late_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    error: str = ""


# prompt, tokens to generate, whether the answer's token ids are needed
Send = Callable[[list[int], int, bool], Awaitable[Outcome]]


class Tokens:
    """Token ids from a seed: the same for the same place, others everywhere else."""

    def __init__(self, usable: Sequence[int], seed: int) -> None:
        self._usable = usable
        self._seed = seed

    def some(self, count: int, place: str) -> list[int]:
        return random.Random(f"{self._seed} {place}").choices(self._usable, k=count) if count else []


async def replay(
    turns: Sequence[Mapping[str, Any]],
    tokens: Tokens,
    send: Send,
    *,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Outcome]:
    """One outcome for each turn, in their order.

    A session's first request is sent at its time; a later one `think_s` after the answer before it, or, where the trace
    does not say, when as much time has passed since the request before as in the trace, but never before its answer.
    """
    common = tokens.some(max((_shared(turn) for turn in turns), default=0), "common")
    fresh = [tokens.some(turn["input_tokens"] - _shared(turn), f"turn {place}") for place, turn in enumerate(turns)]
    found = [Outcome(error="the request before it in its session failed") for _ in turns]
    sessions: dict[str, list[int]] = {}
    for place, turn in enumerate(turns):
        sessions.setdefault(turn["session"], []).append(place)
    began = now()

    async def session(places: list[int]) -> None:
        history, sent, ended = common, began, began
        for number, place in enumerate(places):
            turn = turns[place]
            if number == 0:
                due = began + turn["at_s"]
            elif turn.get("think_s") is not None:
                due = ended + turn["think_s"]
            else:
                due = max(ended, sent + turn["at_s"] - turns[places[number - 1]]["at_s"])
            if due > now():
                await sleep(due - now())
            prompt = history[: _shared(turn)] + fresh[place]
            following = turns[places[number + 1]] if number + 1 < len(places) else None
            needed = following is not None and _shared(following) > len(prompt)
            sent = now()
            outcome = await send(prompt, turn["output_tokens"], needed)
            ended = now()
            outcome.late_s = max(0.0, sent - due)
            found[place] = outcome
            if outcome.error:
                return
            missing = turn["output_tokens"] - len(outcome.token_ids) if needed else 0
            history = prompt + outcome.token_ids + tokens.some(max(0, missing), f"missing {place}")

    await asyncio.gather(*(session(places) for places in sessions.values()))
    return found


def result(turns: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Any]:
    """In the words of vLLM's own benchmark, and beside them which session each request belongs to."""
    names = list(dict.fromkeys(turn["session"] for turn in turns))
    failed = sum(1 for outcome in outcomes if outcome.error)
    return {
        "duration": duration_s,
        "completed": len(outcomes) - failed,
        "failed": failed,
        "errors": [outcome.error for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.gaps_s for outcome in outcomes],
        "input_lens": [outcome.input_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "late_s": [outcome.late_s for outcome in outcomes],
        "sessions": [names.index(turn["session"]) for turn in turns],
    }


async def against_server(question: Mapping[str, Any], usable: Sequence[int]) -> dict[str, Any]:
    """question: turns, seed, base_url, served (the model's name there), request_s (the most that one may take)."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=question["request_s"])
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def send(prompt: list[int], output_tokens: int, needs_ids: bool) -> Outcome:
            body: dict[str, Any] = {
                "model": question["served"],
                "prompt": prompt,
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if needs_ids:
                body["return_token_ids"] = True
            outcome = Outcome(input_tokens=len(prompt), start_s=time.perf_counter())
            try:
                async with session.post(f"{question['base_url']}/v1/completions", json=body) as response:
                    if response.status != 200:
                        outcome.error = f"HTTP {response.status}: {(await response.text())[:500]}"
                    else:
                        await _read(response.content.iter_any(), outcome)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                outcome.error = f"{type(error).__name__}: {error}"
            return outcome

        began = time.perf_counter()
        outcomes = await replay(question["turns"], Tokens(usable, question["seed"]), send)
        return result(question["turns"], outcomes, time.perf_counter() - began)


async def _read(chunks: Any, outcome: Outcome) -> None:
    """Note when each chunk of tokens came. Raises ValueError where one is no JSON."""
    rest, last_s = b"", 0.0
    async for chunk in chunks:
        *messages, rest = (rest + chunk).split(b"\n\n")
        for message in messages:
            text = message.strip().removeprefix(b"data: ")
            if not text or text.startswith(b":") or text == b"[DONE]":
                continue
            data = json.loads(text)
            if "error" in data:
                outcome.error = str(data["error"])[:500]
            if data.get("choices"):
                now_s = time.perf_counter()
                if last_s:
                    outcome.gaps_s.append(now_s - last_s)
                else:
                    outcome.ttft_s = now_s - outcome.start_s
                last_s = now_s
                outcome.text += data["choices"][0].get("text") or ""
                outcome.token_ids += data["choices"][0].get("token_ids") or []
            if data.get("usage"):
                outcome.output_tokens = int(data["usage"]["completion_tokens"])
    if not last_s and not outcome.error:
        outcome.error = "the stream ended without a token"


def _shared(turn: Mapping[str, Any]) -> int:
    return int(turn.get("shared_prefix_tokens") or 0)
