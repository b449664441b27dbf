"""Nodes in the order of their eviction: a heap in which each node stands once and can be moved or taken out.

What is out of date is mended at once. Left to be skipped later, it would pile up, and the one eviction that
comes upon the pile, or has to sift it out, makes all running answers wait. Called by the eviction policy.
"""

import itertools
from collections.abc import Iterator

from mamba_server.cache.node import Node

_Entry = tuple[float, int, Node]
"""Priority, how many were put in before (so no two compare equal), node."""


class EvictionHeap:
    """A binary heap by priority, equals by when they were put in; `node.victim_at` is the place of a node."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        """All nodes, in no order that means anything."""
        return (entry[2] for entry in self._entries)

    def put(self, node: Node) -> None:
        """Put `node` in, or where its priority belongs now."""
        entry = (node.priority, next(self._order), node)
        if node.victims is self:
            self._place(node.victim_at, entry)
            return
        if node.victims is not None:
            node.victims.remove(node)
        node.victims = self
        self._entries.append(entry)
        self._rise(len(self._entries) - 1, entry)

    def pop(self) -> Node | None:
        """Take out the first; None if there is none."""
        if not self._entries:
            return None
        node = self._entries[0][2]
        self.remove(node)
        return node

    def remove(self, node: Node) -> None:
        """Take out `node`, which is in."""
        node.victims = None
        last = self._entries.pop()
        if last[2] is not node:
            self._place(node.victim_at, last)

    def _place(self, at: int, entry: _Entry) -> None:
        """Put `entry` at `at`, whose own is gone, and from there to where it belongs."""
        if at and entry < self._entries[(at - 1) >> 1]:
            self._rise(at, entry)
        else:
            self._sink(at, entry)

    def _rise(self, at: int, entry: _Entry) -> None:
        entries = self._entries
        while at:
            above = (at - 1) >> 1
            other = entries[above]
            if other < entry:
                break
            entries[at] = other
            other[2].victim_at = at
            at = above
        entries[at] = entry
        entry[2].victim_at = at

    def _sink(self, at: int, entry: _Entry) -> None:
        entries = self._entries
        size = len(entries)
        below = 2 * at + 1
        while below < size:
            other = entries[below]
            if below + 1 < size and entries[below + 1] < other:
                below += 1
                other = entries[below]
            if entry < other:
                break
            entries[at] = other
            other[2].victim_at = at
            at = below
            below = 2 * at + 1
        entries[at] = entry
        entry[2].victim_at = at
