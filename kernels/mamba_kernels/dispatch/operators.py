"""Operators of a model: the references in torch, or our kernels where they can compute.

A kernel that cannot take its arguments says so before it runs; its reference then computes, and one warning
names the argument. Arguments that contradict each other are an error for the caller: the reference is not
called, since it might broadcast a shape until it fits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from mamba_kernels.activate import activate
from mamba_kernels.conv1d_prefill import conv1d_prefill
from mamba_kernels.conv1d_update import conv1d_update
from mamba_kernels.cpu.gated_delta import GatedDelta
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.rope import RowRope
from mamba_kernels.cpu.row_operations import PageWriter
from mamba_kernels.delta_replay import gated_delta_replay
from mamba_kernels.dispatch import signatures
from mamba_kernels.dispatch.kernel_or_reference import (
    KernelLeftOut,
    KernelOrReference,
    computes_by_reference,
)
from mamba_kernels.four_bit import four_bit_product
from mamba_kernels.fp8 import fp8_norm, fp8_product
from mamba_kernels.fp8.reference import fp8_rows
from mamba_kernels.gated_delta import gated_delta_prefill, gated_delta_update
from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.kv_write import kv_write
from mamba_kernels.moe import moe, route
from mamba_kernels.paged_attention import paged_attention
from mamba_kernels.rms_norm import rms_norm
from mamba_kernels.rope import rope
from mamba_kernels.sample import sample
from mamba_kernels.short_conv import short_conv_prefill, short_conv_update
from mamba_kernels.ssd_prefill import ssd_prefill
from mamba_kernels.state_replay import state_replay
from mamba_kernels.state_update import state_update

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Operators:
    """Implementations of all operators, each with the arguments of its reference."""

    activate: signatures.Activate
    conv1d_prefill: signatures.Conv1dPrefill
    conv1d_update: signatures.Conv1dUpdate
    four_bit_product: signatures.FourBitProduct
    fp8_norm: signatures.Fp8NormRows
    fp8_product: signatures.Fp8Product
    fp8_rows: signatures.Fp8Quantize
    gated_delta_prefill: signatures.GatedDeltaPrefill
    gated_delta_replay: signatures.GatedDeltaReplay
    gated_delta_update: signatures.GatedDeltaUpdate
    gated_norm: signatures.GatedNorm
    kv_write: signatures.KvWrite
    moe: signatures.Moe
    paged_attention: signatures.PagedAttention
    rms_norm: signatures.RmsNorm
    rope: signatures.Rope
    route: signatures.Route
    short_conv_prefill: signatures.ShortConvPrefill
    short_conv_update: signatures.ShortConvUpdate
    ssd_prefill: signatures.SsdPrefill
    state_replay: signatures.StateReplay
    state_update: signatures.StateUpdate
    sample: signatures.Sample | None
    """None = the engine's sampler calls the parts of the reference for the rows that ask for them."""
    why_not_attend: Callable[[int, int, int, torch.dtype], str]
    """(heads, kv_heads, head_dim, type of the cache) -> why `paged_attention` cannot take them; empty if it
    can. Called when a model is loaded, since its plans depend on the answer."""

    @property
    def gathers(self) -> bool:
        """Whether `paged_attention` needs a plan of gathered keys."""
        return computes_by_reference(self.paged_attention)

    @property
    def left_out(self) -> dict[str, str]:
        """Names of operators whose kernel is left out, each with a reason from `kernel_or_reference`."""
        return {each.name: each.left_out for each in self._kernels if each.left_out}

    def leave_out(self, names: Iterable[str]) -> None:
        """Let references compute these operators."""
        for each in self._kernels:
            if each.name in names:
                each.leave_out()

    def try_out(self, work: Callable[[], Result]) -> Result:
        """Do the work of a start, and repeat it without each kernel that fails.

        A kernel that fails is not used again. The work is repeated, because its earlier launches relied on
        the kernel.
        """
        for each in self._kernels:
            each.on_trial = True
        try:
            while True:
                try:
                    return work()
                except KernelLeftOut:
                    continue
        finally:
            for each in self._kernels:
                each.on_trial = False

    @property
    def _kernels(self) -> list[KernelOrReference[..., object]]:
        values = (getattr(self, field.name) for field in fields(self))
        return [each for each in values if isinstance(each, KernelOrReference)]


OPERATORS = tuple(field.name for field in fields(Operators) if field.name != "why_not_attend")
"""Names of all operators."""


REFERENCE = Operators(
    activate=activate,
    conv1d_prefill=conv1d_prefill,
    conv1d_update=conv1d_update,
    four_bit_product=four_bit_product,
    fp8_norm=fp8_norm,
    fp8_product=fp8_product,
    fp8_rows=fp8_rows,
    gated_delta_prefill=gated_delta_prefill,
    gated_delta_replay=gated_delta_replay,
    gated_delta_update=gated_delta_update,
    gated_norm=gated_norm,
    kv_write=kv_write,
    moe=moe,
    paged_attention=paged_attention,
    rms_norm=rms_norm,
    rope=rope,
    route=route,
    short_conv_prefill=short_conv_prefill,
    short_conv_update=short_conv_update,
    ssd_prefill=ssd_prefill,
    state_replay=state_replay,
    state_update=state_update,
    sample=None,
    why_not_attend=lambda heads, kv_heads, head_dim, kind: "",
)


def cpu_operators(library: Library) -> Operators:
    """Return the C++ kernels that have the arguments of a reference.

    Layers call those that join several operators, such as a Mamba2 mixer, themselves.
    """
    delta = GatedDelta(library)
    return replace(
        REFERENCE,
        gated_delta_prefill=KernelOrReference(
            "gated_delta_prefill", delta.prefill, gated_delta_prefill, backend="C++"
        ),
        gated_delta_update=KernelOrReference(
            "gated_delta_update", delta.update, gated_delta_update, backend="C++"
        ),
        kv_write=PageWriter(library),
        rope=KernelOrReference("rope", RowRope(library), rope, backend="C++"),
    )


def triton_operators() -> Operators:
    """Collect the Triton kernels for one model, with their references.

    Each model has a collection of its own, since a kernel that one model leaves out may compute for another.

    Raises:
        ImportError: Triton is not installed.
    """
    from mamba_kernels.activate import triton as activate_kernel
    from mamba_kernels.conv1d_prefill import triton as conv1d_prefill_kernel
    from mamba_kernels.conv1d_update import triton as conv1d_update_kernel
    from mamba_kernels.delta_replay import triton as delta_replay_kernel
    from mamba_kernels.four_bit import triton as four_bit_kernel
    from mamba_kernels.fp8 import triton as fp8_kernels
    from mamba_kernels.gated_delta import triton as gated_delta_kernels
    from mamba_kernels.gated_norm import triton as gated_norm_kernel
    from mamba_kernels.kv_write import triton as kv_write_kernel
    from mamba_kernels.moe import triton as moe_kernel
    from mamba_kernels.paged_attention import triton as paged_attention_kernel
    from mamba_kernels.rms_norm import triton as rms_norm_kernel
    from mamba_kernels.rope import triton as rope_kernel
    from mamba_kernels.sample import triton as sample_kernel
    from mamba_kernels.short_conv import triton as short_conv_kernels
    from mamba_kernels.ssd_prefill import triton as ssd_prefill_kernel
    from mamba_kernels.state_replay import triton as state_replay_kernel
    from mamba_kernels.state_update import triton as state_update_kernel

    return Operators(
        activate=KernelOrReference("activate", activate_kernel.activate, activate),
        conv1d_prefill=KernelOrReference(
            "conv1d_prefill", conv1d_prefill_kernel.conv1d_prefill, conv1d_prefill
        ),
        conv1d_update=KernelOrReference("conv1d_update", conv1d_update_kernel.conv1d_update, conv1d_update),
        four_bit_product=KernelOrReference(
            "four_bit_product", four_bit_kernel.four_bit_product, four_bit_product
        ),
        fp8_norm=KernelOrReference("fp8_norm", fp8_kernels.fp8_norm, fp8_norm),
        fp8_product=KernelOrReference("fp8_product", fp8_kernels.fp8_product, fp8_product),
        fp8_rows=KernelOrReference("fp8_rows", fp8_kernels.fp8_rows, fp8_rows),
        gated_delta_prefill=KernelOrReference(
            "gated_delta_prefill", gated_delta_kernels.gated_delta_prefill, gated_delta_prefill
        ),
        gated_delta_replay=KernelOrReference(
            "gated_delta_replay", delta_replay_kernel.gated_delta_replay, gated_delta_replay
        ),
        gated_delta_update=KernelOrReference(
            "gated_delta_update", gated_delta_kernels.gated_delta_update, gated_delta_update
        ),
        gated_norm=KernelOrReference("gated_norm", gated_norm_kernel.gated_norm, gated_norm),
        kv_write=KernelOrReference("kv_write", kv_write_kernel.kv_write, kv_write),
        moe=KernelOrReference("moe", moe_kernel.moe, moe),
        paged_attention=KernelOrReference(
            "paged_attention", paged_attention_kernel.paged_attention, paged_attention, same_plans=False
        ),
        rms_norm=KernelOrReference("rms_norm", rms_norm_kernel.rms_norm, rms_norm),
        rope=KernelOrReference("rope", rope_kernel.rope, rope),
        route=KernelOrReference("route", moe_kernel.route, route),
        short_conv_prefill=KernelOrReference(
            "short_conv_prefill", short_conv_kernels.short_conv_prefill, short_conv_prefill
        ),
        short_conv_update=KernelOrReference(
            "short_conv_update", short_conv_kernels.short_conv_update, short_conv_update
        ),
        ssd_prefill=KernelOrReference("ssd_prefill", ssd_prefill_kernel.ssd_prefill, ssd_prefill),
        state_replay=KernelOrReference("state_replay", state_replay_kernel.state_replay, state_replay),
        state_update=KernelOrReference("state_update", state_update_kernel.state_update, state_update),
        sample=KernelOrReference("sample", sample_kernel.sample, sample),
        why_not_attend=paged_attention_kernel.why_not,
    )
