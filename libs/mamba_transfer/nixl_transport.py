"""Transport over NIXL for RDMA networks: the reader's network card reads the source's memory directly.

NIXL is the optional package `nixl`, which is imported only when a transport is created. NIXL cannot cancel a
read. A read that the caller gives up therefore continues in the background as a pending writer: its landing
memory may be used again only after NIXL has reported the end of the read. A source that dies ends the read
with an error; a source that is merely suspended may delay the end without limit.
"""

import ctypes
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from mamba_transfer.checksums import BlockChecksums
from mamba_transfer.errors import ConnectionFailed, ForeignFrame, PeerLost, TransferError
from mamba_transfer.frames import Connection, Limit
from mamba_transfer.messages import Renew, pack
from mamba_transfer.transport import Arrival, WriterPending

_READ_POLL_SECONDS = 0.0005
_RENEW_SECONDS = 5.0
MOST_RUNS = 1 << 15
"""Maximum number of runs of memory in one description."""


_Integer = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class NixlUnusable(TransferError):
    """The settings ask for NIXL, and its package is not installed, or it refuses the memory of the states."""


def nixl_api() -> Any:
    """Return NIXL's module. Raises NixlUnusable."""
    try:
        return importlib.import_module("nixl._api")
    except ImportError as error:
        raise NixlUnusable(
            f"the transport nixl needs the package `nixl` ({error}): pip install 'mambaserve[nixl]', or use "
            "the transport sockets"
        ) from error


class _Memory(msgspec.Struct, array_like=True, frozen=True):
    """Describes a source's memory in plain integers, because NIXL's own form is a pickle."""

    agent: bytes
    """Metadata of the source's NIXL agent, including the access keys of its registered memory."""
    runs: Annotated[list[tuple[_Integer, _Integer]], msgspec.Meta(max_length=MOST_RUNS)]
    """Address and length in bytes of each run of memory, in the order in which the bytes are sent."""


class NixlTransport:
    """Copies states with a NIXL agent, which has one region of memory registered."""

    name = "nixl"

    def __init__(self, agent: str, memory: memoryview) -> None:
        """Create the agent, and register `memory`, in which all bundles must lie. Raises NixlUnusable.

        Args:
            agent: name of the agent, unlike the names of all other agents and of earlier runs of this engine.
            memory: writable host memory as plain bytes, which stays at its address.
        """
        api = nixl_api()
        self._memory = memory
        self._first = _address(memory)
        # NIXL's agents are not safe to use from several threads.
        self._one = threading.Lock()
        try:
            self._agent: Any = api.nixl_agent(agent, api.nixl_agent_config(backends=["UCX"]))
            self._registered = self._agent.register_memory([(self._first, memory.nbytes, 0, "")], "DRAM")
            self._metadata: bytes = self._agent.get_agent_metadata()
        except Exception as error:  # NIXL's errors have no class in common
            raise NixlUnusable(
                f"NIXL refuses {memory.nbytes} bytes of memory ({error}): see what UCX reports with "
                "UCX_LOG_LEVEL=info, raise the limit of locked memory (ulimit -l) for RDMA, or use the "
                "transport sockets"
            ) from error
        self._peers: dict[bytes, str] = {}

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return the description of `pieces` for the reader. Raises ValueError for unregistered memory."""
        runs = self._runs(pieces)
        if len(runs) > MOST_RUNS:
            raise ValueError(
                f"a bundle of {len(runs)} runs of memory is above {MOST_RUNS}: use the transport sockets"
            )
        return msgspec.msgpack.encode(_Memory(self._metadata, runs))

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> bytes:
        """Return the checksums of the sub-blocks. Raises PeerLost, or Stopped.

        Nothing is sent: the reader reads the memory by itself.
        """
        checksums = BlockChecksums(sizes)
        for piece in pieces:
            limit().check()
            checksums.update(piece)
        return checksums.digests

    def receive(
        self,
        connection: Connection,
        description: bytes,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Limit,
    ) -> Arrival:
        """Read the source's memory into `pieces`. Raises PeerLost, ForeignFrame, or WriterPending.

        `description` is the source's description of its memory, and `sizes` are the bytes of the sub-blocks.
        During the read, messages over `connection` renew the lease.
        """
        try:
            source = msgspec.msgpack.decode(description, type=_Memory)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ForeignFrame(f"no description of memory: {error}") from error
        pairs = _pairs(self._runs(pieces), source.runs)
        read = self._begin(source.agent, pairs)
        renewal = limit.clock() + _RENEW_SECONDS
        try:
            while not read.ended():
                limit.check()
                if limit.clock() >= renewal:
                    connection.send_frame(pack(Renew(("",))), limit.step())
                    renewal = limit.clock() + _RENEW_SECONDS
                time.sleep(_READ_POLL_SECONDS)
        except ConnectionFailed as reason:
            raise WriterPending(reason, read) from reason
        if read.failed:
            with self._one:
                self._peers.pop(source.agent, None)
            raise PeerLost("the read of the source's memory failed")
        checksums = BlockChecksums(sizes)
        for piece in pieces:
            checksums.update(piece)
        return Arrival(checksums.digests, sum(sizes))

    def _begin(self, agent: bytes, pairs: Sequence[tuple[int, int, int]]) -> "NixlRead":
        """Begin a read and return it. Raises PeerLost if NIXL refuses it."""
        local = [(address, length, 0) for address, _, length in pairs]
        remote = [(address, length, 0) for _, address, length in pairs]
        nixl = self._agent
        with self._one:
            try:
                if (peer := self._peers.get(agent)) is None:
                    added = nixl.add_remote_agent(agent)
                    peer = self._peers[agent] = added.decode() if isinstance(added, bytes) else added
                handle = nixl.initialize_xfer(
                    "READ", nixl.get_xfer_descs(local, "DRAM"), nixl.get_xfer_descs(remote, "DRAM"), peer
                )
            except Exception as error:  # NIXL's errors have no class in common
                raise PeerLost(f"NIXL cannot read from the source: {error}") from error
            read = NixlRead(nixl, handle, self._one)
            read.post()
            return read

    def _runs(self, pieces: Sequence[memoryview]) -> list[tuple[int, int]]:
        runs = [(_address(piece), piece.nbytes) for piece in pieces]
        last = self._first + self._memory.nbytes
        if any(address < self._first or address + length > last for address, length in runs):
            raise ValueError("a bundle lies outside the memory that is registered with NIXL")
        return runs


class NixlRead:
    """Read of a source's memory that NIXL carries out, and that may write to landing memory until it ends.

    Attributes:
        failed: whether the read ended with an error.
    """

    def __init__(self, agent: Any, handle: Any, one: threading.Lock) -> None:
        """Observe the NIXL transfer `handle` of `agent`; `one` is the lock for all calls of `agent`."""
        self.failed = False
        self._agent = agent
        # The read holds its handle until it ends, because NIXL releases a handle that is garbage-collected.
        self._handle = handle
        self._one = one

    def post(self) -> None:
        """Begin the read. The caller must hold the lock of the agent."""
        self._look(self._agent.transfer)

    def ended(self) -> bool:
        """Return whether the read has ended, so that nothing writes to the landing memory any more."""
        with self._one:
            if self._handle is not None:
                self._look(self._agent.check_xfer_state)
            return self._handle is None

    def _look(self, call: Callable[[Any], str]) -> None:
        try:
            state = call(self._handle)
        except Exception as error:
            # A lost source ends the read. Of any other error NIXL does not say whether bytes still land, so
            # that the read counts as going on, and its memory stays quarantined.
            self.failed = True
            if not _source_is_lost(error):
                return
            state = "ERR"
        if state != "PROC":
            self.failed |= state == "ERR"
            with suppress(Exception):  # NIXL may have released the handle of a failed read already
                self._agent.release_xfer_handle(self._handle)
            self._handle = None


def _source_is_lost(error: Exception) -> bool:
    """Return whether a NIXL error, which has no common class, says that the connection is lost."""
    return "Disconnect" in type(error).__name__


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _pairs(
    landing: Sequence[tuple[int, int]], source: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return (local address, remote address, length in bytes) for each run that is contiguous on both sides.

    `landing` and `source` describe the same bytes in the same order, cut into different runs. Raises
    ForeignFrame if they do not have the same total length.
    """
    if sum(length for _, length in landing) != sum(length for _, length in source):
        raise ForeignFrame("the description of the memory is not that of the bundle")
    pairs = []
    runs = iter(source)
    remote = left = 0
    for local, length in landing:
        while length:
            if not left:
                remote, left = next(runs)
                continue
            step = min(length, left)
            pairs.append((local, remote, step))
            local, remote, length, left = local + step, remote + step, length - step, left - step
    return pairs
