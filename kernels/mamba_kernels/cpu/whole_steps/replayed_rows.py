"""Drafts of a decode step, and accepted inputs that live slots lack, for the call of the whole step.

States take their inputs one after another, so both are divided into turns, each with at most one input of
every sequence: `Replay` in `src/interface.h`.
"""

import ctypes
from typing import Protocol

import numpy as np
import torch

from mamba_kernels.cpu.structures import Replay
from mamba_kernels.slot_plan import IntArray


class HostDrafts(Protocol):
    """Says which sequences of a step have drafts, and which accepted drafts their states lack.

    All arrays are int32. In their shapes, n is the number of sequences with drafts, and a is the number of
    sequences whose accepted drafts of an earlier step are computed into their states first ("absorbed"). A
    lane keeps the inputs of one sequence's drafts, at most `most` of them.
    """

    @property
    def absorbed_slot(self) -> IntArray:
        """Live slot of each sequence whose accepted drafts are absorbed, [a]."""
        ...

    @property
    def absorbed_lane(self) -> IntArray:
        """Lane that holds the inputs of the sequence's accepted drafts, [a]."""
        ...

    @property
    def absorbed_count(self) -> IntArray:
        """Number of inputs to absorb, which are the first ones of the lane, [a]."""
        ...

    @property
    def absorbed_noise(self) -> IntArray:
        """Words by which the state after each of these inputs is rounded, [a, most]."""
        ...

    @property
    def draft_slot(self) -> IntArray:
        """Live slot of each sequence with drafts, [n]."""
        ...

    @property
    def draft_lane(self) -> IntArray:
        """Lane that keeps the inputs of the sequence's drafts, [n]."""
        ...

    @property
    def draft_len(self) -> IntArray:
        """Number of drafts of each sequence, [n], in descending order."""
        ...


class ReplayedRows:
    """Holds the C++ structure that describes the drafts of one step, and the memory that it points to."""

    def __init__(self, window: torch.Tensor, state: torch.Tensor, most: int) -> None:
        """Prepare the structure that describes the drafts of a step.

        `window` and `state` are [copies + 1, ...], dense: windows and states of one layer, which drafts
        change. `most` is the number of inputs of a lane.
        """
        # Addresses do not keep objects alive.
        self._kept = (window, state)
        lanes = len(window) - 1
        self._integers = np.zeros((6, lanes), np.int32)
        self._noise, self._tokens = np.zeros((lanes, most), np.int32), np.zeros(lanes * most, np.int32)
        slot, lane, count, draft_slot, draft_lane, draft_len = (row.ctypes.data for row in self._integers)
        self._call = Replay(
            window=window.data_ptr(), window_stride=window.stride(0), state=state.data_ptr(),
            state_stride=state[0].numel(), absorbed_slot=slot, absorbed_lane=lane, absorbed_count=count,
            absorbed_noise=self._noise.ctypes.data, noise_stride=most, draft_slot=draft_slot,
            draft_lane=draft_lane, draft_len=draft_len, draft_token=self._tokens.ctypes.data,
            lane_inputs=most,
        )  # fmt: skip
        self._address = ctypes.addressof(self._call)

    def place(self, drafts: HostDrafts, tokens: IntArray) -> int:
        """Fill the structure for a step and return its address, valid until the next call.

        `tokens` are the drafted tokens: the first ones of all sequences, then all second ones, and so on.
        """
        call, integers = self._call, self._integers
        call.absorbing = absorbing = len(drafts.absorbed_slot)
        call.drafting = drafting = len(drafts.draft_slot)
        call.drafts = len(tokens)
        if absorbing:
            integers[0, :absorbing] = drafts.absorbed_slot
            integers[1, :absorbing] = drafts.absorbed_lane
            integers[2, :absorbing] = drafts.absorbed_count
            self._noise[:absorbing, : drafts.absorbed_noise.shape[1]] = drafts.absorbed_noise
        if drafting:
            integers[3, :drafting], integers[4, :drafting] = drafts.draft_slot, drafts.draft_lane
            integers[5, :drafting] = drafts.draft_len
            self._tokens[: len(tokens)] = tokens
        return self._address
