"""`UsageTotals`: what requests have used of this engine, by day, API key and adapter.

The API process owns one, which outlives its engine processes. Requests add their tokens when they end; the
engine process adds device time and memory with its statistics. Gateways and `/metrics` read the totals.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator

from mamba_edge.usage.usage_sum import ANYONE, OTHER, UsageEntry, UsageFeed, UsageSum
from mamba_server.wire import Cost

MOST_ACCOUNTS = 256
"""Most pairs of a key and an adapter that are counted one by one; the others are counted as `other`."""
KEPT_DAYS = 3
"""Days whose entries are kept for gateways, today included."""
DAY_SECONDS = 86_400


class UsageTotals:
    """Adds up the use of the engine by key and adapter in one API process. `clock`: seconds since 1970."""

    def __init__(self, model: str, clock: Callable[[], float] = time.time) -> None:
        self.model = model
        self.incarnation = uuid.uuid4().hex
        """Random name of this process, by which gateways distinguish its totals from those of others."""
        self._clock = clock
        self._numbers: dict[tuple[str, str], int] = {}
        """Number of the account by key and adapter."""
        self._names: list[tuple[str, str]] = []
        self._sums: list[UsageSum] = []
        """Sum of each account since the start."""
        self._days: dict[int, dict[int, tuple[int, UsageSum]]] = {}
        """Revision and sum by day, as days since 1970, and account."""
        self.revision = 0
        """Number of changes so far."""
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()

    def account(self, client: str, adapter: str) -> int:
        """Return the number of the account of `client` and `adapter`.

        "" is a client without a name, or the base model without an adapter.
        """
        pair = client or ANYONE, adapter
        number = self._numbers.get(pair)
        if number is None:
            if len(self._names) >= MOST_ACCOUNTS:
                pair = OTHER, OTHER
                if pair in self._numbers:
                    return self._numbers[pair]
            number = self._numbers[pair] = len(self._names)
            self._names.append(pair)
            self._sums.append(UsageSum())
        return number

    def ended(self, account: int, prompt: int, resumed: int, output: int, *, requests: int = 1) -> None:
        """Count a request that has ended, or `requests` of them, for `account`.

        `prompt` is the number of tokens of its prompt, of which `resumed` were cached, and `output` the
        number of tokens of its answer.
        """
        self._add(account, UsageSum(requests, prompt, resumed, output))

    def on_costs(self, costs: Iterable[tuple[int, Cost]]) -> None:
        """Count the costs that the engine process reports, each since its last report."""
        for account, cost in costs:
            self._add(account, UsageSum(0, 0, 0, 0, cost.device, cost.slots, cost.pages, cost.saved))

    def _add(self, account: int, amount: UsageSum) -> None:
        if not 0 <= account < len(self._names):
            return  # a request that no account was opened for, such as one of a test
        self.revision += 1
        today = int(self._clock() // DAY_SECONDS)
        if today not in self._days:
            self._days[today] = {}
            for day in sorted(self._days)[:-KEPT_DAYS]:
                del self._days[day]
        _, before = self._days[today].get(account, (0, UsageSum()))
        self._days[today][account] = self.revision, before.plus(amount)
        self._sums[account] = self._sums[account].plus(amount)
        self._changed.set()

    def sums(self) -> Iterator[tuple[str, str, UsageSum]]:
        """Yield key, adapter and sum of each account since the start."""
        for (key, adapter), total in zip(self._names, self._sums, strict=True):
            yield key, adapter, total

    def feed(self, incarnation: str, since: int) -> UsageFeed:
        """Return the entries that changed after revision `since` of `incarnation`; all for another one."""
        after = since if incarnation == self.incarnation else 0
        entries = [
            UsageEntry(_text_of(day), *self._names[account], revision, total)
            for day, accounts in self._days.items()
            for account, (revision, total) in accounts.items()
            if revision > after
        ]
        return UsageFeed(self.incarnation, self.model, self.revision, entries)

    async def wait_beyond(self, revision: int) -> None:
        """Wait until there is a newer revision, or until `close`."""
        while self.revision <= revision and not self._closing.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def settle(self, seconds: float) -> None:
        """Wait for `seconds`, or until `close`, so that a reader gets many changes at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def close(self) -> None:
        """Release all callers that wait for a change: the process is about to end."""
        self._closing.set()
        self._changed.set()


def _text_of(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY_SECONDS))
