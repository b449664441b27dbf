"""`SimulatedStream`: a forward stream whose launched steps complete when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from mamba_server.engine.stepping.forward_stream import Result, Ticket


class SimulatedStream:
    """Completes launched steps in order, but only when told or when waited for.

    `eager()` is asked after each launch how many of the queued steps to complete at once: a test makes it
    explore every order of launches and completions.
    """

    def __init__(self, eager: Callable[[int], int]) -> None:
        self._eager = eager
        self._queued: list[Ticket[object]] = []

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        self._queued.append(ticket)  # type: ignore[arg-type]
        self.complete(min(len(self._queued), self._eager(len(self._queued))))
        return ticket

    def complete(self, count: int) -> None:
        """Run the `count` oldest queued steps."""
        for ticket in self._queued[:count]:
            ticket.run()
        del self._queued[:count]

    def wait(self, ticket: Ticket[Result]) -> Result:
        while not ticket.done.is_set():
            self.complete(1)
        return ticket.get()

    def close(self) -> None:
        self.complete(len(self._queued))
