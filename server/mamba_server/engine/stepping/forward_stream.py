"""The forward stream: the one queue on which device work happens, and that in order (O1, O2).

The loop launches the work of a step and goes on planning; it asks for the result when it commits. Two
implementations: a worker thread for the CPU, with its plain case that does the work at once, and a CUDA
stream (`cuda_stream`).
"""

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

Result = TypeVar("Result")


class Ticket(Generic[Result]):
    """The work of one launched step."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work = work
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Do the work here and now; keeps the result or the error."""
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        self.done.set()

    def get(self) -> Result:
        """The result; raises what the work raised. The work must be done."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class ForwardStream(Protocol):
    """In-order execution beside the caller."""

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        """Queue `work`; returns at once."""
        ...

    def wait(self, ticket: Ticket[Result]) -> Result:
        """Block until the work of `ticket` (and all before it) is complete."""
        ...

    def close(self) -> None:
        """End after the queued work."""
        ...


Tickets: TypeAlias = "queue.SimpleQueue[Ticket[object] | None]"


def _work(tickets: Tickets) -> None:
    while (ticket := tickets.get()) is not None:
        ticket.run()
        # While it waits for the next, the thread keeps nothing alive: a step holds on to the whole arena.
        del ticket


class ThreadStream:
    """One worker thread: overlap is real on a CPU too, since torch lets go of the interpreter lock."""

    def __init__(self) -> None:
        self._queue: Tickets = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._queue,), name="forward-stream", daemon=True)
        self._thread.start()
        # The thread ends with the stream, also with one that nobody closed.
        weakref.finalize(self, self._queue.put, None)

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        self._queue.put(ticket)  # type: ignore[arg-type]
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        ticket.done.wait()
        return ticket.get()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=30)


class InlineStream:
    """Runs each step where it is launched: for `--no-overlap` and as the plainest case in tests."""

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        ticket.run()
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        return ticket.get()

    def close(self) -> None:
        """There is nothing to wait for: what was launched is done."""
