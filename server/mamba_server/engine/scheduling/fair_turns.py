"""`FairTurns`: turns of members that share a resource by weight. Pure.

Weighted fair queueing by start tags (Goyal, Vin and Cheng, 1996). The waiting queue has two levels of it:
clients, and within each client the flows of its priorities and salts. The time of a call grows at most with
the logarithm of the number of members.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Choice = TypeVar("Choice")


class Member(ABC, Generic[Key]):
    """One of several users of a resource that take turns; `weight` is its share compared with the others'."""

    __slots__ = ("key", "listed", "start", "weight")

    def __init__(self, key: Key, weight: float, start: float) -> None:
        self.key = key
        self.weight = weight
        self.start = start
        """Virtual time at which its next piece starts."""
        self.listed: float | None = None
        """Start with which it is in the heap; None = it is not."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether this member has work that could start, so that it should get a turn."""

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether this member has work at all, begun or waiting, so that its weight counts."""


SomeMember = TypeVar("SomeMember", bound=Member)  # type: ignore[type-arg]


class FairTurns(Generic[Key, SomeMember]):
    """Shares a resource among members in proportion to their weights: says whose turn it is.

    `make(key, start)` creates a member.
    """

    def __init__(self, make: Callable[[Key, float], SomeMember]) -> None:
        self._make = make
        self.members: dict[Key, SomeMember] = {}
        self._turns: list[tuple[float, Key]] = []
        """Heap of waiting members; an entry is valid while its member is `listed` with it."""
        self._idle: list[tuple[float, Key]] = []
        """Heap of members that had nothing to compute; a member that still is idle is forgotten once its
        start has passed."""
        self._active_weight = 0.0
        """Weight of all active members; weights are powers of two, so the sum is exact."""
        self._virtual = 0.0

    def of(self, key: Key) -> SomeMember:
        """Return the member of `key`, creating it if it is new."""
        if key not in self.members:
            self.members[key] = self._make(key, self._virtual)
        return self.members[key]

    def begin(self, member: SomeMember) -> None:
        """Activate `member`, which had nothing to compute."""
        # Idle time earns no credit.
        member.start = max(member.start, self._virtual)
        self._active_weight += member.weight

    def resume(self, member: SomeMember) -> None:
        """Activate `member`, which became idle a moment ago, at the start that it had."""
        self._active_weight += member.weight

    def rest(self, member: SomeMember) -> None:
        """Take `member` out of the active ones if it has nothing to compute any more."""
        if not member.active:
            self._active_weight -= member.weight
            heapq.heappush(self._idle, (member.start, member.key))

    def offer(self, member: SomeMember) -> None:
        """Let `member` be asked by `pick`, if it has something that could start."""
        if member.waits and member.listed != member.start:
            member.listed = member.start
            heapq.heappush(self._turns, (member.start, member.key))

    def charge(self, member: SomeMember, computed: float) -> None:
        """Charge an active member for its next piece, of `computed` tokens."""
        # Virtual time passes for all members as work is done, so that new members cannot starve a waiting
        # one.
        self._virtual = max(self._virtual, member.start) + computed / self._active_weight
        member.start += computed / member.weight
        self.offer(member)
        self._forget_idle()

    def pick(
        self,
        choose: Callable[[SomeMember], Choice | None],
        last: tuple[float, Key] | None = None,
        *,
        before_last: bool = False,
    ) -> Choice | None:
        """Ask the members in the order of their turns, until `choose` returns a choice for one; return that.

        `last` is the last turn to ask; with `before_last`, only earlier turns are asked. The result is None
        if `choose` returned None for all of them.
        """
        empty: list[SomeMember] = []
        choice: Choice | None = None
        while self._turns:
            start, key = self._turns[0]
            member = self.members.get(key)
            if member is not None and member.waits and member.listed == start == member.start:
                if last is not None and ((start, key) > last or (before_last and (start, key) == last)):
                    break
                choice = choose(member)
                if choice is not None:
                    break
                empty.append(member)
            heapq.heappop(self._turns)
            if member is not None and member.listed == start:
                member.listed = None
        for member in empty:
            self.offer(member)
        return choice

    def _forget_idle(self) -> None:
        """Forget members without work whose start has passed: a salt seen once is not kept for ever."""
        while self._idle and self._idle[0][0] <= self._virtual:
            _, key = heapq.heappop(self._idle)
            member = self.members.get(key)
            if member is None or member.active:
                continue
            if member.start <= self._virtual:
                del self.members[key]
            else:
                heapq.heappush(self._idle, (member.start, key))
