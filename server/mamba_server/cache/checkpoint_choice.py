"""Choice of the checkpoints that a prompt leaves: those worth more than the checkpoints they would evict.

The state cache makes the choice when it admits a prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mamba_server.cache.ghost_tree import CheckpointKind, Ghost, GhostMatch, GhostTree
from mamba_server.cache.placement import Placement, place
from mamba_server.cache.tree import Match, RadixTree


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The depths at which a prompt is to leave checkpoints, chosen at its admission."""

    placement: Placement
    worthwhile: frozenset[int] = frozenset()
    """Optional depths that are worth more than the least valuable checkpoint in the cache."""


@dataclass(frozen=True, slots=True)
class CheckpointChooser:
    """Chooses the depths at which a prompt leaves checkpoints, by the settings at its admission."""

    tree: RadixTree
    ghosts: GhostTree | None
    """Ghost tree that predicts returns, if there is one."""
    track_interval: int
    cap: int
    """Most checkpoints of one prompt."""
    min_depth: int
    """Least depth of a checkpoint, in tokens."""
    spare: bool
    """Whether there are more free slots than the next sequences need."""

    def choose(
        self,
        prompt: int,
        ghost_match: GhostMatch | None,
        match: Match,
        turn_boundary: int,
        branches: Sequence[int],
    ) -> CheckpointChoice:
        """Choose the depths of checkpoints for a prompt of `prompt` tokens that resumes at `match`.

        `branches` are the depths at which waiting prompts diverge from this one. `ghost_match` is the part of
        the ghost tree that the prompt begins with; None = all depths are kept, whatever they are worth.
        `turn_boundary` is the depth before the generation prompt; 0 = none.
        """
        placed = place(
            prompt,
            match.resumable,
            self._branch_depths(match, branches, ghost_match),
            turn_boundary,
            self.tree.page_size,
            self.track_interval,
            self.cap,
        )
        placement = Placement(self._deep_enough(placed.required), self._deep_enough(placed.optional))
        if self.ghosts is None or ghost_match is None:
            return CheckpointChoice(placement)
        return self._worthwhile(self.ghosts, ghost_match, placement, match, branches)

    def _branch_depths(
        self, match: Match, branches: Sequence[int], ghost_match: GhostMatch | None
    ) -> Sequence[int]:
        """Return the depths at which other prompts diverge from this one, most important first."""
        if ghost_match is None:
            return (match.kv_depth, *branches)
        page_size = self.tree.page_size
        shared = max(match.kv_depth, ghost_match.shared * page_size)
        past_branches = sorted(
            (
                (ghost.rate * (ghost.depth * page_size - match.resumable), ghost.depth * page_size)
                for ghost in ghost_match.path()
                if ghost.depth * page_size > match.resumable
                and (ghost.uses or ghost.kind is CheckpointKind.BRANCH)
            ),
            reverse=True,
        )
        return (*branches, shared, *(depth for _, depth in past_branches))

    def _worthwhile(
        self,
        ghosts: GhostTree,
        ghost_match: GhostMatch,
        placement: Placement,
        match: Match,
        awaited_depths: Sequence[int],
    ) -> CheckpointChoice:
        """Keep `awaited_depths`, and the depths of `placement` worth more than the checkpoints they evict."""
        required, optional = placement.required, placement.optional
        by_depth = self._ghosts_by_depth(ghosts, ghost_match, placement)
        rejected = {depth: ghost for depth, ghost in by_depth.items() if ghost is not None}
        chosen = {depth: rejected.pop(depth) for depth in awaited_depths if depth in rejected}
        self._move_worthwhile(rejected, chosen, match.resumable, required)
        self._transfer_returns(rejected, chosen, match)
        forgotten = [depth for depth in required if by_depth[depth] is None]
        kept = tuple(sorted({*forgotten, *(depth for depth in required if depth in chosen)}))
        worthwhile = frozenset(depth for depth in optional if depth in chosen)
        return CheckpointChoice(Placement(kept, optional), worthwhile)

    def _ghosts_by_depth(
        self, ghosts: GhostTree, ghost_match: GhostMatch, placement: Placement
    ) -> dict[int, Ghost | None]:
        """Return the ghost at each depth of `placement`, required depths first; None = forgotten."""
        kinds = [(depth, CheckpointKind.END, 0) for depth in placement.required]
        grid = enumerate(reversed(placement.optional))
        kinds += [(depth, CheckpointKind.GRID, rank) for rank, depth in grid]
        page_size = self.tree.page_size
        return {
            depth: ghosts.ghost_at(ghost_match, depth // page_size, kind, rank) for depth, kind, rank in kinds
        }

    def _move_worthwhile(
        self,
        candidates: dict[int, Ghost],
        chosen: dict[int, Ghost],
        resumed: int,
        required: Sequence[int],
    ) -> None:
        """Move candidates to `chosen`, the most valuable first, as long as one is worth its slot.

        Each choice lowers the worth of the candidates above and below it.
        """
        least = self.tree.eviction.lowest_worth()
        while candidates:
            worths = {depth: self._worth(depth, candidates[depth], chosen, resumed) for depth in candidates}
            admissible = [
                depth
                for depth, worth in worths.items()
                if worth > least or (self.spare and depth in required)
            ]
            if not admissible:
                return
            best = max(admissible, key=worths.__getitem__)
            chosen[best] = candidates.pop(best)

    def _worth(self, depth: int, ghost: Ghost, chosen: dict[int, Ghost], resumed: int) -> float:
        """Return what a checkpoint at `depth` adds to the worth of the checkpoints at the `chosen` depths.

        `resumed` is the depth at which the prompt resumes.
        """
        tokens = depth - max((other for other in chosen if other < depth), default=resumed)
        pages = 0 if any(other > depth for other in chosen) else tokens // self.tree.page_size
        return self.tree.eviction.worth(ghost.rate, tokens, pages)

    def _transfer_returns(self, rejected: dict[int, Ghost], chosen: dict[int, Ghost], match: Match) -> None:
        """Count returns to each rejected depth for the nearest checkpoint above it."""
        for depth, ghost in rejected.items():
            nearest = max((other for other in chosen if other < depth), default=0)
            if nearest:
                chosen[nearest].adopt_returns(ghost)
            else:
                self.tree.eviction.transfer_returns(match.node, ghost)

    def _deep_enough(self, depths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(depth for depth in depths if depth >= self.min_depth)
