"""Compiled launches for a GPU of another machine: resources, loads and instructions of the artefact."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mamba_kernels.triton_support import KernelCall
from matrix_size import LARGE

CAPABILITIES = [80, 90, 100] if LARGE else [90]
"""Compute capabilities of the GPUs for which a kernel is compiled."""
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
}


@dataclass(frozen=True)
class CompiledKernel:
    ptx: str
    shared: int
    """Bytes of shared memory of a program."""
    registers: int
    stack: int
    """Bytes of local memory of a thread: spilled registers."""

    @property
    def widest_load(self) -> int:
        """Bits of the widest global load of a thread."""
        widths = [
            int(count or 1) * int(bits)
            for count, bits in re.findall(r"ld\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)", self.ptx)
        ]
        copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?, (0x[0-9a-f]+|\d+)", self.ptx)
        widths += [8 * int(size, 0) for size in copies]
        return max(widths, default=0)

    @property
    def widest_store(self) -> int:
        return max(
            (
                int(count or 1) * int(bits)
                for count, bits in re.findall(r"st\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)", self.ptx)
            ),
            default=0,
        )

    @property
    def tensor_cores(self) -> bool:
        return re.search(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", self.ptx) is not None


def compiled(call: KernelCall, capability: int) -> CompiledKernel:
    """Compile `call` for sm_`capability`, specialised as in a launch; meta tensors are allowed."""
    kernel = call.kernel
    fixed = set(getattr(kernel, "do_not_specialize", ()) or ())
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, name in enumerate(kernel.arg_names):
        value = call.constants[name] if name in call.constants else call.arguments[name]
        exact = name not in fixed and index not in fixed
        if name in call.constants or value is None or (exact and type(value) is int and value == 1):
            signature[name], constants[index,] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            multiple = value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[name], multiple = "fp32", False
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            multiple = value % 16 == 0
        if exact and multiple:
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    artefact = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=call.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(artefact.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return CompiledKernel(
        ptx=artefact.asm["ptx"],
        shared=artefact.metadata.shared,
        registers=int(re.search(r"REG:(\d+)", usage)[1]),
        stack=int(re.search(r"STACK:(\d+)", usage)[1]),
    )
