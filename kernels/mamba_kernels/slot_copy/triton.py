# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Copies of whole slots on a GPU in one launch; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.triton_support import KernelCall, Launch, ceil_div, check, extent_at, launch_for

WORDS = (torch.int64, torch.int32, torch.int16)
"""Types as which bytes are moved, widest first, where extent and addresses allow."""


def slot_copy(source: torch.Tensor, target: torch.Tensor, routes: torch.Tensor) -> None:
    """Copy source[routes[0]] to target[routes[1]], which is written; -1 on either side = no copy.

    `source` and `target` are [slabs, bytes] uint8, rows may be strided; `routes` are [2, k] int64. Raises
    WrongArgument.
    """
    call(source, target, routes).run()


def call(source: torch.Tensor, target: torch.Tensor, routes: torch.Tensor) -> KernelCall:
    """Check the arguments of `slot_copy` and return its launch."""
    check("source", source, (None, None), dtypes=(torch.uint8,))
    check("target", target, (None, source.shape[1]), dtypes=(torch.uint8,), device=source.device)
    check("routes", routes, (2, None), dtypes=(torch.int64,), device=source.device)
    for word in WORDS:
        places = [source.shape[1]]
        for arena in (source, target):
            places += [arena.data_ptr(), arena.stride(0)]
        if all(place % word.itemsize == 0 for place in places):
            source, target = source.view(word), target.view(word)
            break
    words = source.shape[1]
    launch = launch_for(
        "slot_copy", source.device, str(source.dtype), Launch(num_warps=4, blocks={"WORDS": 2048})
    )
    return KernelCall(
        _slot_copy,
        (ceil_div(words, launch.blocks["WORDS"]), routes.shape[1]),
        {
            "source": source,
            "source_slab": source.stride(0),
            "target": target,
            "target_slab": target.stride(0),
            "routes": routes,
            "route": routes.stride(0),
            "words": words,
        },
        {"BLOCK": launch.blocks["WORDS"]},
        launch,
    )


@triton.jit(do_not_specialize=["route"], do_not_specialize_on_alignment=["routes"])
def _slot_copy(source, source_slab, target, target_slab, routes, route, words, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    source_slot = tl.load(routes + row)
    target_slot = tl.load(routes + route + row)
    word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (word < extent_at(source_slot, words)) & (word < extent_at(target_slot, words))
    values = tl.load(source + source_slot * source_slab + word, mask=mask, eviction_policy="evict_first")
    tl.store(target + target_slot * target_slab + word, values, mask=mask, eviction_policy="evict_first")
