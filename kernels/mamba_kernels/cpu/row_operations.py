"""Operations on independent rows in one call each.

They are the largest number, the sigmoid gate, writes of keys and values, and changes by adapters.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from mamba_kernels.arguments import WrongArgument, check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import ACTIVATIONS, CPU, KINDS, PackedLinear
from mamba_kernels.cpu.paged_decode import check_pages, set_pages
from mamba_kernels.cpu.structures import AdapterChanges, AdapterPart, KvWrite, SigmoidGate
from mamba_kernels.fp8_pages import Pages
from mamba_kernels.kv_write import kv_write
from mamba_kernels.slot_plan import IntArray


class RowArgmax:
    """Finds the largest number of each row of logits, and whether the row is finite, in one pass."""

    def __init__(self, library: Library) -> None:
        self._run = library.largest

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first place of each row's largest number, [r] int64, and whether it is finite, [r] bool.

        `rows` are [r, n], float32 or bfloat16, n at least one. A row is finite if it holds neither NaN nor
        positive infinity, nor negative infinity alone. The place is arbitrary in a row that holds NaN. Raises
        WrongArgument.
        """
        rows = rows.contiguous()
        check("rows", rows, (None, None), dtypes=KINDS, device=CPU)
        count, width = rows.shape
        if width == 0:
            raise WrongArgument("rows has no columns; there must be at least one")
        where, finite = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.bool)
        self._run(rows.data_ptr(), count, width, KINDS[rows.dtype], where.data_ptr(), finite.data_ptr())
        return where, finite


class RowGate:
    """Multiplies rows by the sigmoid of a gate in place, x = x * sigmoid(gate), rounded once."""

    def __init__(self, library: Library) -> None:
        self._run = library.gate

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> None:
        """Multiply x by the sigmoid of `gate` in place.

        `x` is [n, d], float32 or bfloat16, dense; `gate` is like x, rows may be strided. A row has the same
        bits alone and among others, and with any instruction set. Raises WrongArgument.
        """
        check("x", x, (None, None), dtypes=KINDS, device=CPU, dense_from=0)
        check("gate", gate, x.shape, dtypes=(x.dtype,), device=CPU, dense_from=1)
        rows, width = x.shape
        call = SigmoidGate(
            x=x.data_ptr(), gate=gate.data_ptr(), gate_stride=gate.stride(0), rows=rows, width=width,
            kind=KINDS[x.dtype],
        )  # fmt: skip
        self._run(ctypes.addressof(call))


class PageWriter:
    """Writes keys and values of new tokens into their pages, which are FP8 or of the type of the rows."""

    def __init__(self, library: Library) -> None:
        self._run = library.kv_write

    def __call__(
        self, kv: Pages, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
    ) -> None:
        """Store row t of key and value in kv[page[t], 0 | 1, offset[t]], as the reference `kv_write` does.

        Pages of FP8 get the same bytes as from the reference, with any instruction set. Raises WrongArgument.
        """
        if isinstance(kv, torch.Tensor):
            # Rows are copied, which torch does as fast.
            kv_write(kv, key, value, page, offset)
            return
        rows, heads, width = key.shape
        check_pages(kv, heads, width)
        dtypes = tuple(KINDS)
        for name, tensor in (("key", key), ("value", value)):
            check(name, tensor, (rows, heads, width), dtypes=dtypes, device=CPU, dense_from=1)
            dtypes = (key.dtype,)
        key_row = (page * kv.shape[2] + offset).to(torch.int32)
        call = KvWrite(
            key=key.data_ptr(), key_stride=key.stride(0), value=value.data_ptr(),
            value_stride=value.stride(0), key_row=key_row.data_ptr(), rows=rows, kv_heads=heads,
            head_dim=width, kind=KINDS[key.dtype],
        )  # fmt: skip
        set_pages(call, kv)
        self._run(ctypes.addressof(call))


class AdapterRows:
    """Adds the changes y += (x A^T) B of adapters to the results of one product.

    The matrices A and B of several adapters are in memory at once, each pair in a place with a number.
    """

    def __init__(
        self,
        library: Library,
        product: PackedLinear,
        plain: PackedLinear,
        first: torch.Tensor,
        seconds: Sequence[torch.Tensor],
        starts: Sequence[int],
    ) -> None:
        """Prepare the kernel's call, and let decode steps of `product` apply the adapters' changes, too.

        Args:
            library: the kernels.
            product: the product, with its activation.
            plain: the same product without its activation.
            first: matrices A, [places, parts, rank, inputs]; each place holds one adapter.
            seconds: matrices B of each part of the outputs, [places, rank, width].
            starts: the first output that each part changes.
        """
        check("first", first, (None, len(seconds), None, plain.weight.inputs), dtypes=KINDS, device=CPU)
        self.ranks = np.zeros(len(first), np.int32)
        """Rank of the adapter in each place; 0 = none, or it does not change this product."""
        self._parts = (AdapterPart * len(seconds))()
        for part, second, start in zip(self._parts, seconds, starts, strict=True):
            part.second, part.start, part.width = second.data_ptr(), start, second.shape[2]
        # Addresses do not keep objects alive.
        self._kept = (product, plain, first, tuple(seconds))
        self._changes = AdapterChanges(
            plain=plain.address,
            first=first.data_ptr(),
            parts=ctypes.addressof(self._parts),
            ranks=self.ranks.ctypes.data,
            inputs=plain.weight.inputs,
            outputs=plain.weight.outputs,
            part_count=len(seconds),
            rank=first.shape[2],
            kind=KINDS[first.dtype],
        )
        self._run = library.change_rows
        self._address = ctypes.addressof(self._changes)
        product.change_by(self._address)

    def __call__(self, x: torch.Tensor, places: IntArray, out: torch.Tensor, activation: str = "") -> None:
        """Add the changes of the first rows of `x` to the same rows of `out`, then apply the activation.

        `x` is [T, inputs], rows may be strided; `out` is [T, outputs] dense, of the type of the matrices.
        `places` are the places of the adapters of the first n rows, [n] int32; -1 = a row has none.
        `activation` is one of ACTIVATIONS. Raises WrongArgument.
        """
        first = self._kept[2]
        if x.dtype is not out.dtype or x.stride(-1) != 1:
            x = x.to(out.dtype).contiguous()
        check("x", x, (None, first.shape[3]), device=CPU, dense_from=1)
        check("out", out, (len(x), self._changes.outputs), dtypes=(first.dtype,), device=CPU, dense_from=0)
        if len(places) > len(x) or (len(places) and places.max() >= len(first)):
            raise WrongArgument(
                f"places has {len(places)} entries up to {places.max()}; x has {len(x)} rows, and there are "
                f"{len(first)} places"
            )
        # Addresses do not keep objects alive.
        integers = np.ascontiguousarray(places, np.int32)
        self._run(
            self._address, integers.ctypes.data, x.data_ptr(), x.stride(0), len(integers), out.data_ptr(),
            ACTIVATIONS[activation],
        )  # fmt: skip
