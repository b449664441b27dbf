"""The forward stream: the one queue on which device work happens, in order.

The order is what rules O1 and O2 of docs/explanation/state-cache.md demand. The loop launches the work of a
step and continues planning; it waits for the result when it commits. Implementations: a worker thread for
the CPU, a simple stream that does the work at once, and a CUDA stream (`cuda_stream`).
"""

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

Result = TypeVar("Result")


class Ticket(Generic[Result]):
    """Stands for the work of one launched step: `get` returns its result once it is done."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work = work
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Do the work in this thread, and keep the result or the error."""
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        self.done.set()

    def get(self) -> Result:
        """Return the result, or raise the error of the work, which must be done."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class ForwardStream(Protocol):
    """Does device work in the order of the launches, while the caller goes on."""

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        """Queue `work` and return at once."""
        ...

    def wait(self, ticket: Ticket[Result]) -> Result:
        """Block until the work of `ticket` (and all before it) is complete."""
        ...

    def close(self) -> None:
        """Close the stream after the queued work."""
        ...


Tickets: TypeAlias = "queue.SimpleQueue[Ticket[object] | None]"


def _work(tickets: Tickets) -> None:
    while (ticket := tickets.get()) is not None:
        ticket.run()
        # While it waits for the next ticket, the thread keeps nothing alive: a step refers to the whole
        # arena.
        del ticket


class ThreadStream:
    """Stream of a CPU: one worker thread computes the steps while the loop plans the next one.

    Both run at the same time, because torch releases Python's interpreter lock while it computes.
    """

    def __init__(self) -> None:
        self._queue: Tickets = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._queue,), name="forward-stream", daemon=True)
        self._thread.start()
        # The thread ends with the stream, even if nobody closed it.
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
    """Does each step at its launch, in the caller's thread: for `--no-overlap` and for tests."""

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        ticket.run()
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        return ticket.get()

    def close(self) -> None:
        """Do nothing: the launched work is done."""
