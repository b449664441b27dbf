"""Slots from which each sequence's state is read and to which it is written in one step.

A plan is built once per step and used by every layer. Both parts of a state (SSM part, convolution window)
follow the same plan, so they cannot end up at different depths or places. A plan is built from host arrays
alone and never reads the device.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mamba_kernels.transfer import to_device

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
HostIntegers = np.ndarray[tuple[int, ...], np.dtype[Any]]


class NoHostRoutes(RuntimeError):
    """The plan stays on the device from step to step and has no integers on the host."""


def index_tensor(values: HostIntegers, device: torch.device) -> torch.Tensor:
    """Return an int64 copy of host integers on the device."""
    return to_device(torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)), device)


@dataclass(frozen=True)
class SlotPlan:
    """Says from which slot each of the `n` states of a step is read, and to which slots it is written.

    Each state has a source and a target slot; a tracked one is also written to a second slot, its checkpoint.
    A backend takes these routes in the form that it reads; each form is computed at its first use. Forms that
    need the host raise NoHostRoutes if the routes are on the device alone.
    """

    device: torch.device
    host_routes: HostIntegers | None
    """[3, n] int64: source slot (-1 = the zero state), target slot, tracking slot (-1 = not tracked) of each
    state; each of the three rows is dense. None = the routes are on the device alone."""
    resident: torch.Tensor | None = None
    """[3, n] int32: the routes on the device if they were sent already; each row is dense."""
    host_noise: IntArray | None = None
    """[n] int32 of `noise_words`, by which float16 states are rounded; None = zeros, or on the device
    alone."""
    resident_noise: torch.Tensor | None = None
    """[n] int32: the noise on the device if it was sent already."""

    @classmethod
    def build(
        cls,
        slot_in: IntArray,
        slot_out: IntArray,
        track: IntArray,
        device: torch.device,
        noise: IntArray | None = None,
        resident_noise: torch.Tensor | None = None,
        resident: torch.Tensor | None = None,
    ) -> "SlotPlan":
        """Plan `n` states: `slot_in` [n] (-1 = zero state), `slot_out` [n], `track` [n] (-1 = none).

        `noise` becomes the field `host_noise`; the other arguments are the fields of the same names.
        """
        return cls(device, np.array([slot_in, slot_out, track], np.int64), resident, noise, resident_noise)

    @cached_property
    def device_routes(self) -> torch.Tensor:
        """Routes on the device, [3, n] int32."""
        if self.resident is not None:
            return self.resident
        return to_device(torch.from_numpy(self.host.astype(np.int32)), self.device)

    @cached_property
    def noise(self) -> torch.Tensor:
        """Words by which float16 states are rounded, on the host, [n] int32."""
        return torch.from_numpy(self._noise)

    @cached_property
    def device_noise(self) -> torch.Tensor:
        """Words by which float16 states are rounded, on the device, [n] int32."""
        return to_device(self.noise, self.device) if self.resident_noise is None else self.resident_noise

    @cached_property
    def routes(self) -> torch.Tensor:
        """Routes on the host, [3, n] int64."""
        return torch.from_numpy(self.host)

    @cached_property
    def source_slots(self) -> list[int]:
        """Source slot of each state, on the host, [n]; -1 = the zero state."""
        slots: list[int] = self.host[0].tolist()
        return slots

    @cached_property
    def target_slots(self) -> list[int]:
        """Target slot of each state, on the host, [n]."""
        slots: list[int] = self.host[1].tolist()
        return slots

    @cached_property
    def track_slots(self) -> list[int]:
        """Second slot of each state, on the host, [n]; -1 = not tracked."""
        slots: list[int] = self.host[2].tolist()
        return slots

    @cached_property
    def source(self) -> torch.Tensor:
        """Source slot of each state, [n] int64.

        The zero state reads the padding slot and is masked by `fresh`.
        """
        return index_tensor(np.maximum(self.host[0], 0), self.device)

    @cached_property
    def fresh(self) -> torch.Tensor | None:
        """Whether each state starts at zero, [n] bool; None if none does."""
        fresh = self.host[0] < 0
        return index_tensor(fresh, self.device).bool() if fresh.any() else None

    @cached_property
    def target(self) -> torch.Tensor:
        """Target slot of each state, [n] int64."""
        return index_tensor(self.host[1], self.device)

    @cached_property
    def tracked(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Tracked rows, [k] int64, and their second slots, [k] int64; None if no row is tracked."""
        rows = np.flatnonzero(self.host[2] >= 0)
        if not len(rows):
            return None
        return index_tensor(rows, self.device), index_tensor(self.host[2][rows], self.device)

    def split(self, rows: int) -> "list[tuple[slice, SlotPlan]]":
        """Split into plans of at most `rows` states; return each with the slice of states that it covers."""
        host = self.host
        n = host.shape[1]
        if n <= rows:
            return [(slice(0, n), self)]
        parts = [slice(first, min(first + rows, n)) for first in range(0, n, rows)]
        return [
            (part, SlotPlan(self.device, np.ascontiguousarray(host[:, part]), host_noise=self._noise[part]))
            for part in parts
        ]

    def read(self, cache: torch.Tensor) -> torch.Tensor:
        """Copy the source slots of `cache` [slabs, ...] to a new tensor [n, ...], zero for fresh states."""
        states = cache[self.source]
        if self.fresh is not None:
            # A fill, not a product with zero: the padding slot may hold NaN.
            states.masked_fill_(self.fresh.view(-1, *(1,) * (states.dim() - 1)), 0)
        return states

    def write(self, cache: torch.Tensor, states: torch.Tensor) -> None:
        """Store `states` [n, ...] in their target slots, and states of tracked rows in second slots, too."""
        states = states.to(cache.dtype)
        cache[self.target] = states
        if self.tracked is not None:
            rows, slots = self.tracked
            cache[slots] = states[rows]

    @property
    def _noise(self) -> IntArray:
        if self.host_noise is None:
            return np.zeros(self.host.shape[1], np.int32)
        return np.ascontiguousarray(self.host_noise)

    @property
    def host(self) -> HostIntegers:
        """The host routes. Raises NoHostRoutes if they are on the device alone."""
        if self.host_routes is None:
            raise NoHostRoutes("this plan is on the device alone: only Triton's kernels can follow it")
        return self.host_routes
