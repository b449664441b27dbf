"""Layout of a model's states and pages on one tensor-parallel rank, in a form that two engines can compare.

`StateLayout.of` derives the layout from the model and the settings of the engine. Two engines compare their
layouts when they connect; `slice_plan` then computes which bytes are copied. A part is what tensor
parallelism splits in one way, such as the keys; parts that lie side by side in each row of memory form a
block. Offsets are those of the arena: a slot holds the recurrent states of all layers, then the convolution
windows of all layers; a page holds the keys, the values and any scales of each attention layer, and behind
them the hidden state for a head for drafts, if there is one. This module reads and writes no memory of the
arena.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import msgspec

from mamba_api.choices import FP8_PAGES, KvCacheDtype
from mamba_planner.arithmetic import (
    DTYPE_BYTES,
    PAGE_SCALE_BYTES,
    page_bytes,
    slab_bytes,
    state_bytes,
)
from mamba_planner.model_config import ModelConfig
from mamba_transfer.errors import IncompatibleLayouts

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
MOST_PARTS = 16
MOST_RANKS = 1024
_EXPONENT = "e8m0"
"""Type of a scale, which is a power of two: its exponent plus 127."""
_BYTES = {**DTYPE_BYTES, FP8_PAGES: 1, _EXPONENT: PAGE_SCALE_BYTES}
"""Bytes of one element by type."""


class TensorPart(msgspec.Struct, frozen=True):
    """Part of a state or page that tensor parallelism splits by heads or groups, such as keys or `window.B`.

    The parts of one block are adjacent in each row of the block: `window.x`, `window.B` and `window.C` are
    the block `window`. Most blocks have one part.
    """

    name: Name
    """Name of the block; if the block has several parts, a dot and the name of this part follow."""
    place: Literal["state", "page"]
    dtype: Literal["float64", "float32", "bfloat16", "float16", "fp8_e4m3", "e8m0"]
    layers: Count
    rows: Count
    """Number of rows in one layer: 1 for a recurrent state, K-1 for a convolution window, the number of
    tokens of a page for keys and values."""
    units: Count
    """Number of heads or groups in the whole model."""
    width: Count
    """Number of elements of one head or group in one row."""
    first: Count
    """Index of the first head or group that this rank holds."""
    last: Count
    """Index after the last head or group that this rank holds."""
    replicas: Count
    """Number of ranks that hold the same heads or groups."""

    @property
    def block(self) -> str:
        """Name of the block that the part belongs to."""
        return self.name.partition(".")[0]

    @property
    def unit_bytes(self) -> int:
        """Bytes of one head or group in one row."""
        return self.width * _BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on this rank."""
        return (self.last - self.first) * self.unit_bytes

    def at(self, rank: int, ranks: int) -> "TensorPart":
        """Return this part as rank `rank` of `ranks` holds it.

        Raises IncompatibleLayouts if the heads or groups can be neither split nor replicated among that many
        ranks.
        """
        if self.units % ranks and ranks % self.units:
            raise IncompatibleLayouts(f"{self.name}.units ({self.units} among {ranks} ranks)")
        first = rank * self.units // ranks
        last = first + max(1, self.units // ranks)
        return msgspec.structs.replace(self, first=first, last=last, replicas=max(1, ranks // self.units))


class StateLayout(msgspec.Struct, frozen=True):
    """How the states and pages of a model lie in memory, on tensor-parallel rank `rank` of `ranks`."""

    fingerprint: Name
    """Identity of the weights, and of everything else that determines the numbers in a state."""
    page_size: Count
    """Number of tokens of a page."""
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    parts: Annotated[tuple[TensorPart, ...], msgspec.Meta(max_length=MOST_PARTS)]
    """All parts, in the order in which they lie in memory."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        *,
        fingerprint: str,
        state_dtype: str,
        dtype: str,
        page_size: int,
        kv_cache_dtype: KvCacheDtype = "auto",
        rank: int = 0,
        ranks: int = 1,
    ) -> Self:
        """Return the layout of one rank.

        Args:
            model: shape of the model.
            fingerprint: identity of the weights; only engines with equal ones exchange states.
            state_dtype: type of the recurrent states.
            dtype: type of convolution windows, keys and values.
            page_size: number of tokens of a page.
            kv_cache_dtype: type of keys and values in pages; auto = `dtype`.
            rank: number of the tensor-parallel rank.
            ranks: number of ranks.

        Raises UnusableInput if the model cannot be split among so many ranks.
        """
        # The planner's message about an impossible split names the settings of the engine.
        state = state_bytes(model, state_dtype, dtype, ranks)
        page = page_bytes(model, dtype, page_size, ranks, kv_cache_dtype)
        parts = [
            part.at(rank, ranks) for part in _parts(model, state_dtype, dtype, page_size, kv_cache_dtype)
        ]
        layout = cls(fingerprint=fingerprint, page_size=page_size, rank=rank, ranks=ranks, parts=tuple(parts))
        assert (layout.state_bytes, layout.page_bytes) == (state.total, page)
        return layout

    @property
    def digest(self) -> str:
        """Short name of the layout, equal for equal layouts."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=16).hexdigest()

    @property
    def state_bytes(self) -> int:
        """Bytes of the state in one slot."""
        return sum(part.layers * part.rows * part.row_bytes for part in self.parts if part.place == "state")

    @property
    def page_bytes(self) -> int:
        """Bytes of one page; 0 for a model without attention layers."""
        return sum(part.layers * part.rows * part.row_bytes for part in self.parts if part.place == "page")

    @property
    def slab_bytes(self) -> int:
        """Distance in bytes between the beginnings of two adjacent slots of the arena."""
        return slab_bytes(self.state_bytes, self.page_bytes)

    def at(self, rank: int, ranks: int) -> "StateLayout":
        """Return the layout of rank `rank` of `ranks`. Raises IncompatibleLayouts for an impossible split."""
        parts = tuple(part.at(rank, ranks) for part in self.parts)
        return msgspec.structs.replace(self, rank=rank, ranks=ranks, parts=parts)

    def refusal(self, other: "StateLayout") -> str | None:
        """Return the field, with both values, that keeps engines from exchanging states; None = they can."""
        if (difference := _difference("", self, other, ("fingerprint", "page_size"))) is not None:
            return difference
        names = [", ".join(part.name for part in layout.parts) for layout in (self, other)]
        if names[0] != names[1]:
            return f"parts ({names[0]} here, {names[1]} there)"
        if other.rank >= other.ranks:
            return f"rank ({other.rank} of {other.ranks} there)"
        fields = ("place", "dtype", "layers", "rows", "units", "width")
        if (difference := _part_difference(self, other, fields)) is not None:
            return difference
        try:
            expected = self.at(other.rank, other.ranks)
        except IncompatibleLayouts as error:
            return error.field
        return _part_difference(expected, other, ("first", "last", "replicas"))


def _part_difference(layout: StateLayout, other: StateLayout, fields: Sequence[str]) -> str | None:
    for mine, theirs in zip(layout.parts, other.parts, strict=True):
        if (difference := _difference(f"{mine.name}.", mine, theirs, fields)) is not None:
            return difference
    return None


def _difference(
    owner: str, mine: msgspec.Struct, theirs: msgspec.Struct, fields: Sequence[str]
) -> str | None:
    """Return the name of the first of `fields` that differs, with both values; None if all are equal."""
    for field in fields:
        values = getattr(mine, field), getattr(theirs, field)
        if values[0] != values[1]:
            return f"{owner}{field} ({values[0]} here, {values[1]} there)"
    return None


def _parts(
    model: ModelConfig, state_dtype: str, dtype: str, page_size: int, kv_cache_dtype: KvCacheDtype
) -> list[TensorPart]:
    """Return the parts of the whole model, in the order in which they lie in the arena."""
    parts: list[TensorPart] = []
    layers = model.recurrent_layers

    def add(name: str, place: str, dtype: str, layers: int, rows: int, units: int, width: int) -> None:
        values = (name, place, dtype, layers, rows, units, width, 0, units, 1)
        fields = dict(zip(TensorPart.__struct_fields__, values, strict=True))
        parts.append(msgspec.convert(fields, TensorPart))

    if (mamba := model.mamba) is not None:
        window = mamba.conv_kernel - 1
        add("state", "state", state_dtype, layers, 1, mamba.heads, mamba.head_dim * mamba.state_size)
        add("window.x", "state", dtype, layers, window, mamba.heads, mamba.head_dim)
        add("window.B", "state", dtype, layers, window, mamba.groups, mamba.state_size)
        add("window.C", "state", dtype, layers, window, mamba.groups, mamba.state_size)
    elif (delta := model.gated_delta) is not None:
        window = delta.conv_kernel - 1
        add("state", "state", state_dtype, layers, 1, delta.value_heads, delta.value_dim * delta.key_dim)
        add("window.q", "state", dtype, layers, window, delta.key_heads, delta.key_dim)
        add("window.k", "state", dtype, layers, window, delta.key_heads, delta.key_dim)
        add("window.v", "state", dtype, layers, window, delta.value_heads, delta.value_dim)
    elif (short := model.short_conv) is not None:
        add("window.x", "state", dtype, layers, short.conv_kernel - 1, short.channels, 1)
    if (attention := model.attention) is not None:
        # A row of latent attention is key and value at once.
        names = ("keys", "values") if attention.latent is None else ("latent",)
        rows, layers = attention.kv_heads, model.kv_layers
        is_fp8 = kv_cache_dtype == FP8_PAGES
        for name in names:
            kind = FP8_PAGES if is_fp8 else dtype
            add(name, "page", kind, layers, page_size, rows, attention.head_dim)
        for name in names if is_fp8 else ():
            add(f"{name}_scales", "page", _EXPONENT, layers, page_size, rows, PAGE_SCALE_BYTES)
    if model.draft_head:
        add("hidden", "page", dtype, 1, 1, 1, model.hidden_size)
    return parts
