# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sampling on a GPU in four launches, without a sort and without a host sync: see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.sample.parameters import Choice, Counts, SampleParameters
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    block_of,
    ceil_div,
    check,
    launch_for,
    stride_unit,
)

TILE = 4096
"""Logits of a program that penalises or draws."""
SEARCH = 1024
"""Logits that a search looks at together."""
EVEN = tl.constexpr(3)
"""Passes of a search whose orders are evenly spaced as distances."""
FAR = tl.constexpr(32.0)
"""From the best logit, over the temperature: less than 2e-14 of its probability."""
INFINITE = tl.constexpr(0x7F800000)
"""Bits of infinity: as integers, non-negative floats are ordered as their values."""


@triton.jit
def _mix(x):
    """The finalizer of MurmurHash3 on uint32, as `noise._mix`."""
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    x ^= x >> 16
    return x


@triton.jit
def _minus_log(u, complement):
    """-log(u) of 0 < u < 1 without a hardware logarithm near 1, where it has no digit right."""
    v = complement
    series = v * (1.0 + v * (1.0 / 2 + v * (1.0 / 3 + v * (1.0 / 4 + v * (1.0 / 5)))))
    return tl.where(v < 1.0 / 32, series, -tl.log(u))


@triton.jit
def _gumbel(token, first, second):
    """Standard Gumbel noise of tokens for the mixed words of a row, as `noise.gumbel`."""
    bits = _mix((_mix(token.to(tl.uint32) * 0x9E3779B9) ^ first) + second)
    whole = (bits >> 9).to(tl.float32)
    exponential = _minus_log((whole + 0.5) * (1.0 / 8388608), (8388607.5 - whole) * (1.0 / 8388608))
    return -tl.log(exponential)


@triton.jit
def _scaled(value, best, temperature):
    """Logits below the best one, over the temperature: at most 0. What is no number can never come."""
    usable = (value == value) & (value < float("inf"))
    return tl.where(usable, (value - best) / temperature, float("-inf"))


@triton.jit
def _order(scaled):
    """Likelier first: the bits of the distance from the best."""
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def _noise(token, words, positions, row):
    """Of tokens of a row, which its seed and its position decide."""
    # One lane and no scalar: the products wrap.
    lane = tl.arange(0, 1)
    position = tl.load(positions + row + lane).to(tl.uint32, bitcast=True)
    first = _mix(tl.load(words + 2 * row + lane).to(tl.uint32, bitcast=True) ^ (position * 0x9E3779B9))
    second = _mix(tl.load(words + 2 * row + 1 + lane).to(tl.uint32, bitcast=True) + first)
    return _gumbel(token, first, second)


@triton.jit
def _filtered(top_k, top_p, min_p, row, VOCABULARY: tl.constexpr):
    """Whether some of the row's tokens cannot come."""
    k = tl.load(top_k + row)
    return ((k > 0) & (k < VOCABULARY)) | (tl.load(top_p + row) < 1) | (tl.load(min_p + row) > 0)


@triton.jit(do_not_specialize=["logits_row", "tables_row"])
def prepare_kernel(
    logits, counts_row, output, prompt, repetition, presence, frequency, temperature, top_k, top_p, min_p,
    words, positions, best, sound, drawn, place, logits_row: tl.int64, tables_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, BLOCKS): penalties in place; the greatest of the tile, and whether all of it is finite.

    Of a row whose tokens can all come, the best of the tile with its noise, too, from the greatest there.
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    token = tile * BLOCK + tl.arange(0, BLOCK)
    inside = token < VOCABULARY
    to = logits + row.to(tl.int64) * (logits_row * UNIT) + token
    value = tl.load(to, mask=inside, other=float("-inf"))
    bad = (value != value) | (value == float("inf"))
    table = tl.load(counts_row + row)
    if table >= 0:
        at = table.to(tl.int64) * (tables_row * UNIT) + token
        count = tl.load(output + at, mask=inside, other=0)
        known = (count > 0) | (tl.load(prompt + at, mask=inside, other=0) != 0)
        strength = tl.load(repetition + row)
        value = tl.where(known, tl.where(value > 0, value / strength, value * strength), value)
        value -= tl.load(frequency + row) * count.to(tl.float32)
        value -= tl.where(count > 0, tl.load(presence + row), 0.0)
        tl.store(to, value, mask=inside)
    top = tl.max(tl.where(bad, float("-inf"), value), 0)
    tl.store(best + row * BLOCKS + tile, top)
    tl.store(sound + row * BLOCKS + tile, 1 - tl.max(bad.to(tl.int32), 0))
    heat = tl.load(temperature + row)
    if (heat <= 0) | (_filtered(top_k, top_p, min_p, row, VOCABULARY) == 0):
        # Where nothing can come nothing is drawn: any finite number keeps the arithmetic free of NaN.
        scaled = _scaled(value, tl.where(top == float("-inf"), 0.0, top), tl.where(heat > 0, heat, 1.0))
        if heat > 0:
            scaled += _noise(token, words, positions, row)
        tl.store(drawn + row * BLOCKS + tile, tl.max(scaled, 0))
        tl.store(place + row * BLOCKS + tile, tile * BLOCK + tl.argmax(scaled, 0))


@triton.jit
def _search(
    row_logits, best, temperature, most, reach, target, COUNTING: tl.constexpr,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """An order o <= `most` up to which the tokens number `target` at least, and without whose last one they
    would not; or weigh that share of those up to `most`.

    Each pass tries eight orders at once. Those of the first passes are evenly spaced as distances, within
    `reach` at first, which finds most thresholds; then as bits, so eleven more tell any two apart. It ends as
    soon as a single token is left between the bounds.
    """
    low = most * 0
    high = most
    wanted = target
    below = 0.0
    inside = 2.0
    passes = 0
    j = tl.arange(0, 8)
    while (passes < EVEN + 11) & (inside > 1.0):
        step = (high - low) // 8 + 1
        tried = tl.minimum(low + (j + 1) * step - 1, high)
        near, far = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
        if (passes < EVEN) & (near < reach):
            # The last one is the upper bound: in the first pass it tells what all weigh.
            width = tl.where(far > reach, (reach - near) / 7, (far - near) / 8)
            apart = (near + width * (j + 1).to(tl.float32)).to(tl.int32, bitcast=True)
            tried = tl.where(j == 7, high, tl.minimum(apart, high))
        weights = tl.zeros([8, BLOCK], tl.float32)
        numbers = tl.zeros([8, BLOCK], tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token = start + tl.arange(0, BLOCK)
            there = token < VOCABULARY
            value = tl.load(row_logits + token, mask=there, other=float("-inf"))
            scaled = _scaled(value, best, temperature)
            reached = (_order(scaled)[None, :] <= tried[:, None]) & there[None, :]
            numbers += reached.to(tl.float32)
            if not COUNTING:
                weights += tl.where(reached, tl.exp(scaled)[None, :], 0.0)
        number = tl.sum(numbers, 1)
        amount = number if COUNTING else tl.sum(weights, 1)
        if not COUNTING:  # noqa: SIM102 - known when compiling, the other is not
            if passes == 0:
                wanted = target * tl.sum(tl.where(j == 7, amount, 0.0), 0)
        short = tl.minimum(tl.sum((amount < wanted).to(tl.int32), 0), 7)
        # Of the tokens up to the bound that is found, those up to the one before it are not between the two.
        below = tl.maximum(below, tl.max(tl.where(j < short, number, 0.0), 0))
        inside = tl.sum(tl.where(j == short, number, 0.0), 0) - below
        low = tl.minimum(tl.maximum(low, tl.max(tl.where(j < short, tried + 1, 0), 0)), high)
        high = tl.sum(tl.where(j == short, tried, 0), 0)
        passes += 1
    return high


@triton.jit(do_not_specialize=["logits_row"])
def truncate_kernel(
    logits, temperature, top_k, top_p, min_p, tile_best, best, last, logits_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the best logit of the row, and the order of the last token that may come."""
    row = tl.program_id(0)
    t = tl.arange(0, PADDED)
    top = tl.max(tl.load(tile_best + row * BLOCKS + t, mask=t < BLOCKS, other=float("-inf")), 0)
    # Where nothing can come nothing is drawn: any finite best keeps the arithmetic free of NaN.
    top = tl.where(top == float("-inf"), 0.0, top)
    heat = tl.load(temperature + row)
    most = tl.full([], INFINITE, tl.int32)
    if heat > 0:
        row_logits = logits + row.to(tl.int64) * (logits_row * UNIT)
        share = tl.load(min_p + row)
        if share > 0:
            most = _order(tl.log(share))
        k = tl.load(top_k + row)
        if (k > 0) & (k < VOCABULARY):
            whole = tl.full([], INFINITE, tl.int32)
            kept = _search(row_logits, top, heat, whole, FAR, k.to(tl.float32), True, VOCABULARY, BLOCK)
            most = tl.minimum(most, kept)
        mass = tl.load(top_p + row)
        if mass < 1:
            # Tokens farther than this from the best weigh less together than what is cut off.
            reach = tl.log(VOCABULARY / (1.0 - mass)) + 1.0
            most = _search(row_logits, top, heat, most, reach, mass, False, VOCABULARY, BLOCK)
    tl.store(best + row, top)
    tl.store(last + row, most)


@triton.jit(do_not_specialize=["logits_row"])
def draw_kernel(
    logits, temperature, top_k, top_p, min_p, words, positions, best, last, drawn, place,
    logits_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, BLOCKS): of a row whose tokens cannot all come, the best of a tile with its noise, counted
    from the greatest of the row, and which token that is."""
    row, tile = tl.program_id(0), tl.program_id(1)
    heat = tl.load(temperature + row)
    if (heat > 0) & _filtered(top_k, top_p, min_p, row, VOCABULARY):
        token = tile * BLOCK + tl.arange(0, BLOCK)
        inside = token < VOCABULARY
        at = logits + row.to(tl.int64) * (logits_row * UNIT) + token
        value = tl.load(at, mask=inside, other=float("-inf"))
        scaled = _scaled(value, tl.load(best + row), heat)
        kept = _order(scaled) <= tl.load(last + row)
        scaled = tl.where(kept, scaled + _noise(token, words, positions, row), float("-inf"))
        tl.store(drawn + row * BLOCKS + tile, tl.max(scaled, 0))
        tl.store(place + row * BLOCKS + tile, tile * BLOCK + tl.argmax(scaled, 0))


@triton.jit(do_not_specialize=["tables_row"])
def choose_kernel(
    drawn, place, tile_best, best, sound, temperature, top_k, top_p, min_p, counts_row, output, ids, finite,
    tables_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the best of the tiles; it is counted where its sequence has penalties."""
    row = tl.program_id(0)
    t = tl.arange(0, PADDED)
    mask = t < BLOCKS
    greatest = tl.load(tile_best + row * BLOCKS + t, mask=mask, other=float("-inf"))
    top = tl.max(greatest, 0)
    heat = tl.load(temperature + row)
    value = tl.load(drawn + row * BLOCKS + t, mask=mask, other=float("-inf"))
    # What was counted from the greatest of its tile counts from that of the row.
    apart = _scaled(greatest, tl.load(best + row), tl.where(heat > 0, heat, 1.0))
    counted = (heat > 0) & _filtered(top_k, top_p, min_p, row, VOCABULARY)
    tile = tl.argmax(tl.where(counted, value, value + apart), 0)
    chosen = tl.minimum(tl.load(place + row * BLOCKS + tile), VOCABULARY - 1)
    all_sound = tl.min(tl.load(sound + row * BLOCKS + t, mask=mask, other=1), 0)
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(finite + row, ((all_sound == 1) & (top > float("-inf"))).to(tl.int8))
    table = tl.load(counts_row + row)
    if table >= 0:
        at = output + table.to(tl.int64) * (tables_row * UNIT) + chosen
        tl.store(at, tl.load(at) + 1)


def sample(
    logits: torch.Tensor, parameters: SampleParameters, counts: Counts, positions: torch.Tensor
) -> Choice:
    """As the reference: one token a row from its own logits, parameters and position alone.

    logits: [L, vocabulary] float32, rows may be strided, overwritten; positions: [L] int32. Rows with
    penalties have count rows of their own. Raises WrongArgument.
    """
    choice = Choice(
        torch.empty(len(logits), dtype=torch.int64, device=logits.device),
        torch.empty(len(logits), dtype=torch.bool, device=logits.device),
    )
    for call in calls(logits, parameters, counts, positions, choice):
        call.run()
    return choice


def calls(
    logits: torch.Tensor,
    parameters: SampleParameters,
    counts: Counts,
    positions: torch.Tensor,
    choice: Choice,
) -> list[KernelCall]:
    """The launches that write `choice`, their arguments checked."""
    p, device = parameters, logits.device
    check("logits", logits, (None, None), dtypes=(torch.float32,))
    rows, vocabulary = logits.shape
    for name in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency"):
        check(name, getattr(p, name), (rows,), dtypes=(torch.float32,), device=device)
    for name in ("top_k", "counts_row"):
        check(name, getattr(p, name), (rows,), dtypes=(torch.int32,), device=device)
    check("words", p.words, (rows, 2), dtypes=(torch.int32,), device=device, dense_from=0)
    check("positions", positions, (rows,), dtypes=(torch.int32,), device=device)
    check(
        "counts.output", counts.output, (None, vocabulary), dtypes=(torch.int32,), device=device, dense_from=0
    )
    check(
        "counts.prompt", counts.prompt, counts.output.shape, dtypes=(torch.bool,), device=device, dense_from=0
    )
    tile = launch_for("sample_tile", device, f"v{vocabulary}", Launch(4, blocks={"V": TILE}))
    search = launch_for("sample_search", device, f"v{vocabulary}", Launch(8, blocks={"V": SEARCH}))
    block = block_of(vocabulary, most=tile.blocks["V"])
    blocks = ceil_div(vocabulary, block)
    unit = stride_unit([logits.stride(0), counts.output.stride(0)])
    cut = {"VOCABULARY": vocabulary, "BLOCKS": blocks, "UNIT": unit}
    padded = {"PADDED": block_of(blocks)}

    def empty(kind: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=kind, device=device)

    tile_best, sound = empty(torch.float32, rows, blocks), empty(torch.int32, rows, blocks)
    drawn, place = empty(torch.float32, rows, blocks), empty(torch.int32, rows, blocks)
    best, last = empty(torch.float32, rows), empty(torch.int32, rows)
    given = {"logits": logits, "logits_row": logits.stride(0) // unit}
    tables = {
        "counts_row": p.counts_row,
        "output": counts.output,
        "tables_row": counts.output.stride(0) // unit,
    }
    penalties = {"repetition": p.repetition, "presence": p.presence, "frequency": p.frequency}
    found = {"best": best, "last": last}
    filters = {"temperature": p.temperature, "top_k": p.top_k, "top_p": p.top_p, "min_p": p.min_p}
    noise = {"words": p.words, "positions": positions, "drawn": drawn, "place": place}
    return [
        KernelCall(
            prepare_kernel, (rows, blocks),
            given | tables | penalties | filters | noise
            | {"prompt": counts.prompt.view(torch.uint8), "best": tile_best, "sound": sound},
            cut | {"BLOCK": block}, tile,
        ),
        KernelCall(
            truncate_kernel, (rows,), given | found | filters | {"tile_best": tile_best},
            cut | padded | {"BLOCK": block_of(vocabulary, most=search.blocks["V"])}, search,
        ),
        KernelCall(
            draw_kernel, (rows, blocks),
            given | found | filters | noise,
            cut | {"BLOCK": block}, tile,
        ),
        KernelCall(
            choose_kernel, (rows,),
            tables | filters
            | {"drawn": drawn, "place": place, "tile_best": tile_best, "best": best, "sound": sound,
               "ids": choice.ids, "finite": choice.finite.view(torch.uint8)},
            cut | padded, Launch(1),
        ),
    ]  # fmt: skip
