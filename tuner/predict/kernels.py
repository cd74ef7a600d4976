"""GB300 kernel timings, read and interpolated: attention over a context, small collectives. Knows no model size.

The timings were collected by NVIDIA's aiconfigurator (aiconfigurator-core 0.12.0, Apache-2.0); `data/gb300_kernels.csv`
names the file of each. They stand for kernels of vLLM's stock path; nobody published the specialised ones.
"""

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "data/gb300_kernels.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """size: tokens, or batch of an attention, or elements of a collective.   n, k, ranks, context: 0 where unused."""

    op: str
    size: int
    n: int
    k: int
    ranks: int
    context: int
    kv: str
    us: float


@cache
def timings() -> tuple[Timing, ...]:
    text = files("tuner.predict").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(
        Timing(
            op=row["op"],
            size=int(row["size"]),
            n=int(row["n"] or 0),
            k=int(row["k"] or 0),
            ranks=int(row["ranks"] or 0),
            context=int(row["context"] or 0),
            kv=row["kv"],
            us=float(row["us"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def attention_us(requests: int, context: float, *, fp8: bool) -> float:
    """What a context of so many tokens adds to one MLA layer's decode, over a context of 2.

    At 12 heads a rank. Heads hardly matter: 64 K tokens of one request add 21 us at 8, 24 at 12, 14 at 96; 64 requests
    add 371, 372 and 366. Between the timings it is linear in the context and in the logarithm of the requests; made
    monotone, since noise of 2 us would have longer contexts be faster. Beyond them it grows with the bytes read.
    """
    grid = _attention("fp8" if fp8 else "bfloat16")
    most = grid.batches[-1]
    if requests > most:
        return attention_us(most, context, fp8=fp8) * requests / most
    if context > grid.contexts[-1]:
        return attention_us(requests, grid.contexts[-1], fp8=fp8) * context / grid.contexts[-1]
    row, share = _place(grid.logs, math.log2(requests))
    column, along = _place(grid.contexts, max(context, grid.contexts[0]))
    low, high = (
        grid.us[at][column] + along * (grid.us[at][min(column + 1, len(grid.contexts) - 1)] - grid.us[at][column])
        for at in (row, min(row + 1, len(grid.logs) - 1))
    )
    return low + share * (high - low)


@cache
def collective_us(op: str, ranks: int) -> float:
    """A collective of a few kilobytes within a CUDA graph: NCCL on 2 and 4 ranks, 4 KB, and from there on as much
    more for each doubling as from 2 to 4. op: all_gather, reduce_scatter or alltoall.

    More ranks were not timed. vLLM's direct kernels over NVLink may be faster; no figure of theirs is public.
    """
    two, four = (next(t.us for t in timings() if t.op == op and t.ranks == n) for n in (2, 4))
    return two + max(0.0, four - two) * (math.log2(ranks) - 1)


@dataclass(frozen=True, slots=True)
class _Grid:
    batches: tuple[int, ...]
    logs: tuple[float, ...]
    contexts: tuple[int, ...]
    us: tuple[tuple[float, ...], ...]


@cache
def _attention(kv: str) -> _Grid:
    found = {(t.size, t.context): t.us for t in timings() if t.op == "mla_generation_module" and t.kv == kv}
    contexts = tuple(sorted({context for _, context in found}))
    # The largest batches lack the longest contexts; only complete rows are used.
    batches = tuple(b for b in sorted({b for b, _ in found}) if all((b, c) in found for c in contexts))
    # BF16 keys are never faster than FP8 ones; where the timings say so by 0.1 us, it is noise.
    fp8 = _attention("fp8") if kv != "fp8" else None
    rows: list[tuple[float, ...]] = []

    def least(batch: int, context: int) -> float:
        return fp8.us[fp8.batches.index(batch)][fp8.contexts.index(context)] if fp8 is not None else 0.0

    for batch in batches:
        row: list[float] = []
        for place, context in enumerate(contexts):
            added = max(0.0, found[batch, context] - found[batch, contexts[0]])
            row.append(max(added, row[-1] if row else 0.0, rows[-1][place] if rows else 0.0, least(batch, context)))
        rows.append(tuple(row))
    return _Grid(batches, tuple(map(math.log2, batches)), contexts, tuple(rows))


def _place(ticks: Sequence[float], value: float) -> tuple[int, float]:
    """Index of the tick at or below, and how far the value lies towards the next one."""
    at = min(max(bisect_right(ticks, value) - 1, 0), len(ticks) - 1)
    if at == len(ticks) - 1:
        return at, 0.0
    return at, (value - ticks[at]) / (ticks[at + 1] - ticks[at])
