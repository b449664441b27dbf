"""`FairTurns`: whose turn it is among members that share something by weight. Pure.

Weighted fair queueing by start tags (Goyal, Vin and Cheng, 1996). The waiting queue has two levels of it:
clients, and within each client the flows of its priorities and salts. No call takes longer for more members
than the logarithm of their number.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class Member(ABC, Generic[Key]):
    """What takes turns: `weight` is its share in proportion to others."""

    __slots__ = ("key", "listed", "start", "weight")

    def __init__(self, key: Key, weight: float, start: float) -> None:
        self.key = key
        self.weight = weight
        self.start = start
        """Virtual time at which its next piece starts."""
        self.listed: float | None = None
        """The start under which it stands in the heap; None = it does not."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether it has something that could start."""

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether it has something to compute."""


SomeMember = TypeVar("SomeMember", bound=Member)  # type: ignore[type-arg]


class FairTurns(Generic[Key, SomeMember]):
    """The members of one level. `make` makes one of a key, at a start."""

    def __init__(self, make: Callable[[Key, float], SomeMember]) -> None:
        self._make = make
        self.members: dict[Key, SomeMember] = {}
        self._turns: list[tuple[float, Key]] = []
        """A heap of members that wait; an entry counts while its member is `listed` under it."""
        self._idle: list[tuple[float, Key]] = []
        """A heap of members that had nothing to compute: forgotten once they owe nothing either."""
        self._active_weight = 0.0
        """Of all active members; weights are powers of two, so the sum is exact."""
        self._virtual = 0.0

    def of(self, key: Key) -> SomeMember:
        """The member of that key, which may be new."""
        if key not in self.members:
            self.members[key] = self._make(key, self._virtual)
        return self.members[key]

    def begin(self, member: SomeMember) -> None:
        """The member, which had nothing to compute, is about to have something."""
        # Time spent empty earns nothing.
        member.start = max(member.start, self._virtual)
        self._active_weight += member.weight

    def go_on(self, member: SomeMember) -> None:
        """The member that rested a moment ago goes on, at the start that it had."""
        self._active_weight += member.weight

    def rest(self, member: SomeMember) -> None:
        """The member may have nothing to compute any more."""
        if not member.active:
            self._active_weight -= member.weight
            heapq.heappush(self._idle, (member.start, member.key))

    def offer(self, member: SomeMember) -> None:
        """The member may have something that could start."""
        if member.waits and member.listed != member.start:
            member.listed = member.start
            heapq.heappush(self._turns, (member.start, member.key))

    def charge(self, member: SomeMember, computed: float) -> None:
        """The next piece of an active member, of so many tokens, starts: the member pays."""
        # Time passes for everybody as work is done, so ever new members cannot starve one that has to wait.
        self._virtual = max(self._virtual, member.start) + computed / self._active_weight
        member.start += computed / member.weight
        self.offer(member)
        self._forget_idle()

    def pick(
        self,
        choose: Callable[[SomeMember], Found | None],
        last: tuple[float, Key] | None = None,
        *,
        before_last: bool = False,
    ) -> Found | None:
        """What `choose` finds at the first member where it finds something, at none after the turn `last`;
        with `before_last`, not at that one either."""
        empty: list[SomeMember] = []
        found: Found | None = None
        while self._turns:
            start, key = self._turns[0]
            member = self.members.get(key)
            if member is not None and member.waits and member.listed == start == member.start:
                if last is not None and ((start, key) > last or (before_last and (start, key) == last)):
                    break
                found = choose(member)
                if found is not None:
                    break
                empty.append(member)
            heapq.heappop(self._turns)
            if member is not None and member.listed == start:
                member.listed = None
        for member in empty:
            self.offer(member)
        return found

    def _forget_idle(self) -> None:
        """Forget members that neither have work nor owe anything: a salt seen once is not kept for ever."""
        while self._idle and self._idle[0][0] <= self._virtual:
            _, key = heapq.heappop(self._idle)
            member = self.members.get(key)
            if member is None or member.active:
                continue
            if member.start <= self._virtual:
                del self.members[key]
            else:
                heapq.heappush(self._idle, (member.start, key))
