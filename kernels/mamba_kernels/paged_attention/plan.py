"""Which pages each row attends to: built once per step from host arrays, used by every attention layer."""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, index_tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decoding sequences whose contexts are padded to one length."""

    rows: torch.Tensor | slice
    """[g] rows of the batch"""
    pages: torch.Tensor
    """[g, L] int64: page of each context position; positions beyond the end repeat the last one."""
    offsets: torch.Tensor
    """[g, L] int64"""
    mask: torch.Tensor | None
    """[g, 1, 1, L] bool, True = attend; None when nothing is padded."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One prefill piece: rows `first..end` of the batch are the last positions of a context."""

    first: int
    end: int
    context: int
    pages: torch.Tensor
    """[context] int64"""
    offsets: torch.Tensor
    """[context] int64"""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups of decodes and prefill pieces of one batch."""

    groups: list[DecodeGroup]
    pieces: list[Piece]
    page_table: torch.Tensor
    """[D, W] int32 on the host: pages of each decode; padding beyond the end."""
    context_len: torch.Tensor
    """[D] int32 on the host."""

    @classmethod
    def build(
        cls,
        *,
        decodes: int,
        query_start: IntArray,
        context_len: IntArray,
        page_table: IntArray,
        page_size: int,
        device: torch.device,
    ) -> "AttentionPlan":
        """Plan for S sequences, the first `decodes` of one row each: query_start [S+1], page_table [S, W].

        A decode is padded to a length that its own context alone decides, so its result does not depend on
        the batch; padding costs at most a quarter.
        """
        lengths = np.array([padded_length(int(length)) for length in context_len[:decodes]])
        groups = []
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            contexts = context_len[members, None]
            positions = np.minimum(np.arange(length), contexts - 1)
            ragged = bool((contexts < length).any())
            neighbours = members[-1] - members[0] == len(members) - 1
            groups.append(
                DecodeGroup(
                    rows=slice(int(members[0]), int(members[-1]) + 1)
                    if neighbours
                    else index_tensor(members, device),
                    pages=index_tensor(
                        np.take_along_axis(page_table[members], positions // page_size, 1), device
                    ),
                    offsets=index_tensor(positions % page_size, device),
                    mask=index_tensor(np.arange(length) < contexts, device).bool()[:, None, None]
                    if ragged
                    else None,
                )
            )
        pieces = []
        for sequence in range(decodes, len(context_len)):
            context = int(context_len[sequence])
            positions = np.arange(context)
            pieces.append(
                Piece(
                    first=int(query_start[sequence]),
                    end=int(query_start[sequence + 1]),
                    context=context,
                    pages=index_tensor(page_table[sequence, positions // page_size], device),
                    offsets=index_tensor(positions % page_size, device),
                )
            )
        return cls(
            groups,
            pieces,
            page_table=torch.from_numpy(np.ascontiguousarray(page_table[:decodes], np.int32)),
            context_len=torch.from_numpy(np.ascontiguousarray(context_len[:decodes], np.int32)),
        )


def padded_length(context: int) -> int:
    """The smallest of 16, 20, 24, 28, 32, 40, … that holds the context: four lengths per power of two."""
    if context <= 16:
        return 16
    grain = 1 << ((context - 1).bit_length() - 3)
    return -(-context // grain) * grain
