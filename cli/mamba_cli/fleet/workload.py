"""`RequestStream`: requests of a simulation, from a recorded trace that is scaled, repeated or reshaped.

The times between requests of the trace are kept, so bursts stay as sharp: more load means more users who
send at about the same moments, each with prefixes of their own. Pure, and deterministic by seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from mamba_cli.bench.trace_units import TraceUnits
from mamba_cli.bench.traces import MOONCAKE, Arrival, Format, parse
from mamba_cli.fleet.prompt_blocks import numbered, usable

SPREAD = 10.0
"""Largest delay in seconds of a request of an added user."""
PLAIN_BLOCK = 256
"""Tokens of a page if the trace does not say which prompts share a prefix."""
RateShape = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The arrivals of a trace in order of time; each of their block ids stands for `block` tokens."""

    name: str
    block: int
    arrivals: list[Arrival]


@dataclass(frozen=True, slots=True)
class RequestStream:
    """The requests that a simulation gets, in order of time."""

    workload: TraceWorkload
    identity: bool
    """Whether the trace says which prompts share a prefix."""
    left_out: int = 0
    """Number of requests of the trace without a prompt, or with block ids that do not fit the prompt."""

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last arrival."""
        return self.workload.arrivals[-1].at if self.workload.arrivals else 0.0


def read(path: Path, expected: Format | None = None, units: TraceUnits = MOONCAKE) -> RequestStream:
    """Read a recorded trace.

    Raises:
        TraceError: The trace is malformed; the message names the line.
        OSError: The file cannot be read.
    """
    with path.open(encoding="utf-8") as lines:
        arrivals = parse(lines, units, expected)
    identity = any(arrival.block_ids for arrival in arrivals)
    if identity:
        block, played = units.block, numbered(usable(arrivals, units.block), units.block)
    else:
        block, played = PLAIN_BLOCK, [a for a in arrivals if a.input_tokens > 0]
    return RequestStream(TraceWorkload(path.stem, block, played), identity, len(arrivals) - len(played))


def flat(at: float) -> float:
    """Return the constant rate 1."""
    del at
    return 1.0


def scaled(
    stream: RequestStream,
    scale: float = 1.0,
    hours: float | None = None,
    shape: RateShape = flat,
    seed: int = 0,
) -> RequestStream:
    """Return a stream with `scale * shape(time)` requests, on average, for each request of the trace.

    With `hours`, the trace is repeated or cut to that length. Prefixes are shared within a
    repetition and not between repetitions. Equal seeds give equal streams.

    Raises:
        ValueError: `scale` or `hours` is not positive.
    """
    if not scale > 0 or not (hours is None or hours > 0):
        raise ValueError("load scale and hours must be positive")
    rng = Random(f"fleet {seed}")
    ids = 1 + max((max(a.block_ids) for a in stream.workload.arrivals if a.block_ids), default=0)
    whole = stream.seconds + 1.0
    until = hours * 3600 if hours is not None else whole
    arrivals: list[Arrival] = []
    for round_number in range(math.ceil(until / whole)):
        for arrival in stream.workload.arrivals:
            at = round_number * whole + arrival.at
            if at >= until:
                break
            expected = scale * shape(at)
            copies = int(expected) + (rng.random() < expected % 1)
            for copy in range(copies):
                moved = at + (rng.random() * SPREAD if copy else 0.0)
                arrivals.append(
                    replace(arrival, at=moved, block_ids=_of_user(arrival.block_ids, ids, round_number, copy))
                )
    arrivals.sort(key=lambda arrival: arrival.at)
    return RequestStream(
        TraceWorkload(stream.workload.name, stream.workload.block, numbered(arrivals, stream.workload.block)),
        stream.identity,
    )


def _of_user(block_ids: tuple[int, ...], ids: int, round_number: int, copy: int) -> tuple[int, ...]:
    offset = ids * (round_number * 1000 + copy)
    return tuple(block_id + offset for block_id in block_ids) if offset else block_ids


def spliced(stream: RequestStream, seconds: float, seed: int = 0) -> RequestStream:
    """Return the same requests with pieces of `seconds` seconds in another order, so that bursts move.

    Shared prefixes are still shared in the new order.

    Raises:
        ValueError: `seconds` is not positive.
    """
    if not seconds > 0:
        raise ValueError("the pieces must be longer than 0 seconds")
    order = list(range(int(stream.seconds / seconds) + 1))
    Random(f"splice {seed}").shuffle(order)
    pieces: list[list[Arrival]] = [[] for _ in order]
    for arrival in stream.workload.arrivals:
        pieces[int(arrival.at / seconds)].append(arrival)
    begin, arrivals = 0.0, list[Arrival]()
    for piece in order:
        arrivals += [replace(a, at=begin + a.at - piece * seconds) for a in pieces[piece]]
        # The last piece of the trace may be shorter.
        begin += min(seconds, stream.seconds - piece * seconds)
    arrivals = numbered(arrivals, stream.workload.block)
    return replace(stream, workload=replace(stream.workload, arrivals=arrivals))


def busiest(stream: RequestStream, requests: int) -> RequestStream:
    """Return the `requests` consecutive requests with the most tokens per second, moved to start at 0.

    A stream with no more requests is returned whole. Consecutive requests keep the rate, the bursts
    and the shared prefixes of the trace; a random sample would not.
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
