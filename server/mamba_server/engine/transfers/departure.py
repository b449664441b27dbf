"""`Departure`: an engine that ends lets its peers fetch its most valuable states first.

The API process calls it by the admin call `leave`, when the last request has ended. The peers are those of
the warm start, and each decides what is worth its bytes. Whatever fails here loses states, and nothing else.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mamba_server.engine.transfers.exporter import Exporter
from mamba_server.engine.transfers.heir import Heir
from mamba_server.engine.transfers.warm_start import addresses_of
from mamba_server.wire import AdminCall, AdminReply
from mamba_telemetry.logs import get_logger
from mamba_transfer import MOST_HOT, Address, Bequest, HotPrefix, TransferClient
from mamba_transfer.messages import MOST_HOT_BYTES

log = get_logger(__name__)
LEAVE = "leave"
"""Verb of the admin call."""
MOST_PEERS = 16
"""Peers that are asked."""


class Departure:
    """The part of one engine that hands its most valuable states to its peers before the engine ends.

    Args:
        exporter: exports of the engine.
        heir: this engine as an heir of others, which takes over no states once the engine leaves.
        client: asks the peers.
        peers: `HOST:PORT`, separated by commas.
        own: address and incarnation of the engine's transfer server.
        role: role of the engine.
        wake: interrupts the wait of an idle loop; may be called by any thread.
        clock: clock of deadlines, in seconds.
    """

    def __init__(
        self,
        exporter: Exporter,
        heir: Heir,
        client: TransferClient,
        peers: str,
        role: str,
        *,
        own: tuple[str, str],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter, self._heir, self._client = exporter, heir, client
        self._peers, self._role, self._own = peers, role, own
        self._wake, self._clock = wake, clock
        self._replies: deque[AdminReply] = deque()

    def begin(self, call: AdminCall) -> bool:
        """Begin to leave, in a thread; return False for a call of another verb. Called by the loop."""
        if call.verb != LEAVE:
            return False
        self._heir.leaving = True
        prefixes = self._exporter.hot_prefixes(MOST_HOT)
        deadline = self._clock() + float(call.body.get("seconds", 0.0))
        threading.Thread(
            target=self._leave, args=(call.call_id, prefixes, deadline), name="departure", daemon=True
        ).start()
        return True

    def take_replies(self) -> list[AdminReply]:
        """Return and clear the replies to calls that have ended. Called by the loop."""
        replies = []
        while self._replies:
            replies.append(self._replies.popleft())
        return replies

    def _leave(self, call_id: int, prefixes: list[HotPrefix], deadline: float) -> None:
        fetched, peers = 0, 0
        try:
            shares = self._shares(prefixes, deadline) if prefixes else {}
            peers = len(shares)
            if shares:
                with ThreadPoolExecutor(peers, thread_name_prefix="departure") as threads:
                    fetched = sum(
                        threads.map(
                            lambda address: self._bequeath(address, shares[address], deadline), shares
                        )
                    )
        except Exception:
            log.exception("departure_failed")
        body = {"states": len(prefixes), "peers": peers, "fetched": fetched}
        self._replies.append(AdminReply(call_id, 200, body))
        self._wake()

    def _shares(self, prefixes: list[HotPrefix], deadline: float) -> dict[Address, list[HotPrefix]]:
        """Return the prefixes that each peer is to fetch, the most valuable ones dealt out first.

        Peers have until `deadline` (seconds of the clock) to say how many states they take.
        """
        names, own = self._peers.split(","), self._own[0]
        addresses = [address for name in names for address in addresses_of(name, own)]
        addresses = list(dict.fromkeys(addresses))[:MOST_PEERS]
        if not addresses:
            return {}
        with ThreadPoolExecutor(len(addresses), thread_name_prefix="departure") as threads:
            answers = threads.map(
                lambda address: self._client.places(address, self._role, deadline=deadline), addresses
            )
            places = {address: count for address, count in zip(addresses, answers, strict=True) if count}
        shares: dict[Address, list[HotPrefix]] = {address: [] for address in places}
        room = dict.fromkeys(places, MOST_HOT_BYTES)
        for prefix in prefixes:
            size = len(prefix.token_ids)
            open_to = [
                address for address, share in shares.items()
                if len(share) < places[address] and room[address] >= size
            ]  # fmt: skip
            if not open_to:
                continue
            address = min(open_to, key=lambda each: len(shares[each]))
            shares[address].append(prefix)
            room[address] -= size
        return {address: share for address, share in shares.items() if share}

    def _bequeath(self, address: Address, share: list[HotPrefix], deadline: float) -> int:
        seconds = deadline - self._clock()
        if seconds <= 0:
            return 0
        bequest = Bequest(*self._own, tuple(share), min(seconds, 600.0))
        return self._client.bequeath(address, bequest, deadline=deadline)
