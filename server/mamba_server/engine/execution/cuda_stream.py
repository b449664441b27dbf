"""The forward stream on a CUDA device: work is issued at once, an event marks its completion.

Issuing is asynchronous by nature, so there is no thread: the loop issues step n+1 while the device runs n.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from mamba_server.engine.stepping.forward_stream import Ticket

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class CudaStream:
    """Runs device work on one stream of `device`, in order; every state write of the engine is on it.

    This is rule O1 of docs/explanation/state-cache.md.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._events: dict[int, torch.cuda.Event] = {}
        self._begun = False

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        """Issue `work` now. The ticket gets every error: on a lost device each call of torch fails."""
        ticket = Ticket(work)
        try:
            self._issue(ticket)
        except Exception as error:
            # The error of the work itself comes first: it is the cause.
            ticket.error = ticket.error or error
            ticket.done.set()
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        event = self._events.pop(id(ticket), None)
        if event is not None:
            event.synchronize()
        return ticket.get()

    def is_complete(self, ticket: Ticket[Result]) -> bool:
        """Return whether the device has done the work of `ticket`, without waiting."""
        event = self._events.get(id(ticket))
        return ticket.done.is_set() and (event is None or event.query())

    def close(self) -> None:
        """Wait for the issued work.

        On a device that has failed, the wait fails. That is only logged, because the requests have got their
        errors already.
        """
        try:
            self.stream.synchronize()
        except RuntimeError as error:
            log.warning("the work issued to the device did not end: %s", error)

    def _issue(self, ticket: Ticket[Result]) -> None:
        if not self._begun:
            # Weights were converted, and arena and tables zeroed, on the current stream of their creator.
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            self._begun = True
        with torch.cuda.stream(self.stream):
            ticket.run()
            event = torch.cuda.Event()
            event.record(self.stream)
        self._events[id(ticket)] = event
