"""Integers that change from step to step at one place on the device, sent without a wait."""

import torch

BUFFERS = 2
"""On the host: a step writes one while the copy of the step before may still be under way. No third step is
in flight by then (O6)."""


class StagedBuffer:
    """One tensor on `device`, at first as `initial`, which is on the host."""

    def __init__(self, initial: torch.Tensor, device: torch.device) -> None:
        self.on_device = initial.to(device, copy=True)
        """Stays where it is."""
        self._host = [initial.clone() for _ in range(BUFFERS)]
        if device.type == "cuda":
            self._host = [buffer.pin_memory() for buffer in self._host]
        self._turn = 0

    def next(self) -> torch.Tensor:
        """On the host, to be written whole and sent; what is in it is of an earlier step."""
        self._turn = (self._turn + 1) % BUFFERS
        return self._host[self._turn]

    def send(self) -> None:
        """Start the copy of what `next` gave."""
        self.on_device.copy_(self._host[self._turn], non_blocking=True)
