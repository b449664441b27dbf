"""Prompts that share a prefix with one being computed just now: who waits for whose checkpoint.

Without this, a burst of requests with one long prefix would compute it once each. Called by the scheduler;
pure. A sequence waits once at most, and only while the other one holds its place in the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mamba_server.cache import SequenceAllocation, common_pages
from mamba_server.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class AwaitedCheckpoint:
    """The checkpoint at `depth` of the prefill of `leader`, as long as that runs on `allocation`."""

    leader: Sequence
    allocation: SequenceAllocation
    depth: int

    @property
    def coming(self) -> bool:
        """It is not there yet, and will be. False also if the leader ended, or was preempted."""
        if self.leader.allocation is not self.allocation:
            return False
        return self.allocation.depth < self.depth or self.depth in self.allocation.pending_depths()


def common_depth(one: Sequence, other: Sequence, page_size: int) -> int:
    """Tokens of whole pages that both prompts begin with, at most one short of the length of `one`."""
    if one.salt != other.salt:
        return 0
    left, right = one.known_token_ids(), other.known_token_ids()
    # Most pairs part here, and every prompt that comes is compared with all that lead.
    if left[:page_size].tobytes() != right[:page_size].tobytes():
        return 0
    return common_pages(left[:-1], right, page_size) * page_size


def deepest(
    sequence: Sequence, leaders: Iterable[Sequence], page_size: int, *, new_checkpoints: bool
) -> AwaitedCheckpoint | None:
    """The deepest checkpoint that one of `leaders` will leave within what it shares with `sequence`.

    `new_checkpoints`: one may still be asked for at any depth that the leader has not reached.
    """
    best: AwaitedCheckpoint | None = None
    for leader in leaders:
        allocation = leader.allocation
        if allocation is None:
            continue
        common = common_depth(sequence, leader, page_size)
        coming = allocation.coming_depths() if common else []
        if not coming:
            continue
        depths = [depth for depth in coming if depth <= common]
        if new_checkpoints and allocation.depth < common <= leader.target:
            depths.append(common)
        depth = max(depths, default=0)
        if depth > (best.depth if best is not None else 0):
            best = AwaitedCheckpoint(leader, allocation, depth)
    return best
