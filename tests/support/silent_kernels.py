"""Launches of Triton kernels that compute nothing: what a start or a step launches is known in no time.

The output of a layer is zero, every row chooses token 6, and no row is unsound. Everything that is no kernel
of ours is computed as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kernel_variants import Variant, variant_of
from mamba_kernels.triton_support import KernelCall

TOKEN = 6


class Launches:
    """The launches so far: every compilation that it takes, and how often each kernel ran."""

    def __init__(self) -> None:
        self.variants: dict[Variant, KernelCall] = {}
        self.times: Counter[str] = Counter()


@contextmanager
def silent_kernels() -> Iterator[Launches]:
    launches, run = Launches(), KernelCall.run

    def note(call: KernelCall) -> None:
        if not all(call.grid):
            return
        launches.times[call.kernel.__name__] += 1
        launches.variants.setdefault(variant_of(call), call)
        for name, value in (("out", 0), ("ids", TOKEN), ("finite", 1)):
            if name in call.arguments:
                call.arguments[name].fill_(value)

    KernelCall.run = note  # type: ignore[method-assign]
    try:
        yield launches
    finally:
        KernelCall.run = run  # type: ignore[method-assign]
