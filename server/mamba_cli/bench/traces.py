"""Traces: recorded arrivals with lengths, read from files of two published formats. Parsing is pure.

Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024) are CSV with wall-clock times; Mooncake
traces (Qin et al., FAST 2025) are JSON lines with times in milliseconds and an id for each 512 prompt tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from mamba_cli.bench.prompts import LoadPrompt, blocks, tokens

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


class TraceError(ValueError):
    """The file is not a trace; the message names the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One recorded request: seconds from the trace's first, lengths in tokens, block ids (Mooncake alone)."""

    at: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def parse(lines: Iterable[str]) -> list[Arrival]:
    """All arrivals in order of time, the first at 0. The format is told by the first line.

    Raises `TraceError`.
    """
    # Editors and spreadsheets put a byte order mark before the first line.
    stripped = (line.removeprefix("\ufeff").strip() for line in lines)
    numbered = [(number, line) for number, line in enumerate(stripped, 1) if line]
    if not numbered:
        raise TraceError("line 1: the file is empty")
    first = numbered[0][1]
    if first.replace(" ", "") == AZURE_HEADER:
        found = [_azure(number, line) for number, line in numbered[1:]]
    elif first.startswith("{"):
        found = [_mooncake(number, line) for number, line in numbered]
    else:
        raise TraceError(f"line 1: neither the header {AZURE_HEADER} nor a JSON object")
    found.sort(key=lambda arrival: arrival.at)
    start = found[0].at if found else 0.0
    return [Arrival(a.at - start, a.input_tokens, a.output_tokens, a.block_ids) for a in found]


def replay(
    arrivals: Iterable[Arrival],
    vocab_size: int,
    *,
    speed: float = 1.0,
    limit: int | None = None,
    max_input: int | None = None,
    max_output: int | None = None,
    seed: int = 0,
) -> Iterator[LoadPrompt]:
    """Prompts with their times, `speed` times faster than recorded, the first `limit` of them.

    `max_input` and `max_output` cut lengths; a cut prompt keeps its beginning, so what is shared stays so.
    Raises ValueError unless the speed is positive.
    """
    if not speed > 0:
        raise ValueError(f"a speed must be positive, not {speed:g}")
    for number, arrival in enumerate(arrivals):
        if limit is not None and number >= limit:
            return
        length = max(1, min(arrival.input_tokens, max_input or arrival.input_tokens))
        output = max(1, min(arrival.output_tokens, max_output or arrival.output_tokens))
        if arrival.block_ids:
            ids = blocks(arrival.block_ids, length, vocab_size, seed=seed)
        else:
            ids = tokens(f"{seed}/trace/{number}", length, vocab_size)
        yield LoadPrompt(ids, output, arrival.at / speed)


def _azure(number: int, line: str) -> Arrival:
    try:
        columns = line.split(",")
        if len(columns) != len(AZURE_HEADER.split(",")):
            raise ValueError(f"{len(columns)} columns, where {AZURE_HEADER} are 3")
        stamp, context, generated = columns
        # Seven digits of fractions in 2023, of which Python reads six; an offset from UTC since 2024.
        at = datetime.fromisoformat(stamp)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return Arrival(at.timestamp(), int(context), int(generated))
    except ValueError as error:
        raise TraceError(f"line {number}: {error}") from None


def _mooncake(number: int, line: str) -> Arrival:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise TraceError(f"line {number}: {error}") from None
    return Arrival(read.timestamp / 1000, read.input_length, read.output_length, read.hash_ids)
