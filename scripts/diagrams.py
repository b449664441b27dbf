"""Draws the diagrams of the documentation as SVG files in docs/assets, for light and dark pages.

`make docs` runs it; `--check` writes nothing and fails on drift, for tests.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ASSETS = Path(__file__).resolve().parent.parent / "docs/assets"
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #24292f; text-anchor: middle }
  .small { font-size: 12px; fill: #57606a } .box { fill: #e6f5f2; stroke: #0b8a78; stroke-width: 1.5 }
  .outside { fill: #f6f8fa; stroke: #8c959f } .line { stroke: #57606a; stroke-width: 1.5; fill: none }
  .dashed { stroke-dasharray: 5 4 } .life { stroke: #8c959f; stroke-dasharray: 2 4 } .head { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .box { fill: #10332e; stroke: #2fb8a3 }
    .outside { fill: #21262d; stroke: #6e7681 } .line { stroke: #9198a1 } .head { fill: #9198a1 }
  }
"""
HEAD = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
MARKER = f'<defs>{HEAD}<path class="head" d="M0 0 L8 4 L0 8 Z"/></marker></defs>'


@dataclass(frozen=True)
class Box:
    """A box with a name and, below it, a line of explanation. The place is that of its centre."""

    name: str
    x: int
    y: int
    about: str = ""
    kind: str = "box"
    width: int = 150
    height: int = 50

    def svg(self) -> str:
        """Return the elements of the box."""
        left, top = self.x - self.width // 2, self.y - self.height // 2
        shape = f'<rect class="box {self.kind}" x="{left}" y="{top}" rx="8" '
        shape += f'width="{self.width}" height="{self.height}"/>'
        text = label(self.x, self.y + (5 if not self.about else -3), self.name)
        return shape + text + (label(self.x, self.y + 15, self.about, "small") if self.about else "")


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a centred line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def arrow(points: list[tuple[int, int]], kind: str = "") -> str:
    """Return a line through the points with a head at its end."""
    path = " L".join(f"{x} {y}" for x, y in points)
    return f'<path class="line {kind}" marker-end="url(#head)" d="M{path}"/>'


def document(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a whole SVG file."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    )
    body = "\n".join(parts)
    return f"{opening}\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{MARKER}\n{body}\n</svg>\n"


def architecture() -> str:
    """Return the diagram of the platform's parts."""
    client = Box("client", 85, 45, "OpenAI or Anthropic", "outside")
    gateway = Box("gateway", 310, 45, "routes to the prefix")
    engines = [Box("engine", 550, 45, "cache and model"), Box("engine", 550, 125, "cache and model")]
    user = Box("kubectl apply", 85, 205, "one YAML", "outside")
    operator = Box("operator", 310, 205, "reconciles, scales")
    planner = Box("planner", 550, 205, "strategy and memory")
    parts = [box.svg() for box in (client, gateway, *engines, user, operator, planner)]
    parts += [
        arrow([(160, 45), (234, 45)]), arrow([(385, 45), (474, 45)]), arrow([(385, 58), (474, 118)]),
        arrow([(160, 205), (234, 205)]), arrow([(310, 180), (310, 71)]), arrow([(385, 195), (474, 136)]),
        arrow([(474, 205), (386, 205)], "dashed"), arrow([(550, 180), (550, 151)], "dashed"),
        arrow([(626, 52), (655, 52), (655, 118), (626, 118)]), label(700, 80, "states", "small"),
        label(700, 96, "travel", "small"),
    ]  # fmt: skip
    return document(740, 250, "Clients ask a gateway, which routes to engines; an operator runs both", parts)


def sequence(title: str, left: str, right: str, steps: list[tuple[str, str]]) -> str:
    """Return a diagram of messages between two parties.

    Args:
        title: what the diagram shows.
        left: name of the party on the left.
        right: name of the other party.
        steps: (`>`, message to the right), (`<`, message to the left), or (`|`, what the right party does).
    """
    x1, x2, y, step = 110, 530, 40, 42
    bottom = y + step * (len(steps) + 1)
    parts = [f'<path class="life" d="M{x} {y + 25} L{x} {bottom}"/>' for x in (x1, x2)]
    parts += [Box(left, x1, y).svg(), Box(right, x2, y).svg()]
    for number, (direction, text) in enumerate(steps, 1):
        at = y + 30 + number * step
        if direction == "|":
            parts.append(Box(text, x2, at - 8, kind="outside", width=210, height=26).svg())
            continue
        ends = [(x1 + 4, at), (x2 - 4, at)]
        parts.append(arrow(ends if direction == ">" else ends[::-1], "" if direction == ">" else "dashed"))
        parts.append(label((x1 + x2) / 2, at - 7, text))
    return document(650, bottom + 10, title, parts)


def fetch() -> str:
    """Return the diagram of one fetch of a state."""
    return sequence(
        "One fetch of a state, message by message", "reader", "source",
        [
            (">", "Hello (incarnation, layout, transport)"),
            ("<", "Welcome (layout), or Refuse (field), or Expired"),
            (">", "Fetch (export or prefix, depth, base)"),
            ("|", "the export is locked"),
            ("<", "Offer (depth, base, length, lease), or Expired"),
            ("<", "the bytes of the bundle"),
            ("<", "Checksums"),
            (">", "Done"),
            ("|", "the export is unlocked"),
            ("<", "Valid, or Expired"),
        ],
    )  # fmt: skip


def export_life() -> str:
    """Return the diagram of the life of an export."""
    leased, opened = Box("Leased", 140, 90), Box("Open", 390, 90)
    ended = Box("Ended", 390, 215, kind="outside")
    parts = [box.svg() for box in (leased, opened, ended)]
    parts += [
        arrow([(140, 30), (140, 64)]), label(140, 22, "exported for a hand-over", "small"),
        arrow([(390, 30), (390, 64)]), label(390, 22, "Fetch of a prefix", "small"),
        arrow([(215, 90), (314, 90)]), label(265, 82, "Fetch", "small"),
        arrow([(140, 115), (140, 215), (314, 215)]), label(228, 207, "lease over, released,", "small"),
        label(228, 232, "or named in an Abort", "small"),
        arrow([(390, 115), (390, 189)]),
        label(500, 148, "Done, Abort, end of the", "small"),
        label(500, 164, "connection, or lease over", "small"),
    ]  # fmt: skip
    return document(600, 250, "The life of an export: leased, open, ended", parts)


DIAGRAMS = {"architecture": architecture, "transfer-fetch": fetch, "transfer-export": export_life}


def main() -> int:
    """Write the files, or with --check return 1 if one differs from what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")
    check = parser.parse_args().check
    stale = 0
    for name, draw in DIAGRAMS.items():
        path = ASSETS / f"{name}.svg"
        if path.is_file() and path.read_text(encoding="utf-8") == draw():
            continue
        if check:
            print(f"{path} is stale: run make docs", file=sys.stderr)
            stale = 1
        else:
            path.write_text(draw(), encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
