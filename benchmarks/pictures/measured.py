"""Pictures of results: an arena over time, and routing beside load alone. Pure."""

from typing import Any

from benchmarks.pictures.drawing import (
    Frame,
    areas,
    axes,
    bars,
    document,
    legend,
    round_steps,
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
