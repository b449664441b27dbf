"""A model whose state is exactly identifiable: (count, rolling hash of ids, window of ids); pages hold ids.

Its runner keeps slots and pages as a device would, checks every read against the truth and answers with a
token that depends on every token before it. So any wrong depth, slot, page, sequence or order shows as
inequality, with no tolerance.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.engine.sequences.schedule import Absorption, PrefillPiece, Schedule
from mamba_server.engine.stepping.step_result import StepResult, VerifiedDraft
from mamba_server.wire import TokenLogprobs

WINDOW = 3
VOCABULARY = 97
MODULUS = (1 << 61) - 1
State = tuple[int, int, tuple[int, ...]]
ZERO: State = (0, 0, (0,) * WINDOW)
POISON: State = (-1, -1, (-1,) * WINDOW)
SPOILT: State = (-2, -2, (-2,) * WINDOW)
"""Stands for NaN: whatever is added to it, it stays what it is."""


def fold(state: State, tokens: list[int]) -> State:
    if state == SPOILT:
        return state
    count, value, window = state
    for token in tokens:
        count += 1
        value = (value * 1_000_003 + token + 7) % MODULUS
        window = (*window[1:], token)
    return count, value, window


@lru_cache(maxsize=100_000)
def after(state: State, tokens: bytes) -> State:
    """Return `fold` over int32 ids, memoized: the same keys recur at every event."""
    return fold(state, np.frombuffer(tokens, np.int32).tolist())


def next_token(state: State) -> int:
    return state[1] % VOCABULARY


def score_of(state: State) -> TokenLogprobs:
    """Return the score of the token that follows: a number that another state would hardly give."""
    token = next_token(state)
    return TokenLogprobs(token, -(state[1] % 100_003) / 1000, (), (), 1)


def oracle(prompt: list[int], outputs: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """Return the output of the model alone, token by token."""
    state, out = fold(ZERO, prompt), []
    for _ in range(outputs):
        token = next_token(state)
        out.append(token)
        if token in stop:
            break
        state = fold(state, [token])
    return out


class DepthCodedRunner:
    """The device side; `fail_steps` makes the work of chosen steps raise, before or after it wrote."""

    def __init__(self, cache: RadixStateCache) -> None:
        self.cache = cache
        self.page_size = cache.page_size
        self.states: list[State] = [POISON] * cache.arena.slabs
        self.page_ids = np.full(
            (cache.arena.slabs * max(1, cache.arena.pages_per_slab), self.page_size), -1, np.int32
        )
        self.last_token = [-1] * cache.batch.rows
        self.texts = np.zeros((cache.batch.rows, cache.batch.pages.shape[1] * self.page_size), np.int32)
        self.fail_steps: dict[int, str] = {}
        """Step -> "before" (nothing written), "half" (the decodes alone) or "after" (everything)."""
        self.failure = "injected device failure"
        self.spoil_steps: dict[int, int] = {}
        """Step -> which of its members comes to NaN in it (counted round)."""
        self.violations: list[str] = []
        self.ring: dict[int, list[int]] = {}
        """Tokens of the draft in each lane."""
        self.absorbed_alone = 0
        """Number of absorptions outside a step."""
        self.named: dict[int, tuple[set[int], np.ndarray]] = {}
        """Launched step -> slots and pages that its work reads or writes."""

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        rows = self.cache.batch
        slots: set[int] = set()
        pages: list[np.ndarray] = []
        decodes = []
        scored = [number for number, each in enumerate(schedule.sampling) if each.served is not None]
        for index, row in enumerate(schedule.decode_rows.tolist()):
            live, track = int(rows.live[row]), int(schedule.decode_track[index])
            own = rows.pages[row, : rows.page_count[row]].copy()
            drafts = [(each.lane, each.tokens.tolist()) for each in schedule.drafts if each.index == index]
            absorbed = [each for each in schedule.absorbed if each.index == index]
            decodes.append((row, live, track, int(rows.depth[row]), own, drafts, absorbed))
            slots.update((live, track))
            pages.append(own)
        pieces = []
        for piece in schedule.pieces:
            allocation = piece.sequence.allocation
            assert allocation is not None
            own = allocation.pages.copy()
            tokens = piece.sequence.token_ids[: piece.stop].copy()
            pieces.append((piece, piece.sequence.row, own, tokens))
            slots.update((piece.slot_in, piece.slot_out, *(each.slot for each in piece.checkpoints)))
            pages.append(own)
        self.named[schedule.step] = slots - {0, -1}, np.concatenate(pages)

        def work() -> Callable[[], StepResult]:
            try:
                result = self._run(schedule, decodes, pieces, scored)
            except AssertionError as error:
                self.violations.append(f"step {schedule.step}: {traceback.format_exc()}")
                raise error
            return lambda: result

        return work

    def absorb(self, row: int, lane: int, count: int) -> Callable[[], object]:
        """Return the work that folds the first tokens of a lane into the live slot of `row`."""
        live, depth = int(self.cache.batch.live[row]), int(self.cache.batch.depth[row])

        def work() -> bool:
            state = self.states[live]
            if state != SPOILT:
                assert state[0] == depth - count, ("absorbed outside a step", state[0], depth, count)
            self.states[live] = fold(state, self.ring[lane][:count])
            self.absorbed_alone += 1
            return True

        return work

    def _run(
        self,
        schedule: Schedule,
        decodes: list[tuple[int, int, int, int, np.ndarray, list[Any], list[Absorption]]],
        pieces: list[tuple[PrefillPiece, int, np.ndarray, np.ndarray]],
        scored: list[int],
    ) -> StepResult:
        step, drafts = schedule.step, {}
        fault = self.fail_steps.get(step, "")
        if fault == "before":
            raise RuntimeError(self.failure)
        # What follows a failed step runs on rubbish; its sequences have ended, so nothing of it may be seen.
        trusted = step - 1 not in self.fail_steps
        members = len(decodes) + len(pieces)
        spoilt = self.spoil_steps.get(step, -1) % members if step in self.spoil_steps else -1
        finite = np.ones(members, np.bool_)
        out = []
        after_rows: list[State] = []
        """States after which tokens are sampled, in the order of the result."""
        prompt_scores: dict[int, list[TokenLogprobs]] = {}
        for row, live, _, depth, _, _, absorbed in decodes:
            # Before any draft of this step takes a lane.
            for each in absorbed:
                state = self.states[live]
                if trusted and state != SPOILT:
                    assert state[0] == depth - 1 - each.count, ("absorbed", row, state[0], depth, each.count)
                self.states[live] = fold(state, self.ring[each.lane][: each.count])
                self.last_token[row] = each.token
        for index, (*decode, proposed, _) in enumerate(decodes):
            if index == spoilt:
                self.states[decode[1]] = SPOILT
            out.append(self._decode(*decode, trusted=trusted))
            after_rows.append(self.states[decode[1]])
            for lane, tokens in proposed:
                drafts[index] = self._check_draft(*decode, lane, tokens, scored=index in scored)
            finite[index] = self.states[decode[1]] != SPOILT
        if fault == "half":
            raise RuntimeError(self.failure)
        for index, piece in enumerate(pieces, len(decodes)):
            prompt_scores[index - len(decodes)] = self._scores(piece[0], piece[3])
            sampled = self._prefill(*piece, trusted=trusted, spoilt=index == spoilt)
            finite[index] = self.states[piece[0].slot_out] != SPOILT
            if piece[0].final:
                out.append(sampled)
                after_rows.append(self.states[piece[0].slot_out])
        if fault:
            raise RuntimeError(self.failure)
        logprobs = {number: score_of(after_rows[number]) for number in scored}
        verified = [drafts[each.index] for each in schedule.drafts]
        return StepResult(np.array(out, np.int32), logprobs, prompt_scores, finite, drafts=verified)

    def _check_draft(
        self,
        row: int,
        live: int,
        _: int,
        depth: int,
        pages: np.ndarray,
        lane: int,
        tokens: list[int],
        *,
        scored: bool,
    ) -> VerifiedDraft:
        """Return what follows each token of a draft; the live slot stays as it is."""
        state, rows = self.states[live], []
        self.texts[row, depth : depth + len(tokens)] = tokens
        self._write(pages, depth, np.array(tokens, np.int32))
        self.ring[lane] = tokens
        for token in tokens:
            state = fold(state, [token])
            if state == SPOILT:
                break
            rows.append((token, next_token(state), score_of(state) if scored else None))
        return VerifiedDraft(len(tokens), rows)

    def _scores(self, piece: PrefillPiece, tokens: np.ndarray) -> list[TokenLogprobs]:
        """Return the scores of an audit: of each token that follows one of the piece."""
        if piece.sequence.params.prompt_logprobs < 0:
            return []
        state = ZERO if piece.slot_in < 0 else self.states[piece.slot_in]
        scores = []
        for at in range(piece.start, min(piece.stop, piece.sequence.prompt_len - 1)):
            state = fold(state, tokens[at : at + 1].tolist())
            if at >= piece.sequence.unscored:
                scores.append(score_of(state))
        return scores

    def compare_states(self, slot: int, truth: int) -> Callable[[], Callable[[], list[float]]]:
        """Return the work that compares two states, with the distances of two layers and their windows."""

        def work() -> Callable[[], list[float]]:
            distance = 0.0 if self.states[slot] == self.states[truth] else np.inf
            return lambda: [distance, 0.0, 0.0, 0.0]

        return work

    def _decode(
        self, row: int, live: int, track: int, depth: int, pages: np.ndarray, *, trusted: bool
    ) -> int:
        token = self.last_token[row]
        state = self.states[live]
        self.texts[row, depth - 1] = token
        self._write(pages, depth - 1, self.texts[row, depth - 1 : depth])
        if trusted and state != SPOILT:
            assert token >= 0
            assert state[0] == depth - 1, ("live state", row, live, state[0], depth)
            self._check_pages(pages, self.texts[row, :depth])
        state = fold(state, [token])
        self.states[live] = state
        if track:
            self.states[track] = state
        self.last_token[row] = next_token(state)
        return self.last_token[row]

    def _prefill(
        self,
        piece: PrefillPiece,
        row: int,
        pages: np.ndarray,
        tokens: np.ndarray,
        *,
        trusted: bool,
        spoilt: bool,
    ) -> int:
        state = ZERO if piece.slot_in < 0 else self.states[piece.slot_in]
        if spoilt:
            state = SPOILT
        if trusted and state != SPOILT:
            assert state == after(ZERO, tokens[: piece.start].tobytes()), ("resumed state", piece.slot_in)
            self._check_pages(pages, tokens[: piece.start])
        at = piece.start
        for depth, slot in [*((each.depth, each.slot) for each in piece.checkpoints), (piece.stop, 0)]:
            state = after(state, tokens[at:depth].tobytes())
            at = depth
            if slot:
                self.states[slot] = state
        self._write(pages, piece.start, tokens[piece.start :])
        self.states[piece.slot_out] = state
        self.texts[row, : piece.stop] = tokens
        self.last_token[row] = next_token(state)
        return self.last_token[row]

    def _write(self, pages: np.ndarray, start: int, tokens: np.ndarray) -> None:
        if self.cache.arena.pages_per_slab:
            at = np.arange(start, start + len(tokens))
            self.page_ids[pages[at // self.page_size], at % self.page_size] = tokens

    def _check_pages(self, pages: np.ndarray, text: np.ndarray) -> None:
        if self.cache.arena.pages_per_slab and len(text):
            whole = self.page_ids[pages[: -(-len(text) // self.page_size)]].reshape(-1)[: len(text)]
            assert np.array_equal(whole, text), ("pages", len(text))

    # --- truth of what is kept -----------------------------------------------------------------------

    def check_tree(self) -> None:
        """Check that every checkpoint in the tree is the state of exactly its own key (P1, P2, P4)."""
        paged = self.cache.arena.pages_per_slab > 0
        for root in self.cache.tree.roots.values():
            stack = [(root, ZERO)]
            while stack:
                node, above = stack.pop()
                tokens = node.token_ids.tobytes()
                state = after(above, tokens)
                if node.slot:
                    assert self.states[node.slot] == state, ("checkpoint", node.depth)
                if paged and len(node.pages):
                    assert self.page_ids[node.pages].tobytes() == tokens, "pages of node"
                stack.extend((child, state) for child in node.children.values())

    def check_ready(self, allocation: SequenceAllocation, known: np.ndarray) -> None:
        """Check that every complete checkpoint of a running sequence is the state of its own tokens."""
        for each in allocation.ready:
            if each.depth <= len(known):
                assert self.states[each.slot] == after(ZERO, known[: each.depth].tobytes()), "ready"
