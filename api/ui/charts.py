"""Charts as shapes with places on an axis; the templates draw them as SVG. Knows no study and no HTTP.

They are drawn on the server: they show without JavaScript, and nothing needs a style or a script within the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 680.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 14.0, 40.0
POINTS_AT_MOST = 600


@dataclass(frozen=True, slots=True)
class Point:
    """kind: a class of the style sheet, drawn as a shape of its own."""

    x: float
    y: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """In pixels of WIDTH by HEIGHT.   band: top and height of a range of y; line: y of one value.   steps: the path of
    the best so far, or of a front.   shown, of: points drawn, and points there are."""

    points: Sequence[Point]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    steps: str
    line: float | None
    band: tuple[float, float] | None
    shown: int
    of: int


def chart(
    points: Sequence[Point],
    *,
    line: float | None = None,
    band: tuple[float, float] | None = None,
    path: Sequence[tuple[float, float]] = (),
    keep: frozenset[str] = frozenset(),
) -> Chart | None:
    """None where there is nothing to draw. Points that are not finite are left out; of very many, every so many-th is
    drawn, and always those of the kinds in `keep`."""
    finite = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not finite:
        return None
    drawn = thin(finite, keep)
    extra = [v for v in (line, *(band or ())) if v is not None and math.isfinite(v)]
    xs, ys = [p.x for p in drawn], [*(p.y for p in drawn), *extra]
    x0, x1 = _room(min(xs), max(xs), 0.03)
    y0, y1 = _room(min(ys), max(ys), 0.08)

    def x(value: float) -> float:
        return round(LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM), 1)

    steps = " ".join(f"{x(a)},{y(b)}" for a, b in path)
    return Chart(
        points=[Point(x(p.x), y(p.y), p.kind, p.label) for p in drawn],
        x_ticks=[Tick(x(v), _label(v)) for v in ticks(x0, x1)],
        y_ticks=[Tick(y(v), _label(v)) for v in ticks(y0, y1)],
        steps=steps,
        line=None if line is None else y(line),
        band=None if band is None else (y(band[1]), round(y(band[0]) - y(band[1]), 1)),
        shown=len(drawn),
        of=len(points),
    )


def thin(points: Sequence[Point], keep: frozenset[str]) -> list[Point]:
    if len(points) <= POINTS_AT_MOST:
        return list(points)
    every = math.ceil(len(points) / POINTS_AT_MOST)
    kept = [p for i, p in enumerate(points) if i % every == 0 or p.kind in keep]
    return kept[: 2 * POINTS_AT_MOST]


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The best so far as steps; points in order of x."""
    path: list[tuple[float, float]] = []
    for x, y in points:
        if not path:
            path.append((x, y))
        elif y > path[-1][1]:
            path += [(x, path[-1][1]), (x, y)]
    if path:
        path.append((points[-1][0], path[-1][1]))
    return path


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in both, by x. More is better in both."""
    best: list[tuple[float, float]] = []
    highest = -math.inf
    for x, y in sorted(set(points), reverse=True):
        if y > highest:
            best.append((x, y))
            highest = y
    return best[::-1]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values within a range."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _room(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{round(value, 6):g}"
