"""The forward stream on a CUDA device: work is issued at once, its results come back behind an event.

Issuing is asynchronous by nature, so there is no thread: the loop issues step n+1 while the device runs n.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from mamba_server.engine.forward_stream import Ticket

Result = TypeVar("Result")


class CudaStream:
    """One CUDA stream on `device`; every state write of the engine happens on it, in order (O1)."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._events: dict[int, torch.cuda.Event] = {}
        self._begun = False

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        if not self._begun:
            # Weights were converted, and arena and tables zeroed, on the stream of those who made them.
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            self._begun = True
        with torch.cuda.stream(self.stream):
            ticket.run()
            event = torch.cuda.Event()
            event.record(self.stream)
        self._events[id(ticket)] = event
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        self._events.pop(id(ticket)).synchronize()
        return ticket.get()

    def close(self) -> None:
        self.stream.synchronize()
