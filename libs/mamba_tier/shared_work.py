"""`SharedWork`: pieces of work that the calling thread and the helpers that are free do together.

A piece of work is whatever the caller divides its work into, such as the reads of one bundle.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Generic, TypeVar

Piece = TypeVar("Piece")


class SharedWork(Generic[Piece]):
    """Lets several threads take pieces of work one by one, until all are done or one of them fails."""

    def __init__(self, pieces: Iterator[Piece], do: Callable[[Piece], bool]) -> None:
        self._pieces, self._do = pieces, do
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.failed: Piece | None = None
        """The first piece for which `do` returned False; None = no piece has failed."""

    def run(self, helpers: Executor, number: int) -> None:
        """Do all pieces together with `number` helpers, and return once no thread works on any.

        Raises what `do` raises.
        """
        futures: list[Future[None]] = []
        # If the helpers have been shut down, the caller does all the work.
        with suppress(RuntimeError):
            futures.extend(helpers.submit(self._take) for _ in range(number))
        self._take()
        for future in futures:
            # A helper that has not begun by now would find no piece left.
            if not future.cancel():
                future.result()
        if self._error is not None:
            raise self._error

    def _take(self) -> None:
        while True:
            with self._lock:
                piece = None if self._error or self.failed else next(self._pieces, None)
            if piece is None:
                return
            try:
                valid = self._do(piece)
            except BaseException as error:
                with self._lock:
                    self._error = self._error or error
                return
            if not valid:
                with self._lock:
                    self.failed = self.failed or piece
                return
