"""Pictures of results: an arena over time, routing beside load alone, and a fleet over time. Pure."""

from typing import Any

from benchmarks.pictures.drawing import (
    Frame,
    areas,
    axes,
    bars,
    document,
    legend,
    round_steps,
    steps,
    text,
)  # fmt: skip

SHARES = ("running", "resumable", "useless", "stranded", "free")
SHOWN = {"running": "running", "resumable": "resumable", "useless": "no checkpoint needs it",
         "stranded": "stranded", "free": "free"}  # fmt: skip
WORKLOADS = {"retrieval": "retrieval", "chat": "chats", "mooncake_fast25_synthetic": "Mooncake's trace",
             "documents": "documents", "agents": "agents"}  # fmt: skip
WAYS = {"load": "by load alone", "attention": "by the longest prefix", "resumable": "mambaserve"}


def arena(result: dict[str, Any]) -> str:
    """Return the picture of what an arena holds as requests come, an area for each share."""
    samples = result["samples"]
    places = [float(sample["request"]) for sample in samples]
    frame = Frame(64, 62, 760, 230, places[-1], 100)
    marks = [(mark, f"{mark:,.0f}") for mark in round_steps(places[-1]) if mark <= places[-1]]
    parts = axes(frame, "Share of the arena's bytes, in percent, as requests arrive", round_steps(100), marks)
    layers = [[100 * float(sample[name]) for sample in samples] for name in SHARES]
    parts += areas(frame, places, layers)
    parts += legend(frame.left, frame.top - 10, [SHOWN[name] for name in SHARES])
    parts.append(text(frame.left + frame.width / 2, frame.top + frame.height + 38, "requests"))
    return document(860, 350, "What an arena holds while short chats and long documents take turns", parts)


def routing(result: dict[str, Any]) -> str:
    """Return the picture of computed tokens by workload and way of routing, means over the seeds."""

    def mean(workload: str, way: str) -> float:
        rows = [row for row in result["rows"] if (row["workload"], row["knowledge"]) == (workload, way)]
        return float(sum(row["relative"] for row in rows) / len(rows))

    groups = [[mean(workload, way) for way in WAYS] for workload in WORKLOADS]
    ups = round_steps(max(max(group) for group in groups))
    frame = Frame(64, 62, 760, 230, len(groups), ups[-1])
    marks = [(place + 0.5, name) for place, name in enumerate(WORKLOADS.values())]
    parts = axes(frame, "Prompt tokens that four engines compute, to one with the memory of all", ups, marks)
    kinds = ("b", "d", "a")
    parts += bars(frame, groups, kinds) + legend(frame.left, frame.top - 10, list(WAYS.values()), kinds)
    return document(860, 330, "Routing by load alone computes up to twice as much", parts)


def scaling(result: dict[str, Any]) -> str:
    """Return the picture of an autoscaled fleet over time, below the requests that it gets."""
    unit, name = (3600, "hours") if result["hours"] else (60, "minutes")
    until = result["seconds"] / unit
    asked = [(at / unit, number) for at, number in result["asked"]]
    ready = [(at / unit, number) for at, number in result["ready"]]
    rates = result["requests_per_second"]
    marks = [(mark, f"{mark:g}") for mark in round_steps(until) if mark <= until * 1.001]
    ups = round_steps(max(rates))
    above = Frame(64, 40, 760, 110, until, ups[-1])
    places = [(number + half) * until / len(rates) for number in range(len(rates)) for half in (0, 1)]
    parts = axes(above, "Requests per second", ups, marks)
    parts += areas(above, places, [[rate for rate in rates for _ in range(2)]], ("d",))
    most = max(result["fixed"], *(number for _, number in asked + ready))
    ups = [float(number) for number in range(0, most + 2, 1 + most // 8)]
    below = Frame(64, 242, 760, 150, until, ups[-1])
    parts += axes(below, "Engines", ups, marks)
    parts.append(steps(below, [(0, result["fixed"])], "c dashed"))
    parts += [steps(below, asked, "b"), steps(below, ready, "a")]
    parts += legend(
        below.left,
        below.top - 10,
        ("the operator asks for", "ready", "cheapest fixed fleet"),
        ("b", "a", "c"),
    )
    parts.append(text(below.left + below.width / 2, below.top + below.height + 38, name))
    return document(
        860, 450, "How many engines an hour of traffic gets, from one engine at its beginning", parts
    )
