"""Panels of a picture as SVG: bars, steps and areas above each other, with axes. Pure.

The modules beside this one say what is drawn; nothing here knows a result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("a", "b", "c", "d", "e")
"""Kinds in the style sheet, in the order in which pictures use them."""
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-size: 14px }
  .axis { stroke: #8c959f } .grid { stroke: #d0d7de } .line { fill: none; stroke-width: 1.5 }
  .a { fill: #0b8a78; stroke: #0b8a78 } .b { fill: #bc4c00; stroke: #bc4c00 }
  .c { fill: #5a4fcf; stroke: #5a4fcf } .d { fill: #bf8700; stroke: #bf8700 }
  .e { fill: #d0d7de; stroke: #d0d7de } .area { stroke: none } .line { fill: none }
  .dashed { stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #30363d } .a { fill: #2fb8a3; stroke: #2fb8a3 }
    .b { fill: #f0883e; stroke: #f0883e } .c { fill: #a8a0ff; stroke: #a8a0ff }
    .d { fill: #e3b341; stroke: #e3b341 } .e { fill: #30363d; stroke: #30363d } .line { fill: none }
  }
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of a panel and the ranges of its axes."""

    left: int
    top: int
    width: int
    height: int
    across: float
    """Largest value of the horizontal axis."""
    up: float
    """Largest value of the vertical axis."""

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        return self.left + self.width * value / self.across

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        return self.top + self.height * (1 - value / self.up)


def round_steps(most: float) -> list[float]:
    """Return from three to six round numbers from 0 up to `most`, or just above it."""
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 5)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def axes(frame: Frame, title: str, ups: Sequence[float], acrosses: Sequence[tuple[float, str]]) -> list[str]:
    """Return title, grid and axis of a panel; `acrosses`: (value, text) below the horizontal axis."""
    bottom = frame.top + frame.height
    parts = [text(frame.left, frame.top - 30, title, "title", "start")]
    for mark in ups:
        parts.append(f'<path class="grid" d="M{frame.left} {frame.y(mark):.1f} h{frame.width}"/>')
        parts.append(text(frame.left - 8, frame.y(mark) + 4, f"{mark:g}", "", "end"))
    parts.append(f'<path class="axis" d="M{frame.left} {bottom} h{frame.width}"/>')
    return parts + [text(frame.x(value), bottom + 18, word) for value, word in acrosses]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return one line of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(x: float, y: float, names: Sequence[str], kinds: Sequence[str] = COLOURS) -> list[str]:
    """Return a square and a name for each kind, from left to right."""
    parts = []
    for name, kind in zip(names, kinds, strict=False):
        parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10"/>')
        parts.append(text(x + 15, y, name, "", "start"))
        x += 34 + 6.4 * len(name)
    return parts


def areas(
    frame: Frame,
    places: Sequence[float],
    layers: Sequence[Sequence[float]],
    kinds: Sequence[str] = COLOURS,
) -> list[str]:
    """Return areas above each other, the first layer at the bottom."""
    below = [0.0] * len(places)
    parts = []
    for layer, kind in zip(layers, kinds, strict=False):
        above = [low + value for low, value in zip(below, layer, strict=True)]
        outline = [
            *zip(places, above, strict=True),
            *reversed(list(zip(places, below, strict=True))),
        ]
        path = " L".join(f"{frame.x(across):.1f} {frame.y(up):.1f}" for across, up in outline)
        parts.append(f'<path class="area {kind}" d="M{path} Z"/>')
        below = above
    return parts


def steps(frame: Frame, changes: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a line that keeps each value until the next change, and the last one to the end of the axis."""
    first, *later = changes
    path = f"M{frame.x(first[0]):.1f} {frame.y(first[1]):.1f}"
    path += "".join(f" H{frame.x(across):.1f} V{frame.y(up):.1f}" for across, up in later)
    return f'<path class="line {kind}" d="{path} H{frame.x(frame.across):.1f}"/>'


def bars(frame: Frame, groups: Sequence[Sequence[float]], kinds: Sequence[str] = COLOURS) -> list[str]:
    """Return bars in groups; a group is one wide on the horizontal axis; numbers stand on the bars."""
    parts = []
    for place, group in enumerate(groups):
        wide = frame.width / frame.across * 0.76 / len(group)
        for number, (value, kind) in enumerate(zip(group, kinds, strict=False)):
            left = frame.x(place + 0.12) + wide * number
            high = frame.y(0) - frame.y(value)
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{frame.y(value):.1f}" width="{wide - 3:.1f}" '
                f'height="{high:.1f}"/>'
            )
            parts.append(text(left + wide / 2 - 1.5, frame.y(value) - 5, f"{value:.2f}"))
    return parts


def document(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    )
    body = "\n".join(parts)
    return f"{head}\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
