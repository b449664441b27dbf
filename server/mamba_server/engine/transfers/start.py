"""Creation of everything that transfers states of one engine: server, client, store and warm start.

Called once, after the engine has booted and before it is ready. The settings decide which of them are
created.
"""

import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mamba_server.cache import Reception, Tokens
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import ForwardStream
from mamba_server.engine.transfers.bundle_memory import (
    Buffers,
    BundleMemory,
    DeviceBundleMemory,
    HostBundleMemory,
    shape_of,
)
from mamba_server.engine.transfers.byte_mover import byte_mover
from mamba_server.engine.transfers.departure import Departure
from mamba_server.engine.transfers.engine_transfers import EngineTransfers
from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.heir import Heir
from mamba_server.engine.transfers.importer import Importer, ReadResult
from mamba_server.engine.transfers.sessions import Sessions
from mamba_server.engine.transfers.tier import Tier
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.engine.transfers.transports import TransfersUnusable, transport_of
from mamba_server.engine.transfers.warm_start import WarmStart
from mamba_server.wire import Fetch
from mamba_settings.engine_settings import EngineSettings
from mamba_telemetry.logs import get_logger
from mamba_tier.bundle_shape import StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.errors import DirectoryBusy, TierError
from mamba_transfer import (
    Address,
    Peer,
    StateLayout,
    TransferClient,
    TransferServer,
    UnusableAddress,
    Verdict,
    Wanted,
)
from mamba_transfer.socket_transport import SocketTransport

log = get_logger(__name__)
MAX_SHARED_FOLDERS = 1024
"""Engines that may share one directory of disk caches."""
TELL_THREADS = 2
TELL_SECONDS = 2.0
"""Time to tell another engine that an export is still wanted, or no longer."""
POD_IP = "POD_IP"
"""Environment variable with the IP address under which other pods reach this one."""


@dataclass(frozen=True, slots=True)
class TransferEndpoint:
    """Where other engines fetch states of this one; without an address, it serves none."""

    address: str = ""
    incarnation: str = ""
    sessions: Sessions | None = None
    """Saves and loads of conversations for admin calls; None = the engine caches no prefixes."""
    warm_start: WarmStart | None = None
    """Fetch of prefixes from other engines before this one is ready; None = no other engines are
    configured."""
    departure: Departure | None = None
    """Hand-over of states to other engines before this one ends; None = no other engines are configured."""


def start_transfers(
    core: EngineCore,
    settings: EngineSettings,
    stream: ForwardStream,
    arena: torch.Tensor,
    layout: StateLayout,
    wake: Callable[[], None],
) -> TransferEndpoint:
    """Create the transfers that the settings ask for, if any, and return the engine's endpoint.

    `arena` is the memory of the arena as bytes. `wake` makes an idle loop look for work. Raises
    TransfersUnusable.
    """
    if not settings.prefix_caching:
        return TransferEndpoint()
    serves, tiered = settings.transfer_port is not None, bool(settings.disk_cache or settings.host_memory)
    memory: BundleMemory = (
        DeviceBundleMemory(arena, layout, stream) if arena.is_cuda else HostBundleMemory(arena, layout)
    )
    cache, counts, lease = core.cache, TransferCounts(), settings.transfer_lease
    importer = Importer(cache, memory, counts, lease_seconds=lease, wake=wake, clock=core.clock)
    exporter = Exporter(cache, memory, counts, lease_seconds=lease, wake=wake, clock=core.clock)
    sessions = Sessions(cache, memory, exporter, importer, wake)
    tier, server, heir = None, None, None
    if tiered:
        store = _open_store(settings, layout)
        tier = Tier(
            store, memory, counts, core.speed, importer.bandwidth,
            page_size=layout.page_size,
            outlives_process=settings.disk_cache is not None, clock=core.clock,
        )  # fmt: skip
    endpoint, transport = TransferEndpoint(sessions=sessions), None
    if serves:
        sockets = SocketTransport(byte_mover())
        transport = transport_of(settings, arena) or sockets
        incarnation = secrets.token_hex(8)
        heir = Heir(
            cache, layout, settings.role, core.speed, importer.bandwidth,
            step=lambda: core.step_number + 1, wake=wake, clock=core.clock,
        )  # fmt: skip
        server = TransferServer(
            layout, incarnation, exporter, heir=heir, clock=core.clock,
            transports=(sockets, transport),
        )  # fmt: skip
        address = _listen(server, settings)
        endpoint = TransferEndpoint(str(address), incarnation, sessions)
        log.info(
            "transfer_server", address=str(address), incarnation=incarnation, role=settings.role,
            transport=settings.transfer_transport,
        )  # fmt: skip
    client = TransferClient(layout, transport=transport, clock=core.clock)
    transfers = core.transfers = EngineTransfers(
        cache,
        importer,
        counts,
        lambda: core.step_number + 1,
        exporter,
        sessions,
        core.speed,
        layout,
        peers=PeerReader(client) if server is not None else None,
        tier=tier,
        heir=heir,
        close=server.close if server is not None else lambda: None,
    )
    if settings.warm_peers is None or heir is None:
        return endpoint
    departure = Departure(
        exporter, heir, client, settings.warm_peers, settings.role,
        own=(endpoint.address, endpoint.incarnation), wake=wake, clock=core.clock,
    )  # fmt: skip
    return replace(
        endpoint,
        departure=departure,
        warm_start=WarmStart(
            cache, transfers, client, settings.warm_peers, endpoint.address, seconds=settings.warm_seconds,
            clock=core.clock,
        ),
    )  # fmt: skip


class PeerReader:
    """Reads states from other engines, and tells these which states are not read after all."""

    def __init__(self, client: TransferClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(TELL_THREADS, thread_name_prefix="export-lease")

    def give_up(self, fetch: Fetch) -> None:
        """Let another engine free the export of `fetch`, in a thread."""
        self._tell(fetch, lambda peer, deadline: self._client.release(peer, fetch.export, deadline=deadline))

    def renew(self, fetch: Fetch) -> None:
        """Let another engine hold the export of `fetch` for a further lease, in a thread."""
        self._tell(fetch, lambda peer, deadline: self._client.renew(peer, [fetch.export], deadline=deadline))

    def _tell(self, fetch: Fetch, call: Callable[[Peer, float], object]) -> None:
        try:
            peer = Peer(Address.parse(fetch.address), fetch.incarnation)
        except UnusableAddress:
            return
        self._threads.submit(call, peer, self._client.clock() + TELL_SECONDS)

    def close(self) -> None:
        """Drop the messages to other engines that are not being sent yet: an export ends with its lease."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self,
        fetch: Fetch,
        prefix: Tokens,
        salt: str,
        reception: Reception,
        buffers: Buffers,
        deadline: float,
        cancelled: threading.Event,
    ) -> ReadResult:
        """Fill `buffers` with the state of `prefix` and the pages of the tokens [reception.base, depth)."""
        try:
            peer = Peer(Address.parse(fetch.address), fetch.incarnation)
        except UnusableAddress as error:
            return ReadResult("refused", str(error))
        request = Wanted(
            depth=fetch.depth,
            base=reception.base,
            export=fetch.export,
            salt="" if fetch.export else salt,
            token_ids=b"" if fetch.export else prefix.astype("<i4").tobytes(),
        )
        outcome = self._client.fetch(peer, request, buffers, deadline=deadline, cancelled=cancelled.is_set)
        detail = outcome.detail if outcome.verdict is not Verdict.VALID else ""
        return ReadResult(outcome.verdict.value, detail, outcome.writer)


def _listen(server: TransferServer, settings: EngineSettings) -> Address:
    """Open the server's port; return the address that other engines can reach. Raises TransfersUnusable."""
    host, port = settings.transfer_host, settings.transfer_port or 0
    try:
        bound = server.start(host, port)
        if not ipaddress.ip_address(host).is_unspecified:
            return bound
        return Address.parse(str(Address(os.environ.get(POD_IP) or _own_address(bound), bound.port)))
    except (OSError, ValueError) as error:
        raise TransfersUnusable(
            f"the transfer server cannot listen on {host} port {port}: {error}; set --transfer-host to an IP "
            f"address of this machine, and --transfer-port to a free port. Where it listens on every "
            f"address, the variable {POD_IP} names the one at which others reach it"
        ) from error


def _own_address(bound: Address) -> str:
    family = socket.AF_UNSPEC if ":" in bound.host else socket.AF_INET
    return str(socket.getaddrinfo(socket.gethostname(), None, family)[0][4][0])


def _open_store(settings: EngineSettings, layout: StateLayout) -> BundleStore:
    """Open the store of bundles, in the first usable directory. Raises TransfersUnusable."""
    try:
        for directory in _store_directories(settings):
            budgets = StoreSettings(
                host_bytes=settings.host_memory or 0,
                disk_bytes=settings.disk_cache_bytes or 0,
                directory=directory,
            )
            try:
                return BundleStore(shape_of(layout), budgets)
            except DirectoryBusy:
                if not settings.disk_cache_shared:
                    raise
    except TierError as error:
        raise TransfersUnusable(f"the tiers of the state cache cannot be used: {error}") from error
    raise TransfersUnusable(
        f"other engines use all {MAX_SHARED_FOLDERS} folders of {settings.disk_cache}: give some engines "
        "another directory with --disk-cache"
    )


def _store_directories(settings: EngineSettings) -> Iterator[Path | None]:
    """Yield the directories that the store may use, in the order in which they are tried.

    None = the store uses no disk.
    """
    if settings.disk_cache is None:
        yield None
    elif settings.disk_cache_shared:
        yield from (Path(settings.disk_cache) / str(number) for number in range(MAX_SHARED_FOLDERS))
    else:
        yield Path(settings.disk_cache)
