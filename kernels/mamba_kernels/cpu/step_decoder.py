"""A step in which all sequences decode, in one call: see "decode_step" in README.md.

The model builds the call once for a cache, from the calls that its layers make one by one in other steps, and
runs it on the forward stream.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mamba_kernels.cpu.delta_mixer import GatedDeltaCalls
from mamba_kernels.cpu.expert_router import ExpertRouter
from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.cpu.packed_linear import KINDS, PackedLinear, PackedMatrix
from mamba_kernels.cpu.paged_decode import PagedDecoder
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.short_conv import ShortConvCalls
from mamba_kernels.cpu.structures import (
    ATTENTION_BLOCK,
    DELTA_BLOCK,
    MAMBA_BLOCK,
    MLP_BLOCK,
    MOE_BLOCK,
    PARALLEL_BLOCK,
    SHORT_CONV_BLOCK,
    DecodeBlock,
    DecodeStep,
    RmsNorm,
)
from mamba_kernels.rope import turns
from mamba_kernels.slot_plan import IntArray


@dataclass(frozen=True, slots=True)
class MambaBlock:
    """A Mamba2 block, x + out_proj(mixer(in_proj(norm(x)))), with the cache of its layer."""

    norm: RowNorm
    in_proj: PackedLinear
    mixer: MambaDecoder
    out_proj: PackedLinear
    window: torch.Tensor
    """`window` and `state` of `MambaDecoder.__call__`."""
    state: torch.Tensor

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = MAMBA_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.mamba, self.window, self.state)


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """A block of the gated delta rule, x + out_proj(mixer(in_proj(norm(x)))), with the cache of its layer."""

    norm: RowNorm
    in_proj: PackedLinear
    mixer: GatedDeltaCalls
    out_proj: PackedLinear
    window: torch.Tensor
    """`window` and `state` of `GatedDeltaCalls`."""
    state: torch.Tensor

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = DELTA_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.delta, self.window, self.state)


@dataclass(frozen=True, slots=True)
class ShortConvBlock:
    """A block of a gated short convolution, x + out_proj(mixer(in_proj(norm(x)))), with its windows."""

    norm: RowNorm
    in_proj: PackedLinear
    mixer: ShortConvCalls
    out_proj: PackedLinear
    window: torch.Tensor
    """`window` of `ShortConvCalls`."""

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = SHORT_CONV_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.short_conv, self.window)


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """An attention block, x + out_proj(attention(in_proj(norm(x)))).

    `in_proj` computes queries, keys and values, in this order, and, with `output_gate`, the gate whose
    sigmoid multiplies the result of attention.
    """

    norm: RowNorm
    in_proj: PackedLinear
    attention: PagedDecoder
    out_proj: PackedLinear
    kv: torch.Tensor
    """Keys and values as for `PagedDecoder.__call__`; written."""
    head_norms: tuple[RowNorm, RowNorm] | None = None
    """Norms of queries and of keys, each of a head or of all heads, applied before their rotation."""
    output_gate: bool = False

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind = ATTENTION_BLOCK
        call.attention_in_proj, call.attention_out_proj = self.in_proj.address, self.out_proj.address
        self.attention.place(call.attention, self.kv)
        call.output_gate = self.output_gate
        if self.head_norms is not None:
            call.query_norm, call.key_norm = (norm.call for norm in self.head_norms)


@dataclass(frozen=True, slots=True)
class MlpBlock:
    """An MLP block, x + out_proj(in_proj(norm(x)) * gate_proj(norm(x))).

    The activation is part of the products before it.
    """

    norm: RowNorm
    in_proj: PackedLinear
    gate_proj: PackedLinear | None
    out_proj: PackedLinear

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = MLP_BLOCK, self.in_proj.address, self.out_proj.address
        call.gate_proj = None if self.gate_proj is None else self.gate_proj.address


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """A block that adds the results of a mixer and of attention for norm(x) to x; the norm is the mixer's."""

    mamba: MambaBlock
    attention: AttentionBlock

    @property
    def norm(self) -> RowNorm:
        return self.mamba.norm

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        self.mamba.fill(call)
        self.attention.fill(call)
        call.kind = PARALLEL_BLOCK


@dataclass(frozen=True, slots=True)
class LatentCalls:
    """The products around experts that work in a width of their own."""

    enter: PackedLinear
    back: PackedLinear
    shared: tuple[PackedLinear, PackedLinear] | None
    """Both products of the shared expert, the first with its activation; None = there is none."""


@dataclass(frozen=True, slots=True)
class MoeBlock:
    """A block x + experts(norm(x)), with the experts that the router chooses for each row."""

    norm: RowNorm
    router: ExpertRouter
    experts: PackedExperts
    latent: LatentCalls | None = None
    """Products around the experts, with their shared expert; None = there are none."""

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.router, call.experts = MOE_BLOCK, self.router.call, self.experts.call
        if (latent := self.latent) is None:
            return
        call.in_proj, call.out_proj = latent.enter.address, latent.back.address
        if latent.shared is not None:
            call.shared_in_proj, call.shared_out_proj = (each.address for each in latent.shared)


Block = MambaBlock | DeltaBlock | ShortConvBlock | AttentionBlock | MlpBlock | ParallelBlock | MoeBlock


@dataclass(frozen=True, slots=True)
class NormedAfter:
    """A block whose norm is applied to the mixer's result: x + norm(mixer(x))."""

    block: Block

    @property
    def norm(self) -> RowNorm:
        return self.block.norm

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        self.block.fill(call)
        call.result_norm = call.norm
        call.norm = RmsNorm()


class DecodeRows(Protocol):
    """The sequences of a step with one new token each; all arrays are int32 [n]."""

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
        """Second slot to which the state is written, that of a checkpoint; -1 = none."""
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


class StepDecoder:
    """The call for one model and one cache. Two threads must not use it at once."""

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
    ) -> None:
        """Prepare the call of a model's decode steps.

        Args:
            library: the kernels.
            embedding: matrix of the tokens' rows.
            blocks: residual blocks in order.
            norm: norm after the last block.
            embedding_scale: factor of the embedding's rows before the first block.
            frequencies: argument of `rope.turns`; None = queries and keys are not rotated.
            turn_factor: argument `factor` of `rope.turns`.
            residual_dtype: type of the residual stream.
            page_table: [R, W] int32, read in each step.
            last_token: [at least R] int32, read in each step.
            most_rows: largest number of rows of a step.
        """
        # Addresses do not keep objects alive.
        self._kept = (embedding, blocks, norm, page_table, last_token)
        self._run: Callable[..., None] = library.decode_step
        self._blocks = (DecodeBlock * len(blocks))()
        for call, block in zip(self._blocks, blocks, strict=True):
            call.norm = block.norm.call
            block.fill(call)
        # The structure of a product describes how the matrix is stored.
        self._embedding = PackedLinear(library, embedding, None)
        self._integers = np.zeros((7, most_rows), np.int32)
        self._places = np.zeros(most_rows, np.int32)
        self._width, self._dtype = embedding.inputs, embedding.dtype
        self._step = DecodeStep(
            blocks=ctypes.addressof(self._blocks),
            embedding=self._embedding.address,
            norm=norm.call,
            last_token=last_token.data_ptr(),
            integers=self._integers.ctypes.data,
            integers_stride=most_rows,
            page_table=page_table.data_ptr(),
            page_table_stride=page_table.stride(0),
            embedding_scale=embedding_scale,
            block_count=len(blocks),
        )
        self._step.norm.x_kind = KINDS[residual_dtype]
        self._frequencies, self._turn_factor = frequencies, turn_factor
        self._step.rope_half = 0 if frequencies is None else len(frequencies)
        self._address = ctypes.addressof(self._step)

    def __call__(self, decodes: DecodeRows, places: IntArray | None = None) -> torch.Tensor:
        """Decode the last tokens of one or more sequences and return their normed hidden states [n, d].

        places: [n] place of the adapter of each sequence, or -1; None = no sequence has one.
        States, windows, keys and values are written with the same bits as by the calls of the layers.
        """
        rows = len(decodes.context_len)
        integers = self._integers[:, :rows]
        integers[0], integers[1], integers[2] = decodes.slot_in, decodes.slot_out, decodes.decode_track
        integers[3] = decodes.state_noise if len(decodes.state_noise) else 0
        integers[4], integers[5], integers[6] = decodes.table_row, decodes.context_len, decodes.kv_row
        out = torch.empty(rows, self._width, dtype=self._dtype)
        self._step.rows = rows
        self._step.places = None
        if places is not None:
            self._places[:rows] = places
            self._step.places = self._places.ctypes.data
        if self._frequencies is not None:
            cos, sin = turns(torch.from_numpy(decodes.context_len - 1), self._frequencies, self._turn_factor)
            self._step.cos, self._step.sin = cos.data_ptr(), sin.data_ptr()
        self._run(self._address, out.data_ptr())
        return out
