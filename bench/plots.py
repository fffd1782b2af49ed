"""Draws line charts as SVG, without a plotting library. They follow the light or dark mode of the reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 920, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 322, 64, 62
LABEL_DISTANCE = 33
COLOURS = (
    ("#0969da", "#4493f8"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#ab7df8"),
    ("#bf3989", "#db61a2"),
    ("#9a6700", "#d29922"),
    ("#0b7285", "#39c5cf"),
)
"""Of each series: on a light and on a dark background."""
FONTS = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif'
MARKS = ("circle", "square", "diamond", "triangle", "ring", "cross", "bar")


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    points: list[tuple[float, float]]
    note: str = ""
    """Second line of the label, such as a version."""
    style: int = 0
    """Number of its colour and mark."""
    strong: bool = False


@dataclass(frozen=True)
class Axis:
    """A logarithmic or linear axis."""

    title: str
    low: float
    high: float
    logarithmic: bool = True
    text: Callable[[float], str] = "{:,g}".format
    marked: tuple[float, ...] = ()
    """Values with a grid line. Default: powers of ten, or round numbers."""

    def share(self, value: float) -> float:
        """Return the place of a value on the axis, from 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.marked:
            return list(self.marked)
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        step = 10 ** math.floor(math.log10(self.high - self.low))
        while (self.high - self.low) / step < 4:
            step /= 2
        return [self.low + step * number for number in range(round((self.high - self.low) / step) + 1)]


def decades(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten around the values."""
    return 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))


def chart(title: str, description: str, x: Axis, y: Axis, series: list[Series]) -> str:
    """Return an SVG document."""

    def at(point: tuple[float, float]) -> tuple[float, float]:
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + x.share(point[0]) * width, HEIGHT - BOTTOM - y.share(point[1]) * height

    parts = [_head(title, description), *_grid(x, y, at)]
    places = _apart([at(one.points[-1])[1] for one in series])
    for one, place in sorted(zip(series, places, strict=True), key=lambda pair: pair[0].strong):
        corners = [at(point) for point in one.points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in corners)
        strong = " strong" if one.strong else ""
        parts.append(f'  <polyline class="line{strong} c{one.style}" points="{path}"/>')
        parts += [_mark(one.style, *corner) for corner in corners]
        parts += _label(one, corners[-1], place)
    return "\n".join(parts) + "\n</svg>\n"


def _head(title: str, description: str) -> str:
    light = "\n".join(f"    .c{n} {{ --colour: {COLOURS[n][0]}; }}" for n in range(len(COLOURS)))
    dark = "\n".join(f"      .c{n} {{ --colour: {COLOURS[n][1]}; }}" for n in range(len(COLOURS)))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">
  <title id="title">{escape(title)}</title>
  <desc id="description">{escape(description)}</desc>
  <style>
    text {{ font: 13px {FONTS}; fill: #1f2328; }}
    .paper {{ fill: #ffffff; stroke: #d1d9e0; }}
    .title {{ font-weight: 600; font-size: 16px; }}
    .soft {{ fill: #59636e; }}
    .small {{ font-size: 11.5px; }}
    .name {{ font-weight: 600; }}
    .grid {{ stroke: #d1d9e0; stroke-width: 1; }}
    .line {{ fill: none; stroke: var(--colour); stroke-width: 2; stroke-linejoin: round; }}
    .strong {{ stroke-width: 3.5; }}
    .mark {{ fill: var(--colour); stroke: var(--colour); stroke-width: 1.5; }}
    .mark.open {{ fill: #ffffff; }}
    .leader {{ stroke: var(--colour); stroke-width: 1; opacity: 0.6; }}
    text.c {{ fill: var(--colour); }}
{light}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #f0f6fc; }}
      .paper {{ fill: #0d1117; stroke: #3d444d; }}
      .soft {{ fill: #9198a1; }}
      .grid {{ stroke: #3d444d; }}
      .mark.open {{ fill: #0d1117; }}
{dark}
    }}
  </style>
  <rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>
  <text class="title" x="{LEFT - 54}" y="34">{escape(title)}</text>"""


def _grid(x: Axis, y: Axis, at: Callable[[tuple[float, float]], tuple[float, float]]) -> list[str]:
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in x.ticks():
        left = at((tick, y.low))[0]
        parts.append(
            f'  <line class="grid" x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{bottom}"/>\n'
            f'  <text class="soft" x="{left:.1f}" y="{bottom + 20}" text-anchor="middle">{x.text(tick)}</text>'
        )
    for tick in y.ticks():
        top = at((x.low, tick))[1]
        parts.append(
            f'  <line class="grid" x1="{LEFT}" y1="{top:.1f}" x2="{right}" y2="{top:.1f}"/>\n'
            f'  <text class="soft" x="{LEFT - 8}" y="{top + 4.5:.1f}" text-anchor="end">{y.text(tick)}</text>'
        )
    middle = (TOP + bottom) / 2
    parts.append(
        f'  <text x="{(LEFT + right) / 2}" y="{bottom + 46}" text-anchor="middle">{escape(x.title)}</text>\n'
        f'  <text x="24" y="{middle}" text-anchor="middle" transform="rotate(-90 24 {middle})">'
        f"{escape(y.title)}</text>"
    )
    return parts


def _apart(wanted: list[float]) -> list[float]:
    """Return places for labels near the wanted ones, in the same order and without overlaps."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    room = LABEL_DISTANCE * (len(wanted) - 1)
    places = [0.0] * len(wanted)
    lowest = TOP - LABEL_DISTANCE + 4.0
    for number, index in enumerate(order):
        last = HEIGHT - BOTTOM - 16 - room + number * LABEL_DISTANCE  # leaves room for the labels below
        places[index] = lowest = max(lowest + LABEL_DISTANCE, min(wanted[index], last))
    return places


def _label(one: Series, end: tuple[float, float], place: float) -> list[str]:
    number = one.style
    left = WIDTH - RIGHT + 30
    parts = [
        f'  <line class="leader c{number}" x1="{end[0] + 7:.1f}" y1="{end[1]:.1f}" x2="{left - 6}" y2="{place:.1f}"/>',
        f'  <text class="c c{number} name" x="{left}" y="{place + 4:.1f}">{escape(one.name)}</text>',
    ]
    if one.note:
        parts.append(f'  <text class="soft small" x="{left}" y="{place + 18:.1f}">{escape(one.note)}</text>')
    return parts


def _mark(number: int, left: float, top: float) -> str:
    kind, name = MARKS[number], f'class="mark c{number}"'
    if kind in ("circle", "ring"):
        opened = f'class="mark open c{number}"' if kind == "ring" else name
        return f'  <circle {opened} cx="{left:.1f}" cy="{top:.1f}" r="4.5"/>'
    shape = {
        "square": "-4,-4 4,-4 4,4 -4,4",
        "diamond": "0,-5.5 5.5,0 0,5.5 -5.5,0",
        "triangle": "0,-5.5 5,4 -5,4",
        "bar": "-2,-6 2,-6 2,6 -2,6",
        "cross": "-5,-5 0,-1.5 5,-5 1.5,0 5,5 0,1.5 -5,5 -1.5,0",
    }[kind]
    return f'  <polygon {name} points="{shape}" transform="translate({left:.1f} {top:.1f})"/>'
