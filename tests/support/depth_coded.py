"""A model whose state is exactly identifiable: (count, rolling hash of ids, window of ids); pages hold ids.

Its runner keeps slots and pages as a device would, checks every read against the truth and answers with a
token that depends on every token before it. So any wrong depth, slot, page, sequence or order shows as
inequality, with no tolerance.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np

from mamba_server.cache.state_cache import StateCache
from mamba_server.engine.core import StepResult
from mamba_server.engine.scheduler import Schedule

WINDOW = 3
VOCABULARY = 97
MODULUS = (1 << 61) - 1
State = tuple[int, int, tuple[int, ...]]
ZERO: State = (0, 0, (0,) * WINDOW)
POISON: State = (-1, -1, (-1,) * WINDOW)


def fold(state: State, tokens: list[int]) -> State:
    count, value, window = state
    for token in tokens:
        count += 1
        value = (value * 1_000_003 + token + 7) % MODULUS
        window = (*window[1:], token)
    return count, value, window


def next_token(state: State) -> int:
    return state[1] % VOCABULARY


def oracle(prompt: list[int], outputs: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """What the model says alone, token by token."""
    state, out = fold(ZERO, prompt), []
    for _ in range(outputs):
        token = next_token(state)
        out.append(token)
        if token in stop:
            break
        state = fold(state, [token])
    return out


class DepthCodedRunner:
    """The device side; `fail_step` makes the work of chosen steps raise."""

    def __init__(self, cache: StateCache, rows: int, page_table: Callable[[int], np.ndarray]) -> None:
        self.cache = cache
        self.page_size = cache.page_size
        self.states: list[State] = [POISON] * cache.arena.slabs
        self.page_ids = np.full(
            (max(1, cache.arena.slabs * max(1, cache.arena.pages_per_slab)), self.page_size), -1
        )
        self.last_token = [-1] * rows
        self.page_table = page_table
        self.fail_steps: set[int] = set()
        self.violations: list[str] = []

    def prepare(self, schedule: Schedule) -> Callable[[], StepResult]:
        decodes = []
        for index, sequence in enumerate(schedule.decodes):
            row = int(schedule.decode_rows[index])
            depth = int(self.page_table(row)[1])
            decodes.append(
                (row, int(self.page_table(row)[2]), int(schedule.decode_track[index]), depth,
                 self.page_table(row)[0], sequence.key)
            )  # fmt: skip
        pieces = []
        for piece in schedule.pieces:
            holding = piece.sequence.holding
            assert holding is not None
            pieces.append(
                (piece.sequence.row, piece.slot_in, piece.slot_out, piece.start, piece.stop,
                 [(c.depth, c.slot) for c in piece.checkpoints], holding.pages[: holding.page_count].copy(),
                 piece.sequence.tokens[: piece.stop].tolist(), piece.final)
            )  # fmt: skip

        def work() -> StepResult:
            try:
                return self._run(schedule.step, decodes, pieces)
            except AssertionError as error:
                self.violations.append(f"step {schedule.step}: {traceback.format_exc()}")
                raise error

        return work

    def _run(self, step, decodes, pieces) -> StepResult:
        if step in self.fail_steps:
            raise RuntimeError("injected device failure")
        out = []
        for row, live, track, depth, pages, key in decodes:
            token = self.last_token[row]
            assert token >= 0
            state = self.states[live]
            assert state[0] == depth - 1, (key, state[0], depth)
            state = fold(state, [token])
            self._write(pages, depth - 1, [token])
            self._check_pages(pages, depth, state, key)
            self.states[live] = state
            if track:
                self.states[track] = state
            out.append(next_token(state))
            self.last_token[row] = out[-1]
        for row, slot_in, slot_out, start, stop, checkpoints, pages, tokens, final in pieces:
            state = ZERO if slot_in < 0 else self.states[slot_in]
            assert state == fold(ZERO, tokens[:start]), ("resumed state", slot_in, start, state[0])
            self._check_pages(pages, start, state, row)
            at = start
            for depth, slot in [*checkpoints, (stop, 0)]:
                state = fold(state, tokens[at:depth])
                at = depth
                if slot:
                    self.states[slot] = state
            self._write(pages, start, tokens[start:stop])
            self.states[slot_out] = state
            if final:
                out.append(next_token(state))
                self.last_token[row] = out[-1]
        return StepResult(np.array(out, np.int32))

    def _write(self, pages, start, tokens) -> None:
        if self.cache.arena.pages_per_slab:
            for at, token in enumerate(tokens, start):
                self.page_ids[pages[at // self.page_size], at % self.page_size] = token

    def _check_pages(self, pages, depth, state, key) -> None:
        if self.cache.arena.pages_per_slab and depth:
            whole = self.page_ids[pages[: -(-depth // self.page_size)]].reshape(-1)[:depth]
            assert fold(ZERO, whole.tolist()) == state, ("pages", key, depth)

    def check_tree(self) -> None:
        """Every checkpoint in the tree is the state of exactly its own key (P1, P2, P4)."""
        for node in self.cache.tree.walk():
            key = self.cache.tree.key_of(node).tolist()
            if node.slot:
                assert self.states[node.slot] == fold(ZERO, key), node.depth
            if self.cache.arena.pages_per_slab:
                assert self.page_ids[node.pages].reshape(-1).tolist() == node.tokens.tolist()
