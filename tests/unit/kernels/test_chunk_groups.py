"""Chunks are padded to one of two widths, which follows from their own length alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mamba_kernels.ssd_prefill import plan as plans
from mamba_kernels.ssd_prefill.plan import NARROW
from testmodels.chunks import PiecePlan, chunk_plan, ints

PIECES = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 150), st.sets(st.integers(1, 40))), min_size=1)


def indices(places: torch.Tensor | slice) -> list[int]:
    return list(range(places.start, places.stop)) if isinstance(places, slice) else places.tolist()


@given(PIECES, st.sampled_from([8, 16, 64]))
def test_every_chunk_and_every_row_is_in_one_group(
    drawn: list[tuple[int, int, set[int]]], chunk: int
) -> None:
    pieces = [
        PiecePlan(done, length, -1, 1, {done + each: 2 for each in steps if each <= length})
        for done, length, steps in drawn
    ]
    plan = chunk_plan(pieces, chunk)
    assert sorted(c for group in plan.groups for c in indices(group.chunks)) == list(range(plan.chunks))
    rows = []
    for group in plan.groups:
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
    pieces = [
        PiecePlan(done, length, -1, 1, {done + each: 2 for each in steps if each <= length})
        for done, length, steps in drawn
    ]
    plan = chunk_plan(pieces, chunk)
    for chunks, parts in zip(plan.rank_chunks, plan.rank_parts, strict=True):
        found = {}
        for part in parts:
            members = indices(plan.groups[part.group].chunks)
            for at, place in zip(indices(part.at), indices(part.of_rank), strict=True):
                found[place] = members[at]
        assert [found[place] for place in range(len(found))] == indices(chunks)


def test_what_a_kernel_reads_goes_to_the_device_by_the_way_that_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[torch.Tensor] = []

    def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(tensor)
        return tensor.to(device)

    monkeypatch.setattr(plans, "to_device", send)
    chunks = plans.DeviceChunks.of(*(ints([0, 1]) for _ in range(5)), device=torch.device("meta"))
    assert chunks.chunk_start.device.type == "meta"
    assert [len(each) for each in sent] == [10]
