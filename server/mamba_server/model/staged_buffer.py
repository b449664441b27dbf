"""Fixed device memory for integers that change from step to step, written without waiting for the device."""

import torch

BUFFERS = 2
"""Number of host buffers: a step writes one while the copy of the previous step may still run. No third step
is in flight by then (O6)."""


class StagedBuffer:
    """A tensor on `device` that is overwritten in each step, by way of host buffers.

    It begins as a copy of the host tensor `initial`.
    """

    def __init__(self, initial: torch.Tensor, device: torch.device) -> None:
        self.on_device = initial.to(device, copy=True)
        """The device tensor, whose address never changes."""
        self._host = [initial.clone() for _ in range(BUFFERS)]
        if device.type == "cuda":
            self._host = [buffer.pin_memory() for buffer in self._host]
        self._turn = 0

    def next(self) -> torch.Tensor:
        """Return the next host buffer. The caller overwrites all of it, since it holds an earlier step."""
        self._turn = (self._turn + 1) % BUFFERS
        return self._host[self._turn]

    def send(self) -> None:
        """Start the copy of the buffer that `next` returned."""
        self.on_device.copy_(self._host[self._turn], non_blocking=True)
