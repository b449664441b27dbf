"""`StateCache`: what the engine may ask of a state cache. `mamba_server.cache` exports it and hides the rest.

Rules for all of it. The cache is pure: no clock, no device, and one caller at a time, between two launches.
A shortage is an answer and never an exception: None or False means "not now", and then nothing has changed.
Only `LedgerViolation` is raised, where the caller or the cache broke an invariant. Memory that a launched
step names is free only after `advance` has passed that step, whoever gives it back.

A state that leaves the arena for another engine, or comes from one, would be two methods more of
`StateCache`: one that locks a checkpoint like `match` and `admit` do and reads its slot and pages until the
copy is complete, and one that allocates like `admit` and ends in the tree like `commit`. Drafted tokens would
be another argument of `launch`, whose depth then may shrink at the commit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mamba_planner.strategy import Reservation
from mamba_server.cache.capacity import Capacity
from mamba_server.cache.counters import CacheCounters
from mamba_server.cache.eviction import Policy
from mamba_server.cache.ledger import LedgerAccount
from mamba_server.cache.node import Tokens
from mamba_server.cache.persistent_batch import Bools, Ints
from mamba_server.cache.prefix_listener import PrefixListener
from mamba_server.cache.sequence_allocation import Checkpoint, SequenceAllocation
from mamba_server.cache.tree import Match


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of a cache that are in force."""

    strategy: Reservation
    track_interval: int
    """Tokens between two checkpoints of a prompt or an answer."""
    cap: int
    """Most checkpoints that a prompt adds, and that a path keeps while slots are short."""
    eviction: Policy
    prefix_caching: bool = True
    min_checkpoint_depth: int = 0
    """States of fewer tokens are not kept."""
    fingerprint: str = ""
    """Fingerprint of the weights, tokenizer, dtype and layout whose states the cache holds; never changes."""

    @property
    def remembers_prompts(self) -> bool:
        """Whether the cache counts how often each prompt comes back, cached or not."""
        return self.prefix_caching and self.eviction == "RecomputeCost"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a change is not made, with its numbers, for the operator who asked for it."""

    message: str


class DecodeRows(NamedTuple):
    """Rows that decode, before a step: arrays in the order that was asked for."""

    depth: Ints
    """Tokens in the live slot."""
    needs_page: Bools
    """Whether the next token lies on a page that the row does not have: `extend` first."""
    last: Bools
    """Whether the next token is the last that the sequence may sample."""


class StateCache(Protocol):
    """Cache of one device, as scheduler and core use it. A sequence calls in the order given here."""

    @property
    def settings(self) -> CacheSettings:
        """Read only: the settings in force."""

    @property
    def capacity(self) -> Capacity:
        """Read only: what there is at this moment. Take it anew after any other call."""

    @property
    def counters(self) -> CacheCounters:
        """Read only: what has happened since the start."""

    def match(self, token_ids: Tokens, salt: str, step: int) -> Match:
        """Read only: what the tree has of a prompt that would be launched in `step`. Void after `admit`."""

    def admit(
        self,
        token_ids: Tokens,
        salt: str,
        match: Match,
        context: int,
        turn_boundary: int,
        branches: Sequence[int] = (),
        *,
        longest: int | None = None,
    ) -> SequenceAllocation | None:
        """Take slots and the pages of `context` tokens, evicting for them; lock what `match` resumes from.

        `branches`: depths at which waiting prompts part from this one. `longest`: tokens that the sequence
        may grow to. None = not now.
        """

    def extend(self, allocation: SequenceAllocation, context: int) -> bool:
        """Take pages up to `context` tokens, evicting for them; before the launch. False = not now."""

    def keep_checkpoint_at(self, allocation: SequenceAllocation, depth: int) -> None:
        """Plan a checkpoint at `depth`, for which another prompt waits; during the prefill."""

    def plan_prefill(self, allocation: SequenceAllocation, stop: int, step: int) -> list[Checkpoint]:
        """Take slots for the checkpoints of a piece up to `stop`; before its launch. Short = fewer."""

    def decode_rows(self, rows: Ints) -> DecodeRows:
        """Read only: where `rows` stand before they decode one more token."""

    def plan_decode(self, allocation: SequenceAllocation, outputs: int, step: int) -> int:
        """Take a slot for the state after the next token, output number `outputs`; before the launch. 0 =
        none is due, or not now."""

    def launch(self, rows: int | Ints, depth: int | Ints, step: int) -> None:
        """Record that `step`, which is launched next, takes `rows` to `depth`. Cannot be refused."""

    def advance(self, step: int, *, failed: bool = False) -> None:
        """Record that `step` is complete, in the order of launches: memory that waited for it is free.
        `failed`: nothing that it wrote is kept. Before the commits of its sequences."""

    def commit(self, allocation: SequenceAllocation, token_ids: Tokens, step: int) -> None:
        """Give what `step` wrote for the sequence to the tree; `token_ids`: all that are known. Needed only
        while `allocation.awaits_commit`."""

    def settle(self) -> None:
        """Take back the memory of sequences whose last step is complete. After the commits of a step."""

    def retire(self, allocation: SequenceAllocation, token_ids: Callable[[], Tokens]) -> None:
        """End the sequence, at any time; `allocation` is not used again. Once its last launched step is
        complete, `token_ids()` tells which of its tokens count, and its states go to the tree."""

    def discard_results(self, allocation: SequenceAllocation) -> None:
        """Keep nothing that was computed for the sequence, in the tree neither. Before it is retired."""


class ManagedStateCache(StateCache, Protocol):
    """The same cache with its upkeep, which the engine does between two steps."""

    def account(self) -> LedgerAccount:
        """Read only: owners of all slots and pages."""

    def recount(self) -> Iterator[None]:
        """Read only: compare the account with the holders, in slices; void after any other call. Raises
        LedgerViolation."""

    def listen(self, listener: PrefixListener) -> None:
        """Report every change of the tree to `listener`, the only one, from now on."""

    def flush(self) -> int:
        """Forget every checkpoint that no sequence is reading; return their number."""

    @property
    def sweeping(self) -> bool:
        """Whether something of what was flushed is still in memory."""

    def sweep(self) -> None:
        """Free a little of what was flushed; while `sweeping`, at any time."""

    def change_strategy(self, strategy: Reservation) -> Refusal | None:
        """Run under `strategy` from the next step on: running sequences get or give back tracking slots.
        Refusal = not now, and nothing has changed."""

    def change_settings(self, *, track_interval: int, cap: int, eviction: Policy) -> None:
        """Go by these settings, which take no memory, from now on. Cannot be refused."""
