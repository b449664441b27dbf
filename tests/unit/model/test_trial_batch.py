"""Steps of nobody are steps as the model expects them, whatever they are made of."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.model.trial_batch import TrialPiece, trial_batch

CONTEXTS = st.integers(1, 300)
PAGE_SIZE = 16


@st.composite
def pieces(draw: st.DrawFn) -> TrialPiece:
    context = draw(CONTEXTS)
    return TrialPiece(draw(st.integers(1, context)), context)


@given(st.lists(CONTEXTS, max_size=4), st.lists(pieces(), max_size=4), st.integers(1, 70), st.booleans())
def test_any_mixture_is_a_step(decodes: list[int], some: list[TrialPiece], chunk: int, scored: bool) -> None:
    if not decodes and not some:
        return
    host = trial_batch(decodes, some, chunk=chunk, spare_row=5, scored=scored)
    assert set(host.kv_row.tolist()) == {0}
    # Kernels in C++ write where they are told: nothing but padding may be named.
    assert set(host.slot_out.tolist()) == {0}
    # What slot 0 holds is no state.
    assert set(host.slot_in.tolist()) == {-1}
    # The same with slots and pages of somebody: all else is what the check is about.
    owned = replace(host, slot_out=np.ones_like(host.slot_out), kv_row=host.positions % PAGE_SIZE)
    owned.check(chunk, PAGE_SIZE, np.zeros((6, 300 // PAGE_SIZE + 1), np.int32))
    tokens = len(decodes) + sum(each.tokens for each in some)
    assert len(host.positions) == tokens
    assert len(host.logits_rows) == (tokens if scored else len(decodes) + len(some))
    longer = sum(each.tokens > chunk for each in some)
    assert (host.chunk_track == 0).sum() == longer
