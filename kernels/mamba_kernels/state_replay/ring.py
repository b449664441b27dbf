"""The ring of raw inputs that a state lacks, and what each row of a step does with its lane of it.

A ring is [lanes, inputs, width] of one layer. An input is what the recurrence reads of a token, as the layer
computed it: x | B | dt of Mamba2, k | v | a | b of the gated delta rule. Nothing that follows from the state
is kept, so folding an input later gives the same numbers as folding it at once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from mamba_kernels.arguments import check
from mamba_kernels.slot_plan import IntArray, NoHostRoutes
from mamba_kernels.transfer import to_device

ALIGNED = 8
"""Inputs begin at a multiple of this number of elements, so that 16 bytes are loaded at once."""


def scan_width(heads: int, head_dim: int, groups: int, state_size: int) -> int:
    """Return the elements of an input of Mamba2."""
    return _aligned(heads * head_dim + groups * state_size + heads)


def delta_width(value_heads: int, value_dim: int, key_heads: int, key_dim: int, decays: int = 1) -> int:
    """Return the elements of an input of the gated delta rule with `decays` decays of each head.

    An input has a key for each key head, a value for each value head, the decays and beta.
    """
    return _aligned(key_heads * key_dim + value_heads * value_dim + (1 + decays) * value_heads)


def _aligned(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class RingPlan:
    """Says which lane of the ring each of the `n` rows of a step uses, and whether it writes state or lane.

    A lane holds the inputs of tokens that the state of one sequence lacks. The plan is the same for all
    layers.
    """

    device: torch.device
    host_rows: IntArray | None
    """[3, n]: lane of each row (-1 = none, as of padding), number of inputs in the lane, and whether the row
    writes its state (1) or leaves its own input in the lane behind the others (0). None = on the device
    alone."""
    lanes: torch.Tensor | None = None
    """[3, n] int32: the same on the device if it was sent already; each row is dense."""

    @cached_property
    def device_rows(self) -> torch.Tensor:
        """`host_rows` on the device, [3, n] int32."""
        if self.lanes is not None:
            return self.lanes
        return to_device(torch.from_numpy(self.host.astype(np.int32)), self.device)

    @property
    def host(self) -> IntArray:
        """The rows on the host. Raises NoHostRoutes if they are on the device alone."""
        if self.host_rows is None:
            raise NoHostRoutes("this plan is on the device alone: only Triton's kernels can follow it")
        return self.host_rows


def check_ring(ring: torch.Tensor, kind: torch.dtype, device: torch.device, width: int) -> None:
    """Raise WrongArgument unless `ring` is the ring of one layer, of type `kind`, with inputs of `width`."""
    check("ring", ring, (None, None, width), dtypes=(kind,), device=device)


def ring_arguments(
    noise: torch.Tensor, lanes: torch.Tensor, ring: torch.Tensor
) -> dict[str, torch.Tensor | int]:
    """Return a Triton kernel's arguments for noise [n], the rows of a `RingPlan` and a layer's ring."""
    return {
        "noise": noise,
        "lanes": lanes,
        "lane_row": lanes.stride(0),
        "ring": ring,
        "ring_lane": ring.stride(0),
        "ring_input": ring.stride(1),
    }
