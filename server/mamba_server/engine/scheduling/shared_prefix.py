"""Prompts that share a prefix with a prompt in progress, and the checkpoint for which each of them waits.

Without this, a burst of requests with one long prefix would compute it once each. Called by the scheduler;
pure. A sequence waits at most once, and only while the other one keeps its place in the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mamba_server.cache import SequenceAllocation, common_pages
from mamba_server.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class AwaitedCheckpoint:
    """A checkpoint at `depth` that another sequence waits for: the prefill of `leader` will write it.

    It comes only as long as the leader runs on `allocation`.
    """

    leader: Sequence
    allocation: SequenceAllocation
    depth: int

    @property
    def coming(self) -> bool:
        """Whether the checkpoint is still to be written. False also if the leader ended or was preempted."""
        if self.leader.allocation is not self.allocation:
            return False
        return self.allocation.depth < self.depth or self.depth in self.allocation.pending_depths()


def common_depth(first: Sequence, other: Sequence, page_size: int) -> int:
    """Return the tokens of whole pages that both prompts begin with, at most `len(first) - 1`."""
    if first.salt != other.salt:
        return 0
    left, right = first.known_token_ids(), other.known_token_ids()
    # Most pairs differ here, and every new prompt is compared with all leaders.
    if left[:page_size].tobytes() != right[:page_size].tobytes():
        return 0
    return common_pages(left[:-1], right, page_size) * page_size


def deepest(
    sequence: Sequence, leaders: Iterable[Sequence], page_size: int, *, new_checkpoints: bool
) -> AwaitedCheckpoint | None:
    """Return the deepest checkpoint that one of `leaders` will leave in the prefix shared with `sequence`.

    The result is None if none will leave one. `new_checkpoints`: one can still be added at any depth that the
    leader has not reached.
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
