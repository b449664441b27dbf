"""Copies of whole slots in plain torch, any device. For tiers and transfers: a slot is one run of bytes."""

import torch


def slot_copy(source: torch.Tensor, target: torch.Tensor, routes: torch.Tensor) -> None:
    """target[routes[1]] = source[routes[0]], all layers of a state at once; -1 on either side: nothing.

    source, target: [slabs, bytes] uint8, rows may be strided, of one device; they may be one arena, where no
    slot is both read and written. routes: [2, k] int64 on that device.
    """
    valid = (routes >= 0).all(0)[:, None]
    slots = routes.clamp(min=0)
    # The padding slot takes what goes nowhere: no shape depends on a value.
    states = source[slots[0]].where(valid, target[:1])
    target.index_copy_(0, slots[1].where(valid[:, 0], 0), states)
