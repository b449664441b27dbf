"""Drafts of a second model: which sequences it reads, how much of each between two steps, and what fails."""

import numpy as np
import pytest

from mamba_server.cache import Tokens
from mamba_server.cache.errors import LedgerViolation
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.draft_lanes import DraftLanes
from mamba_server.engine.speculation.model_drafts import DraftPiece, ModelDrafts
from mamba_server.wire import SamplingParams

MOST, CHUNK, BUDGET, LONGEST = 4, 8, 32, 200


class World:
    """Source of drafts with a device that only records what it is given."""

    def __init__(self, *, lanes: int = 2, pages: int = 101, page_size: int = 4) -> None:
        self.lanes = DraftLanes(lanes, pages=pages, page_size=page_size, table_width=LONGEST // page_size)
        self.source = ModelDrafts(
            MOST, self.lanes, longest=LONGEST, vocabulary=1000, budget=BUDGET, chunk=CHUNK
        )
        self.pieces: list[DraftPiece] = []
        self.error: Exception | None = None
        self.ended = ""
        self.source.compute, self.source.room = self.compute, lambda *_: MOST
        self.source.give_up = self.end

    def end(self, reason: str) -> None:
        self.ended = reason

    def compute(self, pieces: list[DraftPiece]) -> list[Tokens]:
        self.pieces = pieces
        if self.error is not None:
            raise self.error
        return [np.full(piece.drafts, 7, np.int32) for piece in pieces]

    def propose(self, *sequences: Sequence) -> dict[str, int]:
        """Return the number of drafts of each sequence that has any, by its request."""
        self.pieces = []
        proposed = self.source.propose(list(sequences))
        self.lanes.check()
        return {sequences[index].request_id: len(tokens) for index, tokens in proposed.items()}

    def read(self) -> dict[str, tuple[int, int]]:
        return {piece.lane.sequence.request_id: (piece.start, piece.stop) for piece in self.pieces}


def sequence(name: str, tokens: int, *, token: int = 5) -> Sequence:
    new = Sequence(name, 0, np.full(tokens, token, np.int32), SamplingParams(max_tokens=400), order=0)
    new.make_room()
    return new


def grow(each: Sequence, tokens: int) -> None:
    each.token_ids[each.known_tokens : each.known_tokens + tokens] = 6
    each.known_tokens += tokens


def test_each_step_reads_what_is_new_and_drafts_behind_it() -> None:
    world, each = World(), sequence("a", 10)

    assert world.propose(each) == {"a": MOST}
    assert world.read() == {"a": (0, 10)}
    grow(each, 3)
    assert world.propose(each) == {"a": MOST}
    assert world.read() == {"a": (10, 13)}
    assert world.pieces[0].token_ids.tolist() == [6, 6, 6]


def test_a_long_prompt_is_read_in_pieces_and_delays_no_draft_of_others() -> None:
    world, short, long = World(), sequence("short", 6), sequence("long", 100)
    seen = []
    while (drafts := world.propose(short, long)).keys() != {"short", "long"}:
        assert drafts == {"short": MOST}
        assert sum(len(piece.token_ids) for piece in world.pieces) <= BUDGET
        seen.append(world.read()["long"])
        grow(short, 1)
    assert seen == [(0, 24), (24, 48), (48, 72)], "pieces end on chunks"
    assert world.read()["long"] == (72, 100)


def test_a_sequence_that_leaves_is_read_anew_when_it_comes_back() -> None:
    world, each, other = World(lanes=1), sequence("a", 10), sequence("b", 9)
    world.propose(each)
    assert world.propose(each, other) == {}, "one lane, and nothing new of the sequence that holds it"
    world.lanes.release(each)
    assert world.lanes.held == 0
    assert world.propose(other) == {"b": MOST}
    world.lanes.release(other)
    assert world.propose(each) == {"a": MOST}
    assert world.read() == {"a": (0, 10)}


def test_a_text_for_which_there_is_no_room_has_no_drafts_and_keeps_no_lane() -> None:
    # 10 pages of 4 tokens, of which the first sequence takes 8.
    world, first, second = World(pages=11), sequence("first", 28), sequence("second", 12)
    assert world.propose(first, second) == {"first": MOST}
    assert world.lanes.held == 1
    grow(first, 8)
    assert world.propose(first, second) == {"first": MOST}
    grow(first, 8)
    assert world.propose(first, second) == {}, "all pages are taken"
    world.lanes.release(first)
    assert world.propose(first, second) == {"second": MOST}
    grow(second, LONGEST)
    assert world.propose(second) == {}, "longer than the draft model reads"
    assert world.lanes.held == 0


def test_a_token_that_the_draft_model_does_not_have_is_not_read() -> None:
    world = World()
    assert world.propose(sequence("padded", 10, token=1000), sequence("known", 10)) == {"known": MOST}


def test_a_failure_gives_no_drafts_and_several_in_a_row_end_them(caplog: pytest.LogCaptureFixture) -> None:
    world, each = World(), sequence("a", 10)
    world.error = RuntimeError("out of memory")
    for _ in range(2):
        assert world.propose(each) == {}
        assert world.lanes.held == 0
    world.error = None
    assert world.propose(each) == {"a": MOST}
    assert world.read() == {"a": (0, 10)}, "what a failed call has read counts for nothing"
    world.error = RuntimeError("out of memory")
    for _ in range(3):
        assert not world.ended
        grow(each, 1)
        assert world.propose(each) == {}
    assert "failed 3 times in a row, at last with RuntimeError: out of memory" in world.ended
    assert "the draft model failed" in caplog.text


def test_a_page_of_two_lanes_is_noticed() -> None:
    world = World()
    first, second = sequence("first", 10), sequence("second", 12)
    world.propose(first, second)
    lanes = {piece.sequence.request_id: piece for piece in (each.lane for each in world.pieces)}
    lanes["second"].pages[0] = lanes["first"].pages[0]
    with pytest.raises(LedgerViolation, match="99 of them different"):
        world.lanes.check()
