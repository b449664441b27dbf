"""Signatures of a model's operators: one protocol each, with the arguments of its reference.

References, kernels and the pairs of both are checked against these, and so is each call in a layer.
"""

from typing import Protocol

import torch

from mamba_kernels.activate import Function
from mamba_kernels.four_bit import FourBitMatrix
from mamba_kernels.fp8 import Fp8Matrix, Fp8Rows
from mamba_kernels.fp8_pages import Pages
from mamba_kernels.gated_delta import DeltaInputs
from mamba_kernels.moe import Activation, ExpertWeights, Routing, SharedExpert
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.sample import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.state_replay import RingPlan

Tensor = torch.Tensor


class Activate(Protocol):
    """Signature of `activate`."""

    def __call__(self, x: Tensor, function: Function, factor: Tensor | None = None, /) -> None: ...


class Conv1dPrefill(Protocol):
    """Signature of `conv1d_prefill`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, plan: ChunkPlan, /
    ) -> Tensor: ...


class Conv1dUpdate(Protocol):
    """Signature of `conv1d_update`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, plan: SlotPlan, /
    ) -> Tensor: ...


class FourBitProduct(Protocol):
    """Signature of `four_bit_product`."""

    def __call__(
        self, x: Tensor, matrix: FourBitMatrix, bias: Tensor | None, out: Tensor, invariant: bool = False, /
    ) -> None: ...


class Fp8NormRows(Protocol):
    """Signature of `fp8_norm`."""

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, added: Tensor | None, dtype: torch.dtype, groups: int, /
    ) -> tuple[Tensor, Fp8Rows]: ...


class Fp8Product(Protocol):
    """Signature of `fp8_product`."""

    def __call__(
        self, rows: Fp8Rows, matrix: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype, /
    ) -> Tensor: ...


class Fp8Quantize(Protocol):
    """Signature of `fp8_rows`."""

    def __call__(self, x: Tensor, groups: int, /) -> Fp8Rows: ...


class GatedDeltaPrefill(Protocol):
    """Signature of `gated_delta_prefill`."""

    def __call__(self, state: Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: Tensor, /) -> None: ...


class GatedDeltaReplay(Protocol):
    """Signature of `gated_delta_replay`."""

    def __call__(
        self,
        state: Tensor,
        inputs: DeltaInputs,
        plan: SlotPlan,
        lanes: RingPlan,
        ring: Tensor,
        out: Tensor,
        /,
    ) -> None: ...


class GatedDeltaUpdate(Protocol):
    """Signature of `gated_delta_update`."""

    def __call__(self, state: Tensor, inputs: DeltaInputs, plan: SlotPlan, out: Tensor, /) -> None: ...


class GatedNorm(Protocol):
    """Signature of `gated_norm`."""

    def __call__(
        self,
        y: Tensor,
        gate: Tensor,
        weight: Tensor | None,
        eps: float,
        groups: int,
        norm_first: bool = False,
        /,
    ) -> Tensor: ...


class KvWrite(Protocol):
    """Signature of `kv_write`."""

    def __call__(self, kv: Pages, key: Tensor, value: Tensor, page: Tensor, offset: Tensor, /) -> None: ...


class Moe(Protocol):
    """Signature of `moe`."""

    def __call__(
        self,
        hidden: Tensor,
        experts: Tensor,
        weights: Tensor,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        activation: Activation,
        out: Tensor,
        shared: SharedExpert | None = None,
        /,
    ) -> None: ...


class PagedAttention(Protocol):
    """Signature of `paged_attention`."""

    def __call__(
        self, query: Tensor, kv: Pages, scale: float, plan: AttentionPlan, out: Tensor, /
    ) -> None: ...


class RmsNorm(Protocol):
    """Signature of `rms_norm`."""

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        added: Tensor | None = None,
        dtype: torch.dtype | None = None,
        groups: int = 1,
        /,
    ) -> Tensor: ...


class Rope(Protocol):
    """Signature of `rope`."""

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, /) -> None: ...


class Route(Protocol):
    """Signature of `route`."""

    def __call__(
        self, logits: Tensor, routing: Routing, correction: Tensor | None = None, /
    ) -> tuple[Tensor, Tensor]: ...


class Sample(Protocol):
    """Signature of `sample`."""

    def __call__(
        self, logits: Tensor, parameters: SampleParameters, counts: PenaltyCounts, positions: Tensor, /
    ) -> TokenChoice: ...


class ShortConvPrefill(Protocol):
    """Signature of `short_conv_prefill`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, plan: ChunkPlan, /
    ) -> Tensor: ...


class ShortConvUpdate(Protocol):
    """Signature of `short_conv_update`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, plan: SlotPlan, /
    ) -> Tensor: ...


class SsdPrefill(Protocol):
    """Signature of `ssd_prefill`."""

    def __call__(self, state: Tensor, inputs: ScanInputs, plan: ChunkPlan, out: Tensor, /) -> None: ...


class StateReplay(Protocol):
    """Signature of `state_replay`."""

    def __call__(
        self, state: Tensor, inputs: ScanInputs, plan: SlotPlan, lanes: RingPlan, ring: Tensor, out: Tensor, /
    ) -> None: ...


class StateUpdate(Protocol):
    """Signature of `state_update`."""

    def __call__(self, state: Tensor, inputs: ScanInputs, plan: SlotPlan, out: Tensor, /) -> None: ...
