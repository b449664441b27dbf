"""The warm start: before it is ready, an engine fetches the most valuable prefixes of other engines.

The engine process runs it once. An engine that cannot be reached, is slow, or serves another model is
skipped; it delays the start by no more than the time that the settings allow, and is never an error.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from mamba_server.cache import ManagedStateCache, Tokens
from mamba_server.engine.transfers.engine_transfers import EngineTransfers
from mamba_server.engine.transfers.importer import MOST_RECEPTIONS
from mamba_server.wire import Fetch
from mamba_telemetry.logs import get_logger
from mamba_transfer import MOST_HOT, Address, HotPrefix, TransferClient

log = get_logger(__name__)
STAGE = "fetching prefixes from peers"
ARENA_SHARE = 0.5
"""Maximum share of the arena, from 0 to 1, that fetched prefixes may take."""
LOOK_SECONDS = 0.002
Report = Callable[[str, int, int], None]


class PeerPrefix(NamedTuple):
    """A prefix of which another engine has a checkpoint that this one may fetch."""

    fetch: Fetch
    tokens: Tokens
    salt: str


class WarmStart:
    """Fetches the most valuable prefixes of other engines into the cache of one engine before it is ready.

    `peers` are the transfer servers of other engines, `HOST:PORT` separated by commas. `own` is the address
    of this engine's own server, which is skipped. It takes at most `seconds`.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        transfers: EngineTransfers,
        client: TransferClient,
        peers: str,
        own: str,
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._transfers, self._client, self._clock = cache, transfers, client, clock
        self._peers, self._own = peers, own
        self._began = clock()
        self._deadline = self._began + seconds
        self._under_way = 0
        self._outcomes: list[str] = []

    def run(self, report: Report) -> None:
        """Fetch prefixes until none are left, the share of the arena is full, or the time is over."""
        report(STAGE, 0, 1)
        threads = ThreadPoolExecutor(max(1, len(self._peers.split(","))), thread_name_prefix="warm-start")
        questions = [threads.submit(self._prefixes_of, name) for name in self._peers.split(",")]
        while self._clock() < self._deadline and not all(each.done() for each in questions):
            # Other engines that start at the same time may request prefixes of this one already.
            self._transfers.arrived()
            wait(questions, LOOK_SECONDS)
        # A thread that still waits for a name server is not waited for; it ends by itself.
        threads.shutdown(wait=False, cancel_futures=True)
        lists = [prefixes for each in questions if each.done() for prefixes in each.result()]
        self._fetch(_merged(lists), report)
        report(STAGE, 1, 1)
        log.info(
            "warm_start", peers=len(lists), prefixes=self._outcomes.count("valid"),
            not_fetched=len(self._outcomes) - self._outcomes.count("valid"),
            seconds=round(self._clock() - self._began, 3),
        )  # fmt: skip

    def _prefixes_of(self, name: str) -> list[list[PeerPrefix]]:
        """Return the prefixes of each engine behind a host name. Runs in a thread."""
        lists = []
        for address in addresses_of(name, self._own):
            hottest = self._client.hottest(address, MOST_HOT, deadline=self._deadline)
            if hottest is not None:
                lists.append([_of_peer(address, hottest.incarnation, each) for each in hottest.prefixes])
        return lists

    def _fetch(self, prefixes: list[PeerPrefix], report: Report) -> None:
        """Fetch the prefixes, several at a time; return when all have ended or the time is over."""
        waiting, count = deque(prefixes), len(prefixes)
        while (waiting or self._under_way) and self._clock() < self._deadline:
            while waiting and self._under_way < MOST_RECEPTIONS and self._has_room():
                prefix = waiting.popleft()
                self._under_way += 1
                self._transfers.bring(*prefix, deadline=self._deadline, ended=self._end)
            if not self._under_way:
                break
            self._transfers.arrived()
            report(STAGE, len(self._outcomes), count)
            time.sleep(LOOK_SECONDS)
        # Fetches that are not complete by now are cancelled.
        self._transfers.arrived()

    def _has_room(self) -> bool:
        capacity = self._cache.capacity
        return capacity.free_slots - self._under_way > (1 - ARENA_SHARE) * capacity.slabs

    def _end(self, outcome: str) -> None:
        self._under_way -= 1
        self._outcomes.append(outcome)


def addresses_of(name: str, own: str) -> list[Address]:
    """Return the transfer servers behind `HOST:PORT`, without the one at `own`; none if it is unknown."""
    host, _, port = name.strip().rpartition(":")
    try:
        entries = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        log.info("peer_unknown", peer=name, reason=str(error))
        return []
    itself = {Address.parse(own)} if own else set()
    return sorted({Address(str(each[4][0]), int(port)) for each in entries} - itself, key=str)


def _of_peer(address: Address, incarnation: str, prefix: HotPrefix) -> PeerPrefix:
    tokens = np.frombuffer(prefix.token_ids, "<i4").astype(np.int32)
    return PeerPrefix(Fetch(str(address), incarnation, len(tokens)), tokens, prefix.salt)


def _merged(lists: list[list[PeerPrefix]]) -> list[PeerPrefix]:
    """Return the prefixes of all engines without duplicates, the most valuable of each engine first."""
    merged: dict[tuple[str, bytes], PeerPrefix] = {}
    for row in zip_longest(*lists):
        for prefix in row:
            if prefix is not None:
                merged.setdefault((prefix.salt, prefix.tokens.tobytes()), prefix)
    return list(merged.values())
