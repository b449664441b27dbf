"""Copies of whole slots, each one run of bytes, in plain torch on any device: for tiers and transfers."""

import torch


def slot_copy(source: torch.Tensor, target: torch.Tensor, routes: torch.Tensor) -> None:
    """Copy source[routes[0]] to target[routes[1]], all layers at once; -1 on either side = no copy.

    `source` and `target` are [slabs, bytes] uint8 on one device, rows may be strided; they may be the same
    arena if no slot is both read and written. `routes` are [2, k] int64 on that device.
    """
    valid = (routes >= 0).all(0)[:, None]
    slots = routes.clamp(min=0)
    # The padding slot receives rows that are not copied, so no shape depends on a value.
    states = source[slots[0]].where(valid, target[:1])
    target.index_copy_(0, slots[1].where(valid[:, 0], 0), states)
