"""A session at a terminal as SVG, from the screens of a tutorial, which a test runs and compares. Pure."""

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

LINE, TOP, LEFT, WIDTH = 17, 46, 18, 860
COLUMNS = 98
STYLE = """
  .window { fill: #0d1117; stroke: #30363d } .bar { fill: #161b22 } .light { fill: #484f58 }
  text { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre }
  .prompt { fill: #2fb8a3 } .typed { fill: #ffffff; font-weight: bold }
"""
_SCREEN = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def session(page: str, left_out: Sequence[str] = ()) -> list[str]:
    """Return the lines of all screens of a page, without those whose command begins so."""
    lines = []
    for block in _SCREEN.findall(page):
        if block.startswith(tuple(f"$ {start}" for start in left_out)):
            continue
        lines += [*block.rstrip().splitlines(), ""]
    return lines[:-1]


def wrapped(lines: Sequence[str]) -> list[str]:
    """Return the lines, cut where a terminal of this width would begin a new one."""
    return [
        line[start : start + COLUMNS]
        for line in lines
        for start in range(0, max(1, len(line)), COLUMNS)
    ]  # fmt: skip


def picture(title: str, lines: Sequence[str]) -> str:
    """Return the drawing of a terminal that shows the lines."""
    rows = wrapped(lines)
    height = TOP + LINE * len(rows) + 8
    parts = [
        f'<rect class="window" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
        f'<rect class="bar" x="1" y="1" width="{WIDTH - 2}" height="26" rx="8"/>',
        *(f'<circle class="light" cx="{18 + 18 * place}" cy="14" r="5"/>' for place in range(3)),
    ]
    for number, row in enumerate(rows):
        y = TOP + LINE * number
        if row.startswith("$ "):
            shown = f'<tspan class="prompt">$ </tspan><tspan class="typed">{escape(row[2:])}</tspan>'
        else:
            shown = escape(row)
        parts.append(f'<text x="{LEFT}" y="{y}" xml:space="preserve">{shown}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
    )
    body = "\n".join(parts)
    return f"{head}\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
