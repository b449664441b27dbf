"""The drawing of a sweep as an SVG file, for light and dark pages: rates and latencies by load. Pure."""

import math
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, GAP = 860, 330, 64, 90
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
TOP, BOTTOM = 52, HEIGHT - 56
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-size: 14px }
  .axis { stroke: #8c959f } .grid { stroke: #d0d7de } .line { fill: none; stroke-width: 2 }
  .a { stroke: #0b8a78; fill: #0b8a78 } .b { stroke: #bc4c00; fill: #bc4c00 }
  .c { stroke: #5a4fcf; fill: #5a4fcf }
  .line.a, .line.b, .line.c { fill: none } text.a, text.b, text.c { stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #30363d } .a { stroke: #2fb8a3; fill: #2fb8a3 }
    .b { stroke: #f0883e; fill: #f0883e } .c { stroke: #a8a0ff; fill: #a8a0ff }
  }
"""


@dataclass(frozen=True)
class Curve:
    """One line of a panel: its name, its kind in the style sheet, and a value for each load or None."""

    name: str
    kind: str
    values: list[float | None]


def ticks(most: float) -> list[float]:
    """Return from 3 to 6 round numbers from 0 up to the first that is not below `most`."""
    if not most > 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 5)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def sweep_svg(document: dict[str, Any]) -> str:
    """Return the drawing of a document of `sweep`."""
    kind, runs = document["sweep"], document["runs"]
    loads = [run[kind] for run in runs]

    def latency(name: str, rank: str) -> list[float | None]:
        return [run["latency_ms"][name][rank] if run["latency_ms"][name] else None for run in runs]

    rates = [Curve("output tokens/s", "a", [run["rates"]["output_tokens_per_second"] for run in runs])]
    latencies = [
        Curve("TTFT p50", "a", latency("ttft", "p50")),
        Curve("TTFT p99", "b", latency("ttft", "p99")),
        Curve("TPOT p50", "c", latency("tpot", "p50")),
    ]
    word = "requests in flight" if kind == "concurrency" else "requests per second"
    panels = _panel(MARGIN, "output tokens per second", word, loads, rates)
    panels += _panel(MARGIN + PANEL + GAP, "latency, ms", word, loads, latencies)
    title = f"{runs[0]['model']}: a run for each load"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return f"{head}<title>{escape(title)}</title><style>{STYLE}</style>{''.join(panels)}</svg>\n"


def _panel(left: int, title: str, below: str, loads: list[float], curves: list[Curve]) -> list[str]:
    marks = ticks(max((value for curve in curves for value in curve.values if value is not None), default=0))
    low, high = math.log2(loads[0]), math.log2(loads[-1])

    def x(load: float) -> float:
        return left + PANEL * ((math.log2(load) - low) / (high - low) if high > low else 0.5)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / marks[-1]

    parts = [f'<text class="title" x="{left}" y="24">{escape(title)}</text>']
    for mark in marks:
        parts.append(f'<path class="grid" d="M{left} {y(mark):.1f} H{left + PANEL}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    parts.append(f'<path class="axis" d="M{left} {BOTTOM} H{left + PANEL}"/>')
    place = f'y="{BOTTOM + 18}" text-anchor="middle"'
    parts += [f'<text x="{x(load):.1f}" {place}>{load:g}</text>' for load in loads]
    middle = left + PANEL / 2
    parts.append(f'<text x="{middle:g}" y="{BOTTOM + 38}" text-anchor="middle">{escape(below)}</text>')
    for number, curve in enumerate(curves):
        points = [
            (x(load), y(value)) for load, value in zip(loads, curve.values, strict=True) if value is not None
        ]
        path = " L".join(f"{across:.1f} {up:.1f}" for across, up in points)
        parts.append(f'<path class="line {curve.kind}" d="M{path}"/>' if points else "")
        parts += [f'<circle class="{curve.kind}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in points]
        if len(curves) > 1:
            end = left + PANEL - 80 * (len(curves) - number - 1)
            name = f'x="{end}" y="42" text-anchor="end">{curve.name}'
            parts.append(f'<text class="{curve.kind}" {name}</text>')
    return parts
