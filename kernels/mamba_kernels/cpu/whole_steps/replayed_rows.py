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
        self._kept: tuple[object, ...] = (window, state)
        self._arrays: tuple[IntArray, ...] = ()
        self._call = Replay(
            window=window.data_ptr(), window_stride=window.stride(0), state=state.data_ptr(),
            state_stride=state[0].numel(), lane_inputs=most,
        )  # fmt: skip

    def place(self, drafts: HostDrafts, tokens: IntArray) -> int:
        """Return the address of the structure for a step, valid until the next one is placed.

        tokens: those of the drafts, first all first ones, then all second ones, and so on.
        """
        call = self._call
        arrays = (
            drafts.absorbed_slot, drafts.absorbed_lane, drafts.absorbed_count, drafts.absorbed_noise,
            drafts.draft_slot, drafts.draft_lane, drafts.draft_len, tokens,
        )  # fmt: skip
        self._arrays = arrays = tuple(np.ascontiguousarray(array, np.int32) for array in arrays)
        (
            call.absorbed_slot, call.absorbed_lane, call.absorbed_count, call.absorbed_noise,
            call.draft_slot, call.draft_lane, call.draft_len, call.draft_token,
        ) = (array.ctypes.data for array in arrays)  # fmt: skip
        call.noise_stride = drafts.absorbed_noise.shape[1]
        call.absorbing, call.drafting, call.drafts = len(arrays[0]), len(arrays[4]), len(tokens)
        return ctypes.addressof(call)
