"""`Sessions`: saves conversations to files and loads them, for admin calls, in the engine process.

The API process opens the file, transfers it to or from the client, and passes its path. Threads read and
write the file: they ask the exporter for the memory of a checkpoint, and the importer for memory to fill. The
loop does everything else between two steps, and sends the replies.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mamba_server.cache import ManagedStateCache, Reception
from mamba_server.engine.transfers.bundle_memory import Buffers, BundleMemory, shape_of
from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.importer import Importer, ReadResult, StateSource
from mamba_server.wire import AdminCall, AdminReply
from mamba_tier.errors import SessionForeign, TierError
from mamba_tier.session_file import SessionFile, SessionNotes, read_payload, read_session, write_session
from mamba_transfer.messages import Wanted

LOAD_SECONDS = 120.0
"""Longest time, in seconds, that the load of a session may wait for memory and for its bytes."""
SAVED, LOADED = "session_save", "session_load"
"""Names of the admin calls that save and load a session."""


class Sessions:
    """Writes the states of conversations of one engine to files, and reads them into its cache.

    `wake` makes an idle loop look for work; any thread may call it.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        memory: BundleMemory,
        exporter: Exporter,
        importer: Importer,
        wake: Callable[[], None],
    ) -> None:
        self._cache, self._exporter, self._importer, self._wake = cache, exporter, importer, wake
        self._shape = shape_of(memory.layout)
        self._state_bytes = memory.layout.state_bytes
        self._inspected: deque[tuple[AdminCall, SessionFile, int]] = deque()
        """Loads whose header and notes are valid, each with its session and open file descriptor."""
        self._replies: deque[AdminReply] = deque()
        self._threads: list[threading.Thread] = []

    def begin(self, call: AdminCall) -> bool:
        """Begin a save or a load in a thread; return False for a call of another verb."""
        work = {SAVED: self._save, LOADED: self._inspect}.get(call.verb)
        if work is None:
            return False
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._guarded, args=(work, call), name="session", daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def take_replies(self) -> list[AdminReply]:
        """Return the replies to calls that have ended since the last time. The loop calls this."""
        replies = []
        while self._replies:
            replies.append(self._replies.popleft())
        return replies

    def poll(self) -> None:
        """Begin to load the sessions whose file was inspected. The loop calls this between two steps."""
        while self._inspected:
            self._load(*self._inspected.popleft())

    def close(self) -> None:
        """Wait briefly for the threads to end. Called at the end of the process."""
        for thread in self._threads:
            thread.join(1.0)

    def _guarded(self, work: Callable[[AdminCall], None], call: AdminCall) -> None:
        try:
            work(call)
        except TierError as error:
            self._reply(call, 409 if isinstance(error, SessionForeign) else 422, {"message": str(error)})
        except OSError as error:
            self._reply(call, 507, {"message": f"the session's file cannot be used: {error}"})
        except Exception as error:
            self._reply(call, 500, {"message": f"the session failed: {type(error).__name__}: {error}"})

    def _reply(self, call: AdminCall, status: int, body: dict[str, Any]) -> None:
        self._replies.append(AdminReply(call.call_id, status, body))
        self._wake()

    # --- save ----------------------------------------------------------------------------------------

    def _save(self, call: AdminCall) -> None:
        """Write the exported checkpoint of a call to its file. Runs in a thread. Raises OSError."""
        body = call.body
        depth = int(body["depth"])
        export = self._exporter.open(Wanted(depth=depth, export=body["export"]))
        if export is None:
            return self._reply(call, 503, {"message": "the state left the cache meanwhile: save again"})
        notes = SessionNotes(
            body["model"], time.time(), body["salt"], body["token_ids"][: 4 * depth], body["conversation"]
        )
        is_written = False
        try:
            descriptor = os.open(body["path"], os.O_WRONLY | os.O_CLOEXEC)
            try:
                size = write_session(descriptor, self._shape, notes, *self._split(export.buffers))
            finally:
                os.close(descriptor)
            is_written = True
        finally:
            self._exporter.close(export, delivered=is_written)
        return self._reply(call, 200, {"depth": depth, "bytes": size})

    def _split(self, buffers: Sequence[memoryview]) -> tuple[Sequence[memoryview], Sequence[memoryview]]:
        """Divide `buffers` into the buffers of the state and the buffers of the pages."""
        number, rest = 0, self._state_bytes
        while rest > 0:
            rest -= buffers[number].nbytes
            number += 1
        return buffers[:number], buffers[number:]

    # --- load ----------------------------------------------------------------------------------------

    def _inspect(self, call: AdminCall) -> None:
        """Read header and notes of the file of a call. Runs in a thread. Raises TierError, OSError."""
        descriptor = os.open(call.body["path"], os.O_RDONLY | os.O_CLOEXEC)
        try:
            session = read_session(descriptor)
            session.check_shape(self._shape)
        except BaseException:
            os.close(descriptor)
            raise
        self._inspected.append((call, session, descriptor))
        self._wake()

    def _load(self, call: AdminCall, session: SessionFile, descriptor: int) -> None:
        capacity, depth = self._cache.capacity, session.header.depth
        facts = {"depth": depth, "model": session.notes.model}
        if capacity.never_fits(depth, 1):
            os.close(descriptor)
            return self._reply(
                call, 413,
                {"message": f"the session has {depth} tokens, which need {capacity.pages_for(depth)} pages "
                 f"and a slot, and the whole arena has {capacity.slabs} slabs of {capacity.pages_per_slab} "
                 "pages: load it into an engine with a larger --arena-bytes"},
            )  # fmt: skip

        def read(
            reception: Reception, buffers: Buffers, deadline: float, cancelled: threading.Event
        ) -> ReadResult:
            is_whole = read_payload(descriptor, session, *self._split(buffers), reception.base)
            return ReadResult("valid" if is_whole else "corrupt")

        def end(outcome: str) -> None:
            os.close(descriptor)
            if outcome in ("valid", "cached", "duplicate"):
                self._reply(call, 200, {**facts, "installed": outcome == "valid"})
            elif outcome == "corrupt":
                self._reply(call, 422, {"message": "the state in the file is damaged: its checksums differ"})
            else:
                self._reply(
                    call, 503,
                    {"message": f"the engine has no memory for the session now ({outcome}): try again"},
                )  # fmt: skip

        return self._importer.bring(
            session.notes.tokens,
            session.notes.salt,
            StateSource("file", "restored", depth, read, origin="session"),
            deadline=self._importer.now() + LOAD_SECONDS,
            ended=end,
        )
