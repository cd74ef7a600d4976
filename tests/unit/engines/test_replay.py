"""A trace is replayed in time: pauses are kept, nobody asks before the answer, shared prefixes are the same tokens."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.engines.inside.tuner_inside.replay import Outcome, Tokens, _read, replay, result


class Clock:
    """Time that passes only while everybody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now_s + seconds, next(self._order), future))
        await future

    async def run(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if task.done():
                return await task
            self.now_s, _, future = heapq.heappop(self._waiting)
            future.set_result(None)


class Server:
    """Answers after `answer_s` seconds with token ids of its own. fails: numbers of the requests that it refuses."""

    def __init__(self, clock: Clock, answer_s: float, fails: tuple[int, ...] = ()) -> None:
        self.clock, self.answer_s, self.fails = clock, answer_s, fails
        self.got: list[tuple[float, list[int], int, bool]] = []

    async def send(self, prompt: list[int], output_tokens: int, needs_ids: bool) -> Outcome:
        number = len(self.got)
        self.got.append((self.clock.now_s, prompt, output_tokens, needs_ids))
        outcome = Outcome(start_s=self.clock.now_s, input_tokens=len(prompt), output_tokens=output_tokens)
        await self.clock.sleep(self.answer_s)
        if number in self.fails:
            outcome.error = "HTTP 500"
        if needs_ids:
            outcome.token_ids = [10_000 + 100 * number + place for place in range(output_tokens)]
        return outcome


def turn(session: str, at_s: float, inputs: int = 8, outputs: int = 4, shared: int = 0, think_s: Any = None) -> Any:
    return {
        "session": session,
        "at_s": at_s,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "shared_prefix_tokens": shared,
        "think_s": think_s,
    }


def replayed(turns: list[Any], *, answer_s: float = 1.0, seed: int = 1, fails: tuple[int, ...] = ()) -> Any:
    clock = Clock()
    server = Server(clock, answer_s, fails)
    work = replay(turns, Tokens(range(500), seed), server.send, now=clock.now, sleep=clock.sleep)
    return asyncio.run(clock.run(work)), server


def test_requests_are_sent_at_their_times_whatever_the_other_sessions_do() -> None:
    _, server = replayed([turn("a", 0), turn("b", 0.25), turn("c", 0.5), turn("b", 2.5)], answer_s=1.0)
    assert [sent for sent, *_ in server.got] == [0, 0.25, 0.5, 2.5]


def test_nobody_asks_before_the_answer_and_pauses_are_not_made_up_for_later() -> None:
    """Answers take 3 s where the trace had time for 1 s; the pause of 9 s between the last two stays one of 9 s."""
    outcomes, server = replayed([turn("a", 0), turn("a", 1), turn("a", 10)], answer_s=3.0)
    assert [sent for sent, *_ in server.got] == [0, 3, 12]
    assert [outcome.late_s for outcome in outcomes] == [0, 0, 0]


def test_a_think_time_counts_from_the_answer() -> None:
    _, server = replayed([turn("a", 0), turn("a", 1, think_s=2.0), turn("a", 1.5, think_s=0.0)], answer_s=3.0)
    assert [sent for sent, *_ in server.got] == [0, 5, 8]


def test_a_prefix_is_shared_token_for_token_the_answer_included() -> None:
    turns = [turn("a", 0, 8, 4), turn("a", 5, 20, 4, shared=12), turn("a", 9, 30, 4, shared=10)]
    _, server = replayed(turns)
    (_, first, _, asked), (_, second, _, not_asked), (_, third, _, _) = server.got
    assert (asked, not_asked) == (True, False)
    assert second[:12] == [*first, 10_000, 10_001, 10_002, 10_003]
    assert third[:10] == second[:10]
    assert [len(prompt) for _, prompt, _, _ in server.got] == [8, 20, 30]
    assert third[10:20] != second[10:]


def test_sessions_share_their_common_beginning_and_nothing_else() -> None:
    _, server = replayed([turn("a", 0, 40, shared=16), turn("b", 1, 40, shared=24), turn("c", 2, 40)])
    a, b, c = (prompt for _, prompt, *_ in server.got)
    assert a[:16] == b[:16]
    assert a[16:24] != b[16:24]
    assert a[24:] != b[24:]
    assert c[:16] != a[:16]


def test_another_seed_gives_other_tokens_and_the_same_seed_the_same() -> None:
    turns = [turn("a", 0, 40, shared=16), turn("b", 0, 40)]
    prompts = [[prompt for _, prompt, *_ in replayed(turns, seed=seed)[1].got] for seed in (1, 1, 2)]
    assert prompts[0] == prompts[1]
    assert not {tuple(prompt[:8]) for prompt in prompts[0]} & {tuple(prompt[:8]) for prompt in prompts[2]}


def test_a_session_ends_with_its_first_failure_and_the_rest_of_it_counts_as_failed() -> None:
    turns = [turn("a", 0), turn("b", 0), turn("a", 5), turn("b", 5), turn("a", 9)]
    outcomes, server = replayed(turns, fails=(0,))
    assert len(server.got) == 3
    told = result(turns, outcomes, 10.0)
    assert (told["completed"], told["failed"]) == (2, 3)
    assert told["errors"][0] == "HTTP 500"
    assert told["errors"][4] == "the request before it in its session failed"
    assert told["sessions"] == [0, 1, 0, 1, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 50), st.one_of(st.none(), st.floats(0, 5))), min_size=1),
    st.floats(0.01, 20),
)
def test_every_request_is_sent_once_and_in_turn(rows: list[tuple[str, float, Any]], answer_s: float) -> None:
    turns = [turn(session, at_s, think_s=think_s) for session, at_s, think_s in sorted(rows, key=lambda row: row[1])]
    outcomes, server = replayed(turns, answer_s=answer_s)
    assert len(server.got) == len(turns)
    for session in "abc":
        mine = [place for place, one in enumerate(turns) if one["session"] == session]
        for before, after in pairwise(mine):
            pause = outcomes[after].start_s - outcomes[before].start_s - answer_s
            assert pause >= (turns[after]["think_s"] or 0.0) - 1e-6
        for place in mine[:1]:
            assert outcomes[place].start_s >= turns[place]["at_s"] - 1e-9


def read(chunks: list[bytes]) -> Outcome:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    outcome = Outcome()
    asyncio.run(_read(stream(), outcome))
    return outcome


STREAM = (
    b': ping\n\ndata: {"choices": [{"text": "a", "token_ids": [1, 2]}]}\n\n'
    b'data: {"choices": [{"text": "\xc3\xa9", "token_ids": [3]}]}\n\n'
    b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    found = read([STREAM[place : place + size] for place in range(0, len(STREAM), size)])
    assert (found.text, found.token_ids, found.output_tokens, found.error) == ("aé", [1, 2, 3], 3, "")
    assert len(found.gaps_s) == 1


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([b"data: [DONE]\n\n"], "the stream ended without a token"),
        ([b'data: {"error": {"message": "boom"}}\n\n'], "{'message': 'boom'}"),
    ],
)
def test_a_stream_without_tokens_is_a_failure(chunks: list[bytes], error: str) -> None:
    assert read(chunks).error == error
