"""Bytes that interpreted kernels load and store, counted at their loads and stores over the whole grid."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder


@dataclass
class Traffic:
    """Memory requested by the lanes whose masks are set."""

    loads: list[tuple[np.ndarray, int]] = field(default_factory=list)
    """(addresses, bytes each)"""
    stores: list[tuple[np.ndarray, int]] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """Bytes, each time that a program loads or stores them."""
        return sum(len(at) * size for at, size in self.loads + self.stores)

    @property
    def moved(self) -> int:
        """Bytes between the memory and caches that keep all they were given: each once in, once out."""
        return _distinct(self.loads) + _distinct(self.stores)

    def asked_of(self, tensor: torch.Tensor) -> int:
        """Return the requested bytes between the first and the last element of `tensor`."""
        begin = tensor.data_ptr()
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + (last + 1) * tensor.element_size()
        return sum(int(((at >= begin) & (at < end)).sum()) * size for at, size in self.loads + self.stores)


def _distinct(accesses: list[tuple[np.ndarray, int]]) -> int:
    sizes = {size for _, size in accesses}
    return sum(
        len(np.unique(np.concatenate([at for at, each in accesses if each == size]))) * size for size in sizes
    )


@contextmanager
def counted() -> Iterator[Traffic]:
    """Yield all kernels that run in the block."""
    traffic = Traffic()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def note(accesses: list[tuple[np.ndarray, int]], ptrs: Any, mask: Any) -> None:
        addresses = np.broadcast_to(ptrs.data, np.broadcast_shapes(ptrs.data.shape, mask.data.shape))
        accesses.append((addresses[mask.data.astype(bool)].ravel(), _size(ptrs)))

    def counted_load(self: Any, ptrs: Any, mask: Any, *more: Any) -> Any:
        note(traffic.loads, ptrs, mask)
        return load(self, ptrs, mask, *more)

    def counted_store(self: Any, ptrs: Any, value: Any, mask: Any, *more: Any) -> Any:
        note(traffic.stores, ptrs, mask)
        return store(self, ptrs, value, mask, *more)

    InterpreterBuilder.create_masked_load = counted_load
    InterpreterBuilder.create_masked_store = counted_store
    try:
        yield traffic
    finally:
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store


def _size(ptrs: Any) -> int:
    return int(ptrs.get_element_ty().primitive_bitwidth + 7) // 8
