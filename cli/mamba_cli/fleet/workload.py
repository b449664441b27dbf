"""`RequestStream`: requests of a simulation, from a recorded trace that is scaled, repeated or reshaped.
Pure.

The times between requests of the trace are kept, so bursts stay as sharp: more load is more users who send
at about the same moments, each with prefixes of their own. Deterministic by seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from mamba_cli.bench.trace_units import TraceUnits
from mamba_cli.bench.traces import MOONCAKE, Arrival, TraceError, parse
from mamba_cli.fleet.prompt_blocks import numbered, usable

Format = Literal["mooncake", "azure"]
SPREAD = 10.0
"""Seconds by which the requests of added users are moved at most."""
PLAIN_BLOCK = 256
"""Tokens of a page where a trace does not say which prompts share their beginning."""
RateShape = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """`arrivals` in order of time; their block ids stand for `block` tokens each."""

    name: str
    block: int
    arrivals: list[Arrival]


@dataclass(frozen=True, slots=True)
class RequestStream:
    """The requests of a simulation, in order of time."""

    workload: TraceWorkload
    identity: bool
    """The trace says which prompts begin alike."""
    left_out: int = 0
    """Requests of the trace that are not among them: without a prompt, or whose ids do not fit it."""

    @property
    def seconds(self) -> float:
        """From the start to the last arrival."""
        return self.workload.arrivals[-1].at if self.workload.arrivals else 0.0


def read(path: Path, expected: Format | None = None, units: TraceUnits = MOONCAKE) -> RequestStream:
    """Read a recorded trace. Raises `TraceError`, which names the line, and `OSError`."""
    with path.open(encoding="utf-8") as lines:
        arrivals = parse(lines, units)
    identity = any(arrival.block_ids for arrival in arrivals)
    found: Format = "mooncake" if identity else "azure"
    if expected is not None and expected != found:
        raise TraceError(f"its format is {found}, not {expected}: say --format {found}")
    if identity:
        block, played = units.block, numbered(usable(arrivals, units.block), units.block)
    else:
        block, played = PLAIN_BLOCK, [a for a in arrivals if a.input_tokens > 0]
    return RequestStream(TraceWorkload(path.stem, block, played), identity, len(arrivals) - len(played))


def flat(at: float) -> float:
    """The same at all times."""
    del at
    return 1.0


def scaled(
    stream: RequestStream,
    scale: float = 1.0,
    hours: float | None = None,
    shape: RateShape = flat,
    seed: int = 0,
) -> RequestStream:
    """`scale * shape(time)` requests for each of the trace, on average.

    With `hours` the trace is played again and again for so long (a shorter time cuts it); what it shares with
    itself is not shared between rounds. Raises ValueError unless `scale` and `hours` are positive.
    """
    if not scale > 0 or not (hours is None or hours > 0):
        raise ValueError("load scale and hours must be positive")
    rng = Random(f"fleet {seed}")
    ids = 1 + max((max(a.block_ids) for a in stream.workload.arrivals if a.block_ids), default=0)
    whole = stream.seconds + 1.0
    until = hours * 3600 if hours is not None else whole
    made: list[Arrival] = []
    for round_number in range(math.ceil(until / whole)):
        for arrival in stream.workload.arrivals:
            at = round_number * whole + arrival.at
            if at >= until:
                break
            expected = scale * shape(at)
            copies = int(expected) + (rng.random() < expected % 1)
            for copy in range(copies):
                moved = at + (rng.random() * SPREAD if copy else 0.0)
                made.append(
                    replace(arrival, at=moved, block_ids=_of_user(arrival.block_ids, ids, round_number, copy))
                )
    made.sort(key=lambda arrival: arrival.at)
    return RequestStream(
        TraceWorkload(stream.workload.name, stream.workload.block, numbered(made, stream.workload.block)),
        stream.identity,
    )


def _of_user(block_ids: tuple[int, ...], ids: int, round_number: int, copy: int) -> tuple[int, ...]:
    offset = ids * (round_number * 1000 + copy)
    return tuple(each + offset for each in block_ids) if offset else block_ids


def spliced(stream: RequestStream, seconds: float, seed: int = 0) -> RequestStream:
    """The same requests with pieces of so many seconds in another order: its bursts at other times.

    What was shared is still shared, in the new order. Raises ValueError unless `seconds` is positive.
    """
    if not seconds > 0:
        raise ValueError("a piece must take some time")
    order = list(range(int(stream.seconds / seconds) + 1))
    Random(f"splice {seed}").shuffle(order)
    pieces: list[list[Arrival]] = [[] for _ in order]
    for arrival in stream.workload.arrivals:
        pieces[int(arrival.at / seconds)].append(arrival)
    begin, made = 0.0, list[Arrival]()
    for piece in order:
        made += [replace(each, at=begin + each.at - piece * seconds) for each in pieces[piece]]
        # The last one of the trace may be shorter.
        begin += min(seconds, stream.seconds - piece * seconds)
    return replace(stream, workload=replace(stream.workload, arrivals=numbered(made, stream.workload.block)))


def busiest(stream: RequestStream, requests: int) -> RequestStream:
    """The part of so many requests, one after the other, with the most tokens a second; from 0 on.

    All of it if there are no more. A part keeps the rate, the bursts and the shared beginnings of its time,
    which requests drawn here and there would not.
    """
    arrivals = stream.workload.arrivals
    if len(arrivals) <= requests:
        return stream
    tokens = [0]
    for arrival in arrivals:
        tokens.append(tokens[-1] + arrival.input_tokens + arrival.output_tokens)

    def rate(first: int) -> float:
        last = first + requests - 1
        return (tokens[last + 1] - tokens[first]) / max(arrivals[last].at - arrivals[first].at, 1e-3)

    first = max(range(len(arrivals) - requests + 1), key=rate)
    part = arrivals[first : first + requests]
    moved = [replace(arrival, at=arrival.at - part[0].at) for arrival in part]
    return replace(stream, workload=replace(stream.workload, arrivals=numbered(moved, stream.workload.block)))
