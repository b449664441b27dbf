"""The calls of a head that drafts behind a model: see "draft" in README.md.

The call of `StepDecoder` lets the head read the tokens of a step, or pass over them, so that their keys and
values in its layer are zeros; the runner calls `draft` between two steps.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS, PackedLinear, PackedMatrix
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.structures import DecodeStep, DraftHead, DraftTurns
from mamba_kernels.cpu.whole_steps.blocks import AttentionBlock, BlockCalls, MlpBlock, MoeBlock
from mamba_kernels.rope import turns
from mamba_kernels.slot_plan import IntArray


@dataclass(frozen=True, slots=True)
class HeadCalls:
    """Weights of a model's head, which drafts tokens.

    The head computes join(embedding_norm(token) | hidden_norm(hidden)), then two blocks and a norm.
    """

    embedding_norm: RowNorm
    hidden_norm: RowNorm
    join: PackedLinear
    attention: AttentionBlock
    feed_forward: MlpBlock | MoeBlock
    norm: RowNorm
    output: PackedLinear
    """Product that gives the logits; it is the model's."""


class HeadSteps:
    """Drafts tokens with a model's head between two steps, and writes the head's keys and values.

    It belongs to one cache. Two threads must not use it at once.
    """

    def __init__(
        self,
        library: Library,
        *,
        embedding: PackedMatrix,
        calls: HeadCalls,
        frequencies: torch.Tensor | None,
        turn_factor: float,
        page_table: torch.Tensor,
        kept: torch.Tensor,
        tails: torch.Tensor,
        lane_rows: int,
    ) -> None:
        """Prepare the calls. Raises WrongArgument.

        Args:
            library: the kernels.
            embedding: matrix with a row for each token; it is the model's.
            calls: weights of the head.
            frequencies: argument of `rope.turns`; None = queries and keys are not rotated.
            turn_factor: argument `factor` of `rope.turns`.
            page_table: [R, W] int32, read in each step.
            kept: [any, d] hidden states of last tokens, written.
            tails: [pages, d] hidden states of the last tokens of pages, written; rows may be strided.
            lane_rows: row of `kept` at which the rows of lanes begin.
        """
        dtype, width = calls.norm.dtype, embedding.inputs
        check("kept", kept, (None, width), dtypes=(dtype,), device=CPU, dense_from=0)
        check("tails", tails, (None, width), dtypes=(dtype,), device=CPU, dense_from=1)
        # Addresses do not keep objects alive.
        self._kept = (embedding, calls, page_table, kept, tails)
        self._run: Callable[..., None] = library.draft
        self._embedding = PackedLinear(library, embedding, None)
        self._blocks = BlockCalls([calls.attention, calls.feed_forward])
        self._frequencies, self._turn_factor = frequencies, turn_factor
        step = DecodeStep(
            blocks=self._blocks.address,
            embedding=self._embedding.address,
            norm=calls.norm.call,
            page_table=page_table.data_ptr(),
            page_table_stride=page_table.stride(0),
            embedding_scale=1.0,
            rope_half=0 if frequencies is None else len(frequencies),
            block_count=self._blocks.count,
        )
        step.norm.x_kind = KINDS[dtype]
        self._head = DraftHead(
            step=step,
            embedding_norm=calls.embedding_norm.call,
            hidden_norm=calls.hidden_norm.call,
            join=calls.join.address,
            output=calls.output.address,
            kept=kept.data_ptr(),
            tails=tails.data_ptr(),
            tails_stride=tails.stride(0),
            lane_rows=lane_rows,
        )
        self.address = ctypes.addressof(self._head)
        """Address of the structure, valid as long as this object lives."""

    def draft(
        self, last_tokens: IntArray, places: IntArray, counts: IntArray, rows: IntArray, depths: IntArray
    ) -> IntArray:
        """Return the drafted tokens, [n, most], of n sequences; their keys and values are written.

        Args:
            last_tokens: [n] last token of each sequence.
            places: [n] row of `kept` with the hidden state of the token before the last one.
            counts: [n] number of tokens to draft, in descending order.
            rows: [n] row in the table of pages.
            depths: [n] position of the last token.
        """
        most = int(counts[0])
        drafted = np.zeros((len(rows), most), np.int32)
        integers = np.array([rows, depths, counts, last_tokens, places], np.int32)
        if self._frequencies is not None:
            reached = np.concatenate([depths[counts > turn] + turn for turn in range(most)])
            cos, sin = turns(torch.from_numpy(reached), self._frequencies, self._turn_factor)
            self._head.step.cos, self._head.step.sin = cos.data_ptr(), sin.data_ptr()
        first, stride = integers.ctypes.data, integers.strides[0]
        addresses = (first + field * stride for field in range(len(integers)))
        call = DraftTurns(*addresses, drafted.ctypes.data, len(rows), most)
        self._run(self.address, ctypes.addressof(call))
        return drafted
