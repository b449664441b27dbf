"""Drafts of a decode step, and accepted inputs that live slots lack, for the call of the whole step.

States take their inputs one after another, so both are divided into turns: `Replay` in `src/interface.h`.
"""

import ctypes
from typing import Protocol

import numpy as np
import torch

from mamba_kernels.cpu.structures import Replay
from mamba_kernels.slot_plan import IntArray


class HostDrafts(Protocol):
    """Drafts of a step on the host: n sequences with drafts, a sequences that absorb; arrays are int32."""

    @property
    def absorbed_slot(self) -> IntArray:
        """[a] live slot."""
        ...

    @property
    def absorbed_lane(self) -> IntArray:
        """[a] lane of the inputs."""
        ...

    @property
    def absorbed_count(self) -> IntArray:
        """[a] number of inputs to absorb, the first ones of the lane."""
        ...

    @property
    def absorbed_noise(self) -> IntArray:
        """[a, most] words by which the state after each of them is rounded."""
        ...

    @property
    def draft_slot(self) -> IntArray:
        """[n] live slot."""
        ...

    @property
    def draft_lane(self) -> IntArray:
        """[n] lane that keeps the inputs."""
        ...

    @property
    def draft_len(self) -> IntArray:
        """[n] number of drafts, in descending order."""
        ...


class ReplayedRows:
    """Memory of drafts for the calls of whole steps."""

    def __init__(self, window: torch.Tensor, state: torch.Tensor, most: int) -> None:
        """Prepare the structure.

        window, state: [copies + 1, ...], dense, windows and states of one layer that drafts move on; most:
        inputs of a lane.
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
        """Return the address of the structure for a step, valid until the next one is placed.

        tokens: those of the drafts, first all first ones, then all second ones, and so on.
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
