"""Detection of Triton's interpreter, and the types that have to differ in it.

Triton reads `TRITON_INTERPRET=1` when a kernel is decorated, so it belongs in the environment of the process.
Known limits of the interpreter: sums and products of bfloat16 are silently wrong (so every load is widened
to float32 at once), and stores convert to narrower types by truncation.
"""

import torch
import triton.language as tl
from triton import knobs


def interpreted() -> bool:
    return bool(knobs.runtime.interpret)


def dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """Return the type of the operands of `tl.dot` for activations of `dtype`.

    Tensor cores take 16-bit types unchanged. float32 stays float32, and the interpreter uses only float32.
    """
    if interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
