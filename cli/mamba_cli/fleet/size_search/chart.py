"""Draws cost against attainment as SVG: a line for each candidate, a point for each fleet that was tried.

The same answer gives the same file.
"""

from xml.sax.saxutils import escape

from mamba_cli.fleet.size_search.sizing import FleetCandidate, SizingResult
from mamba_cli.fleet.slo import GOAL

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 210, 24, 52
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2", "#3ca951", "#97bbf5")
FONT = "font: 11px sans-serif"
DASHES = ("", "6 3", "2 3")


def chart(answer: SizingResult, hours: float, unit: str) -> str:
    """The SVG. `hours`: for which the fleets run; `unit`: of the cost."""
    drawn = [each for each in answer.candidates if each.tried]
    most = max((_cost(each, run.engines, hours) for each in drawn for run in each.tried), default=1.0)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(cost: float) -> float:
        return round(LEFT + wide * cost / most, 1)

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
        parts.append(_text(x(most * share), HEIGHT - BOTTOM + 16, f"{most * share:.3g}", "middle"))
    parts.append(
        f'<path d="M{LEFT} {y(GOAL)}H{WIDTH - RIGHT}" stroke="grey" stroke-dasharray="4 4"/>'
        + _text(WIDTH - RIGHT + 4, y(GOAL) + 4, f"{GOAL:.0%}", "start")
    )
    kinds = list(dict.fromkeys(each.gpu.name for each in drawn))
    for row, each in enumerate(drawn):
        colour = COLOURS[kinds.index(each.gpu.name) % len(COLOURS)]
        same = [other for other in drawn[:row] if other.gpu.name == each.gpu.name]
        dash = DASHES[len(same) % len(DASHES)]
        at = [(x(_cost(each, run.engines, hours)), y(run.attainment)) for run in each.tried]
        line = " ".join(f"{left},{top}" for left, top in at)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
        for run, (left, top) in zip(each.tried, at, strict=True):
            best = each is answer.chosen and run is each.served
            parts.append(
                f'<circle cx="{left}" cy="{top}" r="{6 if best else 3}" fill="{colour}">'
                f"<title>{_name(each)}: {run.engines} engines, {run.attainment:.1%}</title></circle>"
            )
        top = TOP + 30 + 16 * row
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 16} {top}h24" stroke="{colour}" stroke-dasharray="{dash}"/>'
            + _text(WIDTH - RIGHT + 46, top + 4, _name(each), "start", bold=each is answer.chosen)
        )
    return "\n".join([*parts, "</svg>", ""])


def _cost(each: FleetCandidate, engines: int, hours: float) -> float:
    return engines * hours * each.price


def _name(each: FleetCandidate) -> str:
    return escape(f"{each.gpu.name} {each.strategy}")


def _text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
