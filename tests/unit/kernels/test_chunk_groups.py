"""Chunks are padded to one of two widths, which follows from their own length alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mamba_kernels import packed_integers
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.ssd_prefill.padded_chunks import NARROW
from testmodels.chunks import PiecePlan, chunk_plan

PIECES = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 150), st.sets(st.integers(1, 40))), min_size=1)


def plan_of(drawn: list[tuple[int, int, set[int]]], chunk: int) -> ChunkPlan:
    pieces = [
        PiecePlan(done, length, -1, 1, {done + each: 2 for each in steps if each <= length})
        for done, length, steps in drawn
    ]
    return chunk_plan(pieces, chunk)


def indices(places: torch.Tensor | slice) -> list[int]:
    return list(range(places.start, places.stop)) if isinstance(places, slice) else places.tolist()


@given(PIECES, st.sampled_from([8, 16, 64]))
def test_every_chunk_and_every_row_is_in_one_group(
    drawn: list[tuple[int, int, set[int]]], chunk: int
) -> None:
    plan = plan_of(drawn, chunk)
    assert sorted(c for group in plan.padded.groups for c in indices(group.chunks)) == list(
        range(plan.chunks)
    )
    rows = []
    for group in plan.padded.groups:
        padded = (
            torch.arange(plan.tokens) if group.rows is None else group.rows
        ).reshape(-1, group.width)  # fmt: skip
        inside = torch.ones_like(padded, dtype=torch.bool) if group.padding is None else ~group.padding
        lengths = inside.sum(1)
        # A chunk is a run of rows, padded with its last.
        assert torch.equal(padded, padded[:, :1] + torch.arange(group.width).clamp(max=lengths[:, None] - 1))
        assert (lengths <= group.width).all()
        if group.width > NARROW:
            assert (lengths > NARROW).all()
        targets = torch.arange(plan.tokens) if group.targets is None else group.targets
        assert torch.equal(padded[inside], targets)
        assert group.unpadded is None or torch.equal(padded.flatten()[group.unpadded], targets)
        rows += targets.tolist()
    assert sorted(rows) == list(range(plan.tokens))


@given(PIECES, st.sampled_from([8, 16, 64]))
def test_the_parts_of_a_rank_are_its_chunks(drawn: list[tuple[int, int, set[int]]], chunk: int) -> None:
    plan = plan_of(drawn, chunk)
    for chunks, parts in zip(plan.padded.rank_chunks, plan.padded.rank_parts, strict=True):
        found = {}
        for part in parts:
            members = indices(plan.padded.groups[part.group].chunks)
            for at, place in zip(indices(part.in_group), indices(part.in_rank), strict=True):
                found[place] = members[at]
        assert [found[place] for place in range(len(found))] == indices(chunks)


@given(PIECES, st.sampled_from([8, 16, 64]), st.integers(1, 12))
def test_parts_of_a_plan_are_whole_pieces_of_few_chunks(
    drawn: list[tuple[int, int, set[int]]], chunk: int, most: int
) -> None:
    plan, at = plan_of(drawn, chunk), 0
    for rows, part in plan.split(most):
        assert rows.start == at
        assert part.tokens == rows.stop - rows.start
        assert part.chunks <= most or len(part.piece_start) == 2
        assert [at + each for each in part.piece_start] == [
            e for e in plan.piece_start if at <= e <= rows.stop
        ]
        first = plan.piece_start.index(at)
        for piece in range(len(part.piece_start) - 1):
            assert part.checkpoints(piece) == plan.checkpoints(first + piece)
        at = rows.stop
    assert at == plan.tokens
    assert plan.split(most) == plan.split(most)


def test_what_kernels_read_goes_to_the_device_in_one_piece_and_by_the_way_that_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[torch.Tensor] = []

    def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(tensor)
        return tensor.to(device)

    monkeypatch.setattr(packed_integers, "to_device", send)
    plan = chunk_plan([PiecePlan(0, 9, -1, 1, {}), PiecePlan(2, 3, 2, 2, {})], 4, device=torch.device("meta"))
    assert [plan.on_device.chunk_start.device.type, len(plan.on_device.chunk_start)] == ["meta", 6]
    assert len(sent) == 1
