"""Draws cost against attainment as SVG: a line for each candidate, a point for each simulated fleet.

The same result gives the same file.
"""

from xml.sax.saxutils import escape

from mamba_cli.fleet.size_search.sizing import FleetCandidate, SizingResult
from mamba_cli.fleet.slo import GOAL

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 210, 24, 52
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2", "#3ca951", "#97bbf5")
FONT = "font: 11px sans-serif"
DASHES = ("", "6 3", "2 3")


def chart(result: SizingResult, hours: float, unit: str) -> str:
    """Return the SVG for fleets that run for `hours`; `unit` labels the axis of the cost."""
    drawn = [candidate for candidate in result.candidates if candidate.runs]
    highest_cost = max((_cost(c, run.engines, hours) for c in drawn for run in c.runs), default=1.0)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(cost: float) -> float:
        return round(LEFT + wide * cost / highest_cost, 1)

    def y(attainment: float) -> float:
        return round(TOP + high * (1 - attainment), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{FONT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>',
        _text(LEFT + wide / 2, HEIGHT - 12, unit, "middle"),
        _text(LEFT, 14, "requests within the SLO", "start"),
    ]
    for step in range(5):
        share = step / 4
        parts.append(_text(LEFT - 6, y(share) + 4, f"{share:.0%}", "end"))
        cost = highest_cost * share
        parts.append(_text(x(cost), HEIGHT - BOTTOM + 16, f"{cost:.3g}", "middle"))
    parts.append(
        f'<path d="M{LEFT} {y(GOAL)}H{WIDTH - RIGHT}" stroke="grey" stroke-dasharray="4 4"/>'
        + _text(WIDTH - RIGHT + 4, y(GOAL) + 4, f"{GOAL:.0%}", "start")
    )
    kinds = list(dict.fromkeys(candidate.gpu.name for candidate in drawn))
    for row, candidate in enumerate(drawn):
        colour = COLOURS[kinds.index(candidate.gpu.name) % len(COLOURS)]
        same = [other for other in drawn[:row] if other.gpu.name == candidate.gpu.name]
        dash = DASHES[len(same) % len(DASHES)]
        points = [(x(_cost(candidate, run.engines, hours)), y(run.attainment)) for run in candidate.runs]
        line = " ".join(f"{left},{top}" for left, top in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
        for run, (left, top) in zip(candidate.runs, points, strict=True):
            best = candidate is result.chosen and run is candidate.served
            parts.append(
                f'<circle cx="{left}" cy="{top}" r="{6 if best else 3}" fill="{colour}">'
                f"<title>{_name(candidate)}: {run.engines} engines, {run.attainment:.1%}</title></circle>"
            )
        top = TOP + 30 + 16 * row
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 16} {top}h24" stroke="{colour}" stroke-dasharray="{dash}"/>'
            + _text(WIDTH - RIGHT + 46, top + 4, _name(candidate), "start", bold=candidate is result.chosen)
        )
    return "\n".join([*parts, "</svg>", ""])


def _cost(candidate: FleetCandidate, engines: int, hours: float) -> float:
    return engines * hours * candidate.price


def _name(candidate: FleetCandidate) -> str:
    return escape(f"{candidate.gpu.name} {candidate.strategy}")


def _text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
