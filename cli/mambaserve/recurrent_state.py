"""`RecurrentState`: the state of all layers after a prefix, as arrays that can be read and changed.

A state is what a session file holds: the recurrent states and the windows of the convolutions after `depth`
tokens, and the attention pages of these tokens.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np

from mamba_api.choices import KvCacheDtype
from mamba_planner.draft_heads import forms_of
from mamba_planner.model_config import ModelConfig
from mamba_prefix.adapter_salt import with_other_salt
from mamba_tier.bundle_shape import BundleShape
from mamba_tier.errors import TierError
from mamba_tier.session_file import SessionNotes, is_whole, read_session, write_session
from mamba_transfer.layout import StateLayout, TensorPart
from mambaserve.errors import StateMismatch

_DTYPES = ("float32", "bfloat16", "float16")
_Float32 = np.dtype[np.float32]
Array = np.ndarray[Any, _Float32]
"""Array of 32-bit floating-point numbers, whatever the type in the engine's memory."""


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The state of a model after `depth` tokens, to be read, changed and loaded again.

    Changes make a new state.
    """

    layout: StateLayout
    shape: tuple[int, ...]
    """Shape of the recurrent state of one layer: (heads, head_dim, state_size), or (value_heads,
    value_dim, key_dim)."""
    notes: SessionNotes
    state: bytes
    """Bytes of the recurrent states of all layers, then of the windows of all layers."""
    pages: bytes
    """Bytes of the attention pages."""

    @classmethod
    def read(cls, file: Path | str, config: ModelConfig) -> Self:
        """Read a session file of the model with this configuration.

        Raises `StateMismatch` for a file of another model, or a damaged one.
        """
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            session = read_session(descriptor)
            if not is_whole(descriptor, session):
                raise StateMismatch(f"{file}: the state in the file is damaged: its checksums differ")
            header = session.header
            payload = os.pread(descriptor, header.payload_bytes, session.start)
        except TierError as error:
            raise StateMismatch(f"{file}: {error}") from error
        finally:
            os.close(descriptor)
        layouts = (
            StateLayout.of(
                form, fingerprint=header.fingerprint, state_dtype=state_dtype, dtype=dtype,
                page_size=header.page_size, kv_cache_dtype=kv_cache_dtype,
            )
            for form in forms_of(config)
            for state_dtype in _DTYPES for dtype in _DTYPES for kv_cache_dtype in get_args(KvCacheDtype)
        )  # fmt: skip
        layout = next((each for each in layouts if each.digest == header.layout), None)
        if layout is None:
            raise StateMismatch(f"{file}: the state is of another model")
        end = header.state_bytes
        return cls(layout, _shape(config), session.notes, payload[:end], payload[end:])

    def write(self, file: Path | str) -> None:
        """Write a session file, which `mambaserve session load` installs and `LLM.load_state` reads."""
        layout = self.layout
        shape = BundleShape(
            layout.fingerprint, layout.digest, layout.page_size, layout.state_bytes, layout.page_bytes
        )
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            pages = [memoryview(self.pages)] if self.pages else []
            write_session(descriptor, shape, self.notes, [memoryview(self.state)], pages)
        finally:
            os.close(descriptor)

    @property
    def depth(self) -> int:
        """Number of tokens that the state holds."""
        return len(self.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """Tokens that the state holds: all tokens that the model read before it was recorded."""
        return [int(token) for token in self.notes.tokens]

    @property
    def layers(self) -> int:
        """Number of recurrent layers. Indices of layers count these alone, from 0."""
        return self._part("state").layers

    def recurrent(self, layer: int) -> Array:
        """Return a copy of the recurrent state of a layer, an array of shape `shape`."""
        start, part = self._place("state", layer)
        length = part.rows * part.row_bytes
        return _floats(self.state[start : start + length], part.dtype).reshape(self.shape)

    def window(self, layer: int) -> Array:
        """Return a copy of the window of a layer's convolution, [inputs, channels], oldest input first."""
        start, part = self._place("window", layer)
        row = sum(each.row_bytes for each in self._parts("window"))
        return _floats(self.state[start : start + part.rows * row], part.dtype).reshape(part.rows, -1)

    def with_recurrent(self, layer: int, values: Array) -> Self:
        """Return the state with other numbers in a layer, rounded to the type of the engine's memory.

        Raises `StateMismatch` for an array of another shape.
        """
        if values.shape != self.shape:
            raise StateMismatch(f"layer {layer} has the shape {self.shape}, and the array {values.shape}")
        start, part = self._place("state", layer)
        return self._with_bytes(start, _raw(values, part.dtype))

    def with_window(self, layer: int, values: Array) -> Self:
        """Return the state with other numbers in the window of a layer. Raises `StateMismatch`."""
        start, part = self._place("window", layer)
        if values.shape != (expected := self.window(layer).shape):
            raise StateMismatch(f"the window of layer {layer} has the shape {expected}, not {values.shape}")
        return self._with_bytes(start, _raw(values, part.dtype))

    def grafted(self, other: "RecurrentState", layers: list[int] | range) -> "RecurrentState":
        """Return this state with the recurrent states and windows of `layers` from another state.

        Raises `StateMismatch` for a state of another model or of other types.
        """
        self._check(other)
        result: RecurrentState = self
        for layer in layers:
            result = result.with_recurrent(layer, other.recurrent(layer))
            result = result.with_window(layer, other.window(layer))
        return result

    def distances(self, other: "RecurrentState") -> list[float]:
        """Return by layer the norm of the difference over the norm of this state. Raises `StateMismatch`."""
        self._check(other)
        return [
            float(
                np.linalg.norm(self.recurrent(layer) - other.recurrent(layer))
                / (np.linalg.norm(self.recurrent(layer)) or 1.0)
            )
            for layer in range(self.layers)
        ]

    def salted(self, salt: str) -> Self:
        """Return the state under another cache salt: requests with this `cache_salt` alone resume from it."""
        notes = self.notes
        salt = with_other_salt(notes.salt, salt)
        values = (notes.model, notes.saved_at, salt, notes.token_ids, notes.conversation)
        return replace(self, notes=SessionNotes(*values))

    def _check(self, other: "RecurrentState") -> None:
        if (field := self.layout.refusal(other.layout)) is not None:
            raise StateMismatch(f"the states are of different models or types: {field}")

    def _parts(self, block: str) -> list[TensorPart]:
        return [part for part in self.layout.parts if part.place == "state" and part.block == block]

    def _part(self, block: str) -> TensorPart:
        return self._parts(block)[0]

    def _place(self, block: str, layer: int) -> tuple[int, TensorPart]:
        """Return the offset of a layer's block in bytes, and the block's first part. Raises IndexError."""
        part = self._part(block)
        if not 0 <= layer < part.layers:
            raise IndexError(f"layer {layer}: the model has {part.layers} recurrent layers, from 0")
        start = 0
        for each in self.layout.parts:
            if each.place != "state" or each.block == block:
                break
            start += each.layers * each.rows * each.row_bytes
        return start + layer * sum(each.rows * each.row_bytes for each in self._parts(block)), part

    def _with_bytes(self, start: int, raw: bytes) -> Self:
        return replace(self, state=self.state[:start] + raw + self.state[start + len(raw) :])


def _shape(config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of the recurrent state of one layer. Raises `StateMismatch` if there is none."""
    if (mamba := config.mamba) is not None:
        return mamba.heads, mamba.head_dim, mamba.state_size
    if (delta := config.gated_delta) is not None:
        return delta.value_heads, delta.value_dim, delta.key_dim
    raise StateMismatch("the model has no recurrent layers of a kind whose state can be read")


def _floats(raw: bytes, dtype: str) -> Array:
    """Return the numbers of type `dtype` in `raw` as a writable float32 array."""
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, {"float32": "<f4", "float16": "<f2"}[dtype]).astype(np.float32)


def _raw(values: Array, dtype: str) -> bytes:
    """Return the numbers as bytes of the type, rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2").tobytes()
