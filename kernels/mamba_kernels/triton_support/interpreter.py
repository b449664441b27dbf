"""Whether kernels run in Triton's interpreter, and what has to be different there.

`TRITON_INTERPRET=1` counts when a kernel is decorated, so it belongs to the environment of the process. Known
limits of the interpreter: sums and products of bfloat16 are wrong without a word (so every load is widened to
float32 at once), and stores narrow by truncation.
"""

import torch
import triton.language as tl
from triton import knobs


def interpreted() -> bool:
    return bool(knobs.runtime.interpret)


def dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """The type of the operands of `tl.dot` for activations of `dtype`: tensor cores take 16 bits as they are;
    float32 stays, as everything does in the interpreter."""
    if interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
