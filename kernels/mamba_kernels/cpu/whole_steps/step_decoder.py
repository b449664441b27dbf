"""A step in which all sequences decode, in one call: see "decode_step" in README.md.

The model builds the call once for a cache, from the calls that its layers make one by one in other steps, and
runs it on the forward stream.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import KINDS, PackedLinear, PackedMatrix
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.structures import DecodeStep
from mamba_kernels.cpu.whole_steps.blocks import Block, BlockCalls, NormedAfter
from mamba_kernels.cpu.whole_steps.head_steps import HeadSteps
from mamba_kernels.cpu.whole_steps.replayed_rows import HostDrafts, ReplayedRows
from mamba_kernels.rope import turns
from mamba_kernels.slot_plan import IntArray


class DecodeRows(Protocol):
    """The n rows of a step: one row for the new token of each sequence, then the rows of all drafts.

    All arrays are int32 [n].
    """

    @property
    def slot_in(self) -> IntArray:
        """Slot from which the state of each sequence is read; -1 = the zero state."""
        ...

    @property
    def slot_out(self) -> IntArray:
        """Slot to which the state of each sequence is written."""
        ...

    @property
    def decode_track(self) -> IntArray:
        """Second slot to which the state is written, the slot of a checkpoint; -1 = none."""
        ...

    @property
    def state_noise(self) -> IntArray:
        """Word by which a float16 state is rounded; empty if the states are not float16."""
        ...

    @property
    def table_row(self) -> IntArray:
        """Row of the sequence in the table of pages and in `last_token`."""
        ...

    @property
    def context_len(self) -> IntArray:
        """Number of positions with keys, the new token's included."""
        ...

    @property
    def kv_row(self) -> IntArray:
        """page * page_size + offset of the new key and value."""
        ...

    @property
    def replay(self) -> HostDrafts | None:
        """Drafts, which are the last rows, and accepted drafts that live slots lack; None = neither."""
        ...

    @property
    def ring(self) -> IntArray | None:
        """Rows of a `RingPlan`, [3, n], for inputs that states lack; None = all states are written."""
        ...


class StepDecoder:
    """Computes whole decode steps of one model in one call of the C++ kernels, and writes its cache.

    Two threads must not use it at once.
    """

    def __init__(
        self,
        library: Library,
        *,
        embedding: PackedMatrix,
        blocks: Sequence[Block | NormedAfter],
        norm: RowNorm,
        embedding_scale: float = 1.0,
        frequencies: torch.Tensor | None = None,
        turn_factor: float = 1.0,
        residual_dtype: torch.dtype,
        page_table: torch.Tensor,
        last_token: torch.Tensor,
        most_rows: int,
        replay: ReplayedRows | None = None,
        head: HeadSteps | None = None,
    ) -> None:
        """Prepare the call of a model's decode steps.

        Args:
            library: the kernels.
            embedding: matrix with a row for each token.
            blocks: residual blocks in order.
            norm: norm after the last block.
            embedding_scale: factor of the embedding's rows before the first block.
            frequencies: argument of `rope.turns`; None = queries and keys are not rotated.
            turn_factor: argument `factor` of `rope.turns`.
            residual_dtype: type of the residual stream.
            page_table: [R, W] int32, read in each step.
            last_token: [at least R] int32, read in each step.
            most_rows: largest number of rows of a step.
            replay: memory of drafts; None = steps have none.
            head: head for drafts, which reads the tokens of each step or passes over them; None = there is
                none.
        """
        # Addresses do not keep objects alive.
        self._kept = (embedding, norm, page_table, last_token)
        self._run: Callable[..., None] = library.decode_step
        self._blocks = BlockCalls(blocks)
        # The structure of a product describes how the matrix is stored.
        self._embedding = PackedLinear(library, embedding, None)
        self._integers = np.zeros((10, most_rows), np.int32)
        self._places = np.zeros(most_rows, np.int32)
        self._width, self._dtype = embedding.inputs, embedding.dtype
        self._replay, self.head = replay, head
        self._step = DecodeStep(
            blocks=self._blocks.address,
            embedding=self._embedding.address,
            norm=norm.call,
            last_token=last_token.data_ptr(),
            integers=self._integers.ctypes.data,
            integers_stride=most_rows,
            page_table=page_table.data_ptr(),
            page_table_stride=page_table.stride(0),
            head=None if head is None else head.address,
            embedding_scale=embedding_scale,
            block_count=self._blocks.count,
        )
        self._step.norm.x_kind = KINDS[residual_dtype]
        self._frequencies, self._turn_factor = frequencies, turn_factor
        self._step.rope_half = 0 if frequencies is None else len(frequencies)
        self._address = ctypes.addressof(self._step)

    def __call__(
        self,
        decodes: DecodeRows,
        places: IntArray | None = None,
        drafted: IntArray | None = None,
        *,
        head_reads: bool = True,
    ) -> torch.Tensor:
        """Decode the last tokens of one or more sequences and return their normed hidden states [n, d].

        `places` are the places of the sequences' adapters, [n], or -1; None = no sequence has one. `drafted`
        are the tokens of drafts, for a step with `replay`, in the order of their rows. `head_reads` says
        whether the head reads the tokens of a step without drafts; otherwise their keys and values in its
        layer are zeros. States, windows, keys and values are written with the same bits as by the calls of
        the layers.
        """
        rows = len(decodes.context_len)
        integers = self._integers[:, :rows]
        integers[0], integers[1], integers[2] = decodes.slot_in, decodes.slot_out, decodes.decode_track
        integers[3] = decodes.state_noise if len(decodes.state_noise) else 0
        integers[4], integers[5], integers[6] = decodes.table_row, decodes.context_len, decodes.kv_row
        out = torch.empty(rows, self._width, dtype=self._dtype)
        step = self._step
        step.rows, step.places, step.replay = rows, None, None
        # A step with drafts is read in any case: their hidden states lie in lanes.
        step.head_passes = not head_reads and decodes.replay is None
        step.has_ring = decodes.ring is not None
        if decodes.ring is not None:
            integers[7:] = decodes.ring
        if decodes.replay is not None:
            assert self._replay is not None
            assert drafted is not None
            step.replay = self._replay.place(decodes.replay, drafted)
        if places is not None:
            self._places[:rows] = places
            step.places = self._places.ctypes.data
        if self._frequencies is not None:
            cos, sin = turns(torch.from_numpy(decodes.context_len - 1), self._frequencies, self._turn_factor)
            step.cos, step.sin = cos.data_ptr(), sin.data_ptr()
        self._run(self._address, out.data_ptr())
        return out
