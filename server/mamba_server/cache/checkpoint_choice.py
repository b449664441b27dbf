"""Which checkpoints a prompt leaves: of its places those that promise more than what they push out."""

from collections.abc import Sequence
from dataclasses import dataclass

from mamba_server.cache.ghost_tree import CheckpointKind, GhostMatch, GhostTree
from mamba_server.cache.placement import Placement, place
from mamba_server.cache.tree import Match, RadixTree


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """What was chosen when a prompt was admitted."""

    placement: Placement
    worthwhile: frozenset[int] = frozenset()
    """Optional depths that are worth more than the least of what is cached."""


@dataclass(frozen=True, slots=True)
class CheckpointChooser:
    """Chooses for prompts of one tree, under what holds while they are admitted."""

    tree: RadixTree
    ghosts: GhostTree | None
    """What foresees returns, if anything does."""
    track_interval: int
    cap: int
    """Most checkpoints of a prompt."""
    min_depth: int
    """States of fewer tokens are not kept."""
    spare: bool
    """There are free slots beyond those that the next sequence needs."""

    def choose(
        self,
        prompt: int,
        sighting: GhostMatch | None,
        match: Match,
        turn_boundary: int,
        branches: Sequence[int],
    ) -> CheckpointChoice:
        """For a prompt of `prompt` tokens that resumes at `match`.

        branches: depths at which prompts that wait part from it; sighting: where the ghost tree has just seen
        it, None = every place is taken.
        """
        placed = place(
            prompt,
            match.resumable,
            self._branch_depths(match, branches, sighting),
            turn_boundary,
            self.tree.page_size,
            self.track_interval,
            self.cap,
        )
        placement = Placement(self._deep_enough(placed.required), self._deep_enough(placed.optional))
        if self.ghosts is None or sighting is None:
            return CheckpointChoice(placement)
        return self._worthwhile(self.ghosts, sighting, placement, match, branches)

    def _branch_depths(
        self, match: Match, branches: Sequence[int], sighting: GhostMatch | None
    ) -> Sequence[int]:
        """Depths at which other prompts part from this one, most important first."""
        if sighting is None:
            return (match.kv_depth, *branches)
        page_size = self.tree.page_size
        shared = max(match.kv_depth, sighting.shared * page_size)
        known = sorted(
            (
                (ghost.rate * (ghost.depth * page_size - match.resumable), ghost.depth * page_size)
                for ghost in sighting.path()
                if ghost.depth * page_size > match.resumable
                and (ghost.uses or ghost.place is CheckpointKind.BRANCH)
            ),
            reverse=True,
        )
        return (*branches, shared, *(depth for _, depth in known))

    def _worthwhile(
        self,
        ghosts: GhostTree,
        sighting: GhostMatch,
        placement: Placement,
        match: Match,
        sure: Sequence[int],
    ) -> CheckpointChoice:
        """Keep of the placement what promises more than what it pushes out; `sure`: somebody waits for it."""
        eviction, page_size = self.tree.eviction, self.tree.page_size
        required, optional = placement.required, placement.optional
        places = [(depth, CheckpointKind.END, 0) for depth in required]
        places += [(depth, CheckpointKind.GRID, rank) for rank, depth in enumerate(reversed(optional))]
        marked = {
            depth: ghosts.ghost_at(sighting, depth // page_size, place, rank) for depth, place, rank in places
        }
        left = {depth: ghost for depth, ghost in marked.items() if ghost is not None}
        chosen = {depth: left.pop(depth) for depth in sure if depth in left}
        least = eviction.lowest_worth()
        while left:
            best, most = 0, -1.0
            for depth, ghost in left.items():
                tokens = depth - max((each for each in chosen if each < depth), default=match.resumable)
                pages = 0 if any(each > depth for each in chosen) else tokens // page_size
                worth = eviction.worth(ghost.rate, tokens, pages)
                if worth > most and (worth > least or (self.spare and depth in required)):
                    best, most = depth, worth
            if not best:
                break
            chosen[best] = left.pop(best)
        for depth, ghost in left.items():
            above = max((each for each in chosen if each < depth), default=0)
            if above:
                chosen[above].adopt_returns(ghost)
            else:
                eviction.inherit(match.node, ghost)
        forgotten = [depth for depth in required if marked[depth] is None]
        kept = tuple(sorted({*forgotten, *(depth for depth in required if depth in chosen)}))
        worthwhile = frozenset(depth for depth in optional if depth in chosen)
        return CheckpointChoice(Placement(kept, optional), worthwhile)

    def _deep_enough(self, depths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(depth for depth in depths if depth >= self.min_depth)
