"""Steps that the start computes are of every kind that serving can have, and none that it cannot."""

import numpy as np
import pytest

from mamba_kernels.ssd_prefill.segments import SegmentCuts
from mamba_server.engine.execution.prepared_steps import PreparedSteps
from mamba_server.model.trial_batch import TrialPiece, trial_batch


@pytest.mark.parametrize("longest", [1024, 1023])
def test_the_start_has_a_piece_that_is_cut_into_segments_if_a_step_can(longest: int) -> None:
    cut = []
    for decodes, pieces in PreparedSteps(128, longest, longest).kinds([], 1):
        host = trial_batch(decodes, pieces, chunk=128, spare_row=4)
        first = np.searchsorted(host.chunk_sequence, np.arange(len(decodes), len(host.context_len) + 1))
        cut.append(SegmentCuts.cut(first, np.zeros(len(pieces)), 2) is not None)
    assert cut == [False] * 4 + ([True] * 2 if longest == 1024 else [])


def test_pieces_come_behind_every_number_of_decodes_that_places_them_otherwise() -> None:
    behind = {len(decodes) for decodes, _ in PreparedSteps(64, 256, 256).kinds([], 4)}
    assert behind == {0, 1, 2, 3}


def test_steps_of_so_many_tokens_are_as_a_step_may_be() -> None:
    steps = [pieces for decodes, pieces in PreparedSteps(64, 100, 260).kinds([7, 250, 261], 1) if not decodes]
    assert steps[-2:] == [[TrialPiece(7, 7)], [TrialPiece(100, 100)] * 2 + [TrialPiece(50, 50)]]
