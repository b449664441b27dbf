"""`Arrival`: the recorded requests of a trace, read from files of two published formats. Pure.

Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024) are CSV with wall-clock times; Mooncake
traces (Qin et al., FAST 2025) are JSON lines with times in milliseconds and an id for each 512 prompt tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec

from mamba_cli.bench.prompts import LoadPrompt, blocks, tokens
from mamba_cli.bench.trace_units import BLOCK_TOKENS, TraceUnits

MOONCAKE = TraceUnits()
Format = Literal["mooncake", "azure"]
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


class TraceError(ValueError):
    """The file is not a trace; the message names the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recorded request: seconds after the first of the trace, lengths in tokens, block ids of Mooncake."""

    at: float
    """Seconds after the first arrival."""
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    """Identifiers of the blocks of tokens that the prompt consists of; empty = the trace has none."""


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def parse(
    lines: Iterable[str], units: TraceUnits = MOONCAKE, expected: Format | None = None
) -> list[Arrival]:
    """Read all arrivals in order of time, the first at 0. The first line determines the format.

    `units` apply to a trace with hash_ids. Raises `TraceError`, also where most lines contradict the units,
    and where the format is not the `expected` one.
    """
    # Editors and spreadsheets put a byte order mark before the first line.
    stripped = (line.removeprefix("\ufeff").strip() for line in lines)
    numbered = [(number, line) for number, line in enumerate(stripped, 1) if line]
    if not numbered:
        raise TraceError("line 1: the file is empty")
    format_ = _format_of(numbered[0][1])
    if expected is not None and expected != format_:
        raise TraceError(f"its format is {format_}, not {expected}: use --format {format_}")
    if format_ == "azure":
        arrivals = [_azure(number, line) for number, line in numbered[1:]]
    else:
        arrivals = _all_mooncake(numbered, units)
    arrivals.sort(key=lambda arrival: arrival.at)
    start = arrivals[0].at if arrivals else 0.0
    return [Arrival(a.at - start, a.input_tokens, a.output_tokens, a.block_ids) for a in arrivals]


def _format_of(first: str) -> Format:
    if first.replace(" ", "") == AZURE_HEADER:
        return "azure"
    if first.startswith("{"):
        return "mooncake"
    raise TraceError(f"line 1: is neither the header {AZURE_HEADER} nor a JSON object")


def replay(
    arrivals: Iterable[Arrival],
    vocab_size: int,
    *,
    speed: float = 1.0,
    limit: int | None = None,
    max_input: int | None = None,
    max_output: int | None = None,
    block: int = BLOCK_TOKENS,
    seed: int = 0,
) -> Iterator[LoadPrompt]:
    """Yield the first `limit` prompts with their times, `speed` times faster than recorded.

    Args:
        arrivals: recorded requests.
        vocab_size: token ids are below this number.
        speed: factor by which the replay is faster.
        limit: most requests; None = all.
        max_input: longest prompt in tokens; a cut prompt keeps its beginning, and so its shared prefix.
        max_output: longest answer in tokens.
        block: tokens of one block id.
        seed: equal seeds give equal prompts.

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
            ids = blocks(arrival.block_ids, length, vocab_size, block_size=block, seed=seed)
        else:
            ids = tokens(f"{seed}/trace/{number}", length, vocab_size)
        yield LoadPrompt(ids, output, arrival.at / speed)


def _azure(number: int, line: str) -> Arrival:
    try:
        columns = line.split(",")
        if len(columns) != len(AZURE_HEADER.split(",")):
            raise ValueError(f"has {len(columns)} columns instead of the 3 of {AZURE_HEADER}")
        stamp, context, generated = columns
        # Timestamps have seven decimals in 2023, of which Python reads six, and a UTC offset since 2024.
        time = datetime.fromisoformat(stamp)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return Arrival(time.timestamp(), int(context), int(generated))
    except ValueError as error:
        raise TraceError(f"line {number}: {error}") from None


def _all_mooncake(numbered: list[tuple[int, str]], units: TraceUnits) -> list[Arrival]:
    arrivals = [_mooncake(number, line, units) for number, line in numbered]
    mismatches = [
        (number, units.mismatch(arrival.input_tokens, len(arrival.block_ids)))
        for (number, _), arrival in zip(numbered, arrivals, strict=True)
        if arrival.block_ids
    ]
    # A single line may be cut, so only a majority of lines shows that the units are wrong.
    wrong = [(number, problem) for number, problem in mismatches if problem is not None]
    if len(wrong) > len(mismatches) / 2:
        raise TraceError(f"line {wrong[0][0]}: {wrong[0][1]}")
    if problem := units.implausible(sorted(arrival.at for arrival in arrivals)):
        raise TraceError(problem)
    return arrivals


def _mooncake(number: int, line: str, units: TraceUnits) -> Arrival:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise TraceError(f"line {number}: {error}") from None
    return Arrival(read.timestamp * units.seconds, read.input_length, read.output_length, read.hash_ids)
