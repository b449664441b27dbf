"""Blocks of a model for the calls of whole steps, each with the weights and the cache of its layer.

The server names the blocks of a model; `StepDecoder` and `HeadSteps` write them into the structures of C++.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.delta_mixer import GatedDeltaCalls
from mamba_kernels.cpu.expert_router import ExpertRouter
from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.cpu.packed_linear import CPU, KINDS, PackedLinear
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
    RmsNorm,
)
from mamba_kernels.fp8_pages import Pages


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
    ring: torch.Tensor | None = None
    """[any, outputs of in_proj] raw inputs of drafts; None = there are no drafts."""
    waiting: torch.Tensor | None = None
    """`ring` of `MambaDecoder.__call__`: inputs that states lack; None = states lack none."""

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = MAMBA_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.mamba, self.window, self.state, self.waiting)
        call.ring = _ring(self.in_proj, self.ring)


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
    ring: torch.Tensor | None = None
    """Raw inputs of drafts, as `MambaBlock.ring`."""
    waiting: torch.Tensor | None = None
    """Inputs that states lack, as `MambaBlock.waiting`."""

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = DELTA_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.delta, self.window, self.state, self.waiting)
        call.ring = _ring(self.in_proj, self.ring)


@dataclass(frozen=True, slots=True)
class ShortConvBlock:
    """A block of a gated short convolution, x + out_proj(mixer(in_proj(norm(x)))), with its windows."""

    norm: RowNorm
    in_proj: PackedLinear
    mixer: ShortConvCalls
    out_proj: PackedLinear
    window: torch.Tensor
    """`window` of `ShortConvCalls`."""
    ring: torch.Tensor | None = None
    """Raw inputs of drafts, as `MambaBlock.ring`."""

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind, call.in_proj, call.out_proj = SHORT_CONV_BLOCK, self.in_proj.address, self.out_proj.address
        self.mixer.place(call.short_conv, self.window)
        call.ring = _ring(self.in_proj, self.ring)


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
    kv: Pages
    """Keys and values as for `PagedDecoder.__call__`; written."""
    head_norms: tuple[RowNorm, RowNorm] | None = None
    """Norms of queries and of keys, each of a head or of all heads, applied before their rotation."""
    output_gate: bool = False

    def fill(self, call: DecodeBlock) -> None:
        """Write the fields of `call` that do not change from step to step."""
        call.kind = ATTENTION_BLOCK
        call.attention_in_proj, call.attention_out_proj = self.in_proj.address, self.out_proj.address
        self.attention.place(call.attention, self.kv)
        call.attention.kind = KINDS[self.norm.dtype]
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
    """The products before and after experts that compute rows of another width than the model's."""

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


class BlockCalls:
    """Holds the C++ structures of a model's residual blocks, one after another.

    `address` is valid as long as this object lives.
    """

    def __init__(self, blocks: Sequence[Block | NormedAfter]) -> None:
        # Addresses do not keep objects alive.
        self._kept = blocks
        self._calls = (DecodeBlock * len(blocks))()
        for call, block in zip(self._calls, blocks, strict=True):
            call.norm = block.norm.call
            block.fill(call)
        self.address, self.count = ctypes.addressof(self._calls), len(blocks)


def _ring(in_proj: PackedLinear, ring: torch.Tensor | None) -> int | None:
    """Return the address of a ring of the product's rows; None = there is no ring. Raises WrongArgument."""
    if ring is None:
        return None
    weight = in_proj.weight
    check("ring", ring, (None, weight.outputs), dtypes=(weight.dtype,), device=CPU, dense_from=0)
    return ring.data_ptr()
