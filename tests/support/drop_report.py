"""Report of a course of disruptions: JSON, Markdown, and a picture of its time.

JSON, Markdown, and a picture of its time.

The picture is made here: bands for the phases, a bar for the requests that ended in each second, red where
one failed, and a dot for the longest wait for a first piece among them.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.cache.record import write as write_record

from disruptions import Course, Request

WIDTH, LEFT, TOP, HEIGHT, ROW = 1100, 50, 20, 180, 16
COLORS = ("#dbe7f3", "#eee3cf")


def write(course: Course, folder: Path, **load: float) -> list[Path]:
    """Write the three files and return their paths."""
    record = summary(course, **load)
    path = write_record("zero-drop", record, markdown(record), folder)
    picture = path.with_suffix(".svg")
    picture.write_text(svg(course), encoding="utf-8")
    return [path, path.with_suffix(".md"), picture]


def summary(course: Course, **load: float) -> dict[str, Any]:
    """Return the numbers of the whole run and of each phase; times in seconds from the first request on."""
    start = min(one.begin for one in course.requests)
    phases = [
        {
            "phase": phase.name,
            "begin": round(phase.begin - start, 1),
            "seconds": round(phase.end - phase.begin, 1),
            **_counts(one for one in course.requests if one.begin <= phase.end and phase.begin <= one.end),
        }
        for phase in course.phases
    ]
    seconds = max(one.end for one in course.requests) - start
    return {
        "load": load,
        "seconds": round(seconds, 1),
        **_counts(course.requests),
        "phases": phases,
        "failures": course.failures,
        "broken": course.broken,
    }


def _counts(requests: Iterable[Request]) -> dict[str, Any]:
    counted = list(requests)
    waits = sorted(one.first - one.begin for one in counted if one.first is not None)
    return {
        "requests": len(counted),
        "streamed": sum(one.streamed for one in counted),
        "failed": sum(one.error is not None for one in counted),
        "first_piece_p50": round(median(waits), 3) if waits else None,
        "first_piece_p99": round(quantiles(waits, n=100)[-1], 3) if len(waits) > 1 else None,
        "first_piece_max": round(waits[-1], 3) if waits else None,
    }


def markdown(found: dict[str, Any]) -> list[str]:
    """Return the lines below the header. A request counts in every phase that it saw."""
    load, seconds = found["load"], found["seconds"]
    lines = [
        f"- **{found['failed']} of {found['requests']} requests failed**, in {seconds:.0f} s",
        f"- {found['streamed']} of them were streamed",
        f"- {load['streams']:g} at once, {load['rate']:g} requests in a second at most;",
        "  the official `openai` client, which never asks twice; each answer compared with the right one",
        "",
        "| phase | begin | seconds | requests | failed | first piece p50 | p99 | longest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    whole = {"phase": "the whole run", "begin": 0.0, **{k: found[k] for k in found if k != "phases"}}
    lines += [_row(row) for row in [*found["phases"], whole]]
    if found["broken"]:
        lines += ["", f"The course ended early: {found['broken']}"]
    if found["failed"]:
        lines += ["", "Failures:", "", *(f"- {one}" for one in found["failures"])]
    return lines


def _row(row: dict[str, Any]) -> str:
    keys = ("phase", "begin", "seconds", "requests", "failed", "first_piece_p50", "first_piece_p99")
    return "| " + " | ".join(str(row[key]) for key in (*keys, "first_piece_max")) + " |"


def svg(course: Course) -> str:
    """Return the picture of the run's time."""
    start = min(one.begin for one in course.requests)
    seconds = max(1.0, max(one.end for one in course.requests) - start)
    scale = (WIDTH - LEFT - 10) / seconds
    bars: dict[int, list[Request]] = {}
    for one in course.requests:
        bars.setdefault(int(one.end - start), []).append(one)
    most = max(map(len, bars.values()))
    longest = max([one.first - one.begin for one in course.requests if one.first] or [1.0])
    bottom = TOP + HEIGHT
    out = [_text(LEFT - 6, TOP + 8, f"{most}/s", "end"), _text(LEFT - 6, bottom, "0", "end")]
    rows = {name: number for number, name in enumerate(dict.fromkeys(one.name for one in course.phases))}
    labels = []
    for phase in course.phases:
        row = rows[phase.name]
        x, width = LEFT + (phase.begin - start) * scale, max(1.0, (phase.end - phase.begin) * scale)
        below = bottom + ROW * (row + 1)
        out.append(_rect(x, TOP, width, HEIGHT, COLORS[row % 2]))
        out.append(_rect(x, below - 10, width, 10, "#9a9a9a"))
        first = next(one for one in course.phases if one.name == phase.name) is phase
        if first and x < WIDTH / 2:
            labels.append(_text(x + width + 4, below - 1, phase.name, "start"))
        elif first:
            labels.append(_text(x - 4, below - 1, phase.name, "end"))
    out += labels
    for second, ended in sorted(bars.items()):
        x, width = LEFT + second * scale, max(0.8, scale)
        failed = sum(one.error is not None for one in ended)
        high = HEIGHT * len(ended) / most
        out.append(_rect(x, bottom - high, width, high, "#4878a8"))
        if failed:
            out.append(_rect(x, TOP, max(2.0, width), HEIGHT, "#d02020"))
        waits = [one.first - one.begin for one in ended if one.first]
        if waits:
            y = bottom - HEIGHT * max(waits) / longest
            out.append(f'<circle cx="{x + width / 2:.1f}" cy="{y:.1f}" r="1.5" fill="#b06000"/>')
    end = bottom + ROW * (len(rows) + 2)
    failed = len(course.failures)
    legend = (
        f"{len(course.requests)} requests in {seconds:.0f} s, {failed} failed; blue: ended in each second; "
        f"orange: longest wait for a first piece, up to {longest:.1f} s; red: failed"
    )
    out.append(_text(LEFT, end, legend, "start"))
    size = f'width="{WIDTH}" height="{end + 10}" viewBox="0 0 {WIDTH} {end + 10}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{end + 10}" fill="white"/>', *out, "</svg>\n"])


def _rect(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
