# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sampling on a GPU in three launches, without a sort and without a host sync; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.sample.parameters import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.triton_noise import noise_of
from mamba_kernels.sample.triton_row import (
    INFINITE,
    check_row,
    order_of,
    scaled_logits,
    usable,
    weight_of_the_best,
)
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
"""Logits of a program that draws or checks."""
ROW_BLOCK = 2048
"""Logits that the program of a row processes together."""
PIVOTS = tl.constexpr(12)
"""Number of distances from the best logit within which tokens are counted for `top_k` with `top_p`."""


@triton.jit
def _has_top_k(top_k, row, VOCABULARY: tl.constexpr):
    """Return whether `top_k` excludes tokens of the row."""
    k = tl.load(top_k + row)
    return (k > 0) & (k < VOCABULARY)


@triton.jit
def _has_filter(top_k, top_p, min_p, row, VOCABULARY: tl.constexpr):
    """Return whether any filter excludes tokens of the row."""
    return _has_top_k(top_k, row, VOCABULARY) | (tl.load(top_p + row) < 1) | (tl.load(min_p + row) > 0)


@triton.jit
def _min_p_bound(min_p, row):
    """Return the smallest logit, relative to the best and over the temperature, that `min_p` allows."""
    share = tl.load(min_p + row)
    return tl.where(share > 0, tl.log(tl.where(share > 0, share, 1.0)), float("-inf"))


@triton.jit
def _first_choice(
    drawn, place, tile_best, row, heat,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Return the best logit of the row, and the token that is chosen if no filter excludes it."""
    t = tl.arange(0, PADDED)
    mask = t < BLOCKS
    greatest = tl.load(tile_best + row * BLOCKS + t, mask=mask, other=float("-inf"))
    # If no token is possible nothing is drawn; a finite best logit keeps the arithmetic free of NaN.
    top = tl.max(greatest, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    value = tl.load(drawn + row * BLOCKS + t, mask=mask, other=float("-inf"))
    # Values relative to the greatest logit of the tile become relative to that of the row.
    value += scaled_logits(greatest, top, tl.where(heat > 0, heat, 1.0))
    chosen = tl.load(place + row * BLOCKS + tl.argmax(value, 0))
    return top, tl.minimum(chosen, VOCABULARY - 1)


@triton.jit(do_not_specialize=["logits_row", "tables_row"])
def draw_kernel(
    logits, counts_row, output, prompt, repetition, presence, frequency, temperature, words, positions,
    tile_best, sound, drawn, place, logits_row: tl.int64, tables_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, BLOCKS): apply penalties in place; find the greatest logit of the tile and non-finite ones.

    Also find the best token of the tile with noise, relative to the greatest logit, without filters.
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    token = tile * BLOCK + tl.arange(0, BLOCK)
    inside = token < VOCABULARY
    pointers = logits + row.to(tl.int64) * (logits_row * UNIT) + token
    value = tl.load(pointers, mask=inside, other=float("-inf"))
    bad = (value != value) | (value == float("inf"))
    table = tl.load(counts_row + row)
    if table >= 0:
        offsets = table.to(tl.int64) * (tables_row * UNIT) + token
        count = tl.load(output + offsets, mask=inside, other=0)
        penalised = (count > 0) | (tl.load(prompt + offsets, mask=inside, other=0) != 0)
        strength = tl.load(repetition + row)
        value = tl.where(penalised, tl.where(value > 0, value / strength, value * strength), value)
        value -= tl.load(frequency + row) * count.to(tl.float32)
        value -= tl.where(count > 0, tl.load(presence + row), 0.0)
        tl.store(pointers, value, mask=inside)
    top = tl.max(tl.where(bad, float("-inf"), value), 0)
    tl.store(tile_best + row * BLOCKS + tile, top)
    tl.store(sound + row * BLOCKS + tile, 1 - tl.max(bad.to(tl.int32), 0))
    heat = tl.load(temperature + row)
    scaled = scaled_logits(value, tl.where(top == float("-inf"), 0.0, top), tl.where(heat > 0, heat, 1.0))
    if heat > 0:
        scaled += noise_of(token, words, positions, row)
    tl.store(drawn + row * BLOCKS + tile, tl.max(scaled, 0))
    tl.store(place + row * BLOCKS + tile, tile * BLOCK + tl.argmax(scaled, 0))


@triton.jit
def _pivot_order(pivot: tl.constexpr):
    """Return the order of the distance 2^(0.375 `pivot`): from 1 to 13.5, each 1.3 times the one before."""
    return order_of(tl.exp2(tl.full([], 0.375 * pivot, tl.float32)))


@triton.jit(do_not_specialize=["logits_row"])
def check_kernel(
    logits, temperature, top_k, top_p, min_p, words, positions, tile_best, drawn, place,
    likelier, likelier_weight, next_drawn, next_place, within, within_weight, logits_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, BLOCKS): in rows with filters, count and weigh tokens likelier than the drawn one.

    Also find the best of them with noise, and count and weigh the tokens that `min_p` allows within several
    distances of the best, since `top_p` is a share of the tokens that `top_k` keeps. Weights are
    probabilities relative to the probability of the best token.
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    heat = tl.load(temperature + row)
    if (heat > 0) & _has_filter(top_k, top_p, min_p, row, VOCABULARY):
        top, chosen = _first_choice(drawn, place, tile_best, row, heat, VOCABULARY, BLOCKS, PADDED)
        token = tile * BLOCK + tl.arange(0, BLOCK)
        inside = token < VOCABULARY
        row_logits = logits + row.to(tl.int64) * (logits_row * UNIT)
        value = tl.load(row_logits + token, mask=inside, other=float("-inf"))
        scaled = scaled_logits(value, top, heat)
        weight = tl.exp(scaled)
        allowed = inside & (scaled >= _min_p_bound(min_p, row))
        ahead = allowed & (usable(value) > usable(tl.load(row_logits + chosen)))
        offset = row * BLOCKS + tile
        tl.store(likelier + offset, tl.sum(ahead.to(tl.float32), 0))
        tl.store(likelier_weight + offset, tl.sum(tl.where(ahead, weight, 0.0), 0))
        noisy = tl.where(ahead, scaled + noise_of(token, words, positions, row), float("-inf"))
        tl.store(next_drawn + offset, tl.max(noisy, 0))
        tl.store(next_place + offset, tile * BLOCK + tl.argmax(noisy, 0))
        # The last distance is unbounded.
        last = (row * PIVOTS + PIVOTS - 1) * BLOCKS + tile
        tl.store(within + last, tl.sum(allowed.to(tl.float32), 0))
        tl.store(within_weight + last, tl.sum(tl.where(allowed, weight, 0.0), 0))
        if _has_top_k(top_k, row, VOCABULARY) & (tl.load(top_p + row) < 1):
            for pivot in tl.static_range(PIVOTS - 1):
                in_pivot = allowed & (order_of(scaled) <= _pivot_order(pivot))
                pivot_offset = (row * PIVOTS + pivot) * BLOCKS + tile
                tl.store(within + pivot_offset, tl.sum(in_pivot.to(tl.float32), 0))
                tl.store(within_weight + pivot_offset, tl.sum(tl.where(in_pivot, weight, 0.0), 0))


@triton.jit
def _passes(number, weight, k, mass, whole):
    """Return whether a token passes the filters if `number` tokens of total weight `weight` are likelier.

    `whole`: the total weight of which `top_p` is a share. The best token always passes.
    """
    return (number == 0) | ((number < k) & ((mass >= 1) | (weight < mass * whole)))


@triton.jit(do_not_specialize=["logits_row", "tables_row"])
def choose_kernel(
    logits, temperature, top_k, top_p, min_p, words, positions, tile_best, sound, drawn, place,
    likelier, likelier_weight, next_drawn, next_place, within, within_weight, counts_row, output, ids, finite,
    logits_row: tl.int64, tables_row: tl.int64,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows): choose the drawn token if it passes the filters, otherwise the best of the likelier ones.

    That is repeated until a token passes. The token is counted if its sequence has penalties.
    """
    row = tl.program_id(0)
    heat = tl.load(temperature + row)
    top, chosen = _first_choice(drawn, place, tile_best, row, heat, VOCABULARY, BLOCKS, PADDED)
    t = tl.arange(0, PADDED)
    mask = t < BLOCKS
    if (heat > 0) & _has_filter(top_k, top_p, min_p, row, VOCABULARY):
        row_logits = logits + row.to(tl.int64) * (logits_row * UNIT)
        mass, least = tl.load(top_p + row), _min_p_bound(min_p, row)
        has_top_k = _has_top_k(top_k, row, VOCABULARY)
        k = tl.where(has_top_k, tl.load(top_k + row), VOCABULARY).to(tl.float32)
        offset = row * BLOCKS + t
        number = tl.sum(tl.load(likelier + offset, mask=mask, other=0.0), 0)
        weight = tl.sum(tl.load(likelier_weight + offset, mask=mask, other=0.0), 0)
        following = tl.argmax(tl.load(next_drawn + offset, mask=mask, other=float("-inf")), 0)
        following = tl.load(next_place + row * BLOCKS + following)
        any_distance = (row * PIVOTS + PIVOTS - 1) * BLOCKS + t
        most = tl.sum(tl.load(within_weight + any_distance, mask=mask, other=0.0), 0)
        whole = most
        low, high, below = tl.full([], 0, tl.int32), tl.full([], INFINITE, tl.int32), 0.0
        if has_top_k & (mass < 1):
            # A distance with at most k tokens bounds the weight of the k best from below; one with at least k
            # tokens bounds it from above.
            whole = 0.0
            for pivot in tl.static_range(PIVOTS):
                order = _pivot_order(pivot) if pivot < PIVOTS - 1 else high
                offsets_of_pivot = (row * PIVOTS + pivot) * BLOCKS + t
                inside = tl.sum(tl.load(within + offsets_of_pivot, mask=mask, other=0.0), 0)
                heavy = tl.sum(tl.load(within_weight + offsets_of_pivot, mask=mask, other=0.0), 0)
                whole = tl.maximum(whole, tl.where(inside <= k, heavy, 0.0))
                most = tl.minimum(most, tl.where(inside >= k, heavy, most))
                low = tl.maximum(low, tl.where(inside < k, order + 1, 0))
                below = tl.maximum(below, tl.where(inside < k, inside, 0.0))
                high = tl.minimum(high, tl.where(inside >= k, order, INFINITE))
        allowed = scaled_logits(tl.load(row_logits + chosen), top, heat) >= least
        passes = allowed & _passes(number, weight, k, mass, whole)
        while passes == 0:
            if (whole < most) & allowed & _passes(number, weight, k, mass, most):
                # The decision lies between the two bounds: compute the exact weight.
                whole = weight_of_the_best(
                    row_logits, top, heat, least, k, low, high, below, VOCABULARY, BLOCK
                )
                most = whole
            else:
                chosen = following
                allowed = chosen >= 0
                number = 0.0
                # If `min_p` is the only filter, the best of the tokens that it allows is the choice.
                if has_top_k | (mass < 1):
                    number, weight, following = check_row(
                        row_logits, top, heat, least, chosen, words, positions, row, VOCABULARY, BLOCK
                    )
            passes = allowed & _passes(number, weight, k, mass, whole)
    all_sound = tl.min(tl.load(sound + row * BLOCKS + t, mask=mask, other=1), 0)
    greatest = tl.max(tl.load(tile_best + row * BLOCKS + t, mask=mask, other=float("-inf")), 0)
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(finite + row, ((all_sound == 1) & (greatest > float("-inf"))).to(tl.int8))
    table = tl.load(counts_row + row)
    if table >= 0:
        offset = output + table.to(tl.int64) * (tables_row * UNIT) + chosen
        tl.store(offset, tl.load(offset) + 1)


def sample(
    logits: torch.Tensor, parameters: SampleParameters, counts: PenaltyCounts, positions: torch.Tensor
) -> TokenChoice:
    """Choose one token per row, from its own logits, parameters and position alone.

    `logits` are [L, vocabulary] float32, rows may be strided, overwritten; `positions` are [L] int32. No two
    rows with penalties may share a row of counts. Raises WrongArgument.
    """
    choice = TokenChoice(
        torch.empty(len(logits), dtype=torch.int64, device=logits.device),
        torch.empty(len(logits), dtype=torch.bool, device=logits.device),
    )
    for call in calls(logits, parameters, counts, positions, choice):
        call.run()
    return choice


def calls(
    logits: torch.Tensor,
    parameters: SampleParameters,
    counts: PenaltyCounts,
    positions: torch.Tensor,
    choice: TokenChoice,
) -> list[KernelCall]:
    """Check the arguments of `sample` and return the launches that write `choice`."""
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
    whole = launch_for("sample_row", device, f"v{vocabulary}", Launch(8, blocks={"V": ROW_BLOCK}))
    block = block_of(vocabulary, most=tile.blocks["V"])
    blocks = ceil_div(vocabulary, block)
    unit = stride_unit([logits.stride(0), counts.output.stride(0)])
    cut = {"VOCABULARY": vocabulary, "BLOCKS": blocks, "UNIT": unit}
    padded = {"PADDED": block_of(blocks)}

    def empty(kind: torch.dtype, *more: int) -> torch.Tensor:
        return torch.empty(rows, *more, blocks, dtype=kind, device=device)

    row_arguments = {"logits": logits, "logits_row": logits.stride(0) // unit}
    tables = {
        "counts_row": p.counts_row,
        "output": counts.output,
        "tables_row": counts.output.stride(0) // unit,
    }
    penalties = {"repetition": p.repetition, "presence": p.presence, "frequency": p.frequency}
    heat = {"temperature": p.temperature}
    filters = heat | {"top_k": p.top_k, "top_p": p.top_p, "min_p": p.min_p}
    noise = {"words": p.words, "positions": positions}
    sound = {"sound": empty(torch.int32)}
    drawn = {
        "tile_best": empty(torch.float32),
        "drawn": empty(torch.float32),
        "place": empty(torch.int32),
    }
    checked = {
        "likelier": empty(torch.float32),
        "likelier_weight": empty(torch.float32),
        "next_drawn": empty(torch.float32),
        "next_place": empty(torch.int32),
        "within": empty(torch.float32, PIVOTS.value),
        "within_weight": empty(torch.float32, PIVOTS.value),
    }
    result = {"ids": choice.ids, "finite": choice.finite.view(torch.uint8)}
    return [
        KernelCall(
            draw_kernel, (rows, blocks),
            row_arguments | tables | penalties | heat | noise | drawn | sound
            | {"prompt": counts.prompt.view(torch.uint8)},
            cut | {"BLOCK": block}, tile,
        ),
        KernelCall(
            check_kernel, (rows, blocks), row_arguments | filters | noise | drawn | checked,
            cut | padded | {"BLOCK": block}, tile,
        ),
        KernelCall(
            choose_kernel, (rows,),
            row_arguments | tables | filters | noise | drawn | sound | checked | result,
            cut | padded | {"BLOCK": block_of(vocabulary, most=whole.blocks["V"])}, whole,
        ),
    ]  # fmt: skip
