"""One launch of a Triton kernel as a value: run by the operator, compiled without a GPU by tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_kernels.triton_support.launch_table import Launch


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch of a Triton kernel, which `run` performs: the kernel, its grid and its arguments by name."""

    kernel: Any
    """The function that `triton.jit` returned."""
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    """Run-time arguments: tensors, None, integers, floats."""
    constants: Mapping[str, Any]
    """`tl.constexpr` arguments, of which one model has a finite set."""
    launch: Launch

    @property
    def options(self) -> dict[str, int | bool]:
        """Compiler options. Products and sums may fuse: said explicitly, since Triton's default changes."""
        return {
            "num_warps": self.launch.num_warps,
            "num_stages": self.launch.num_stages,
            "enable_fp_fusion": True,
        }

    def run(self) -> None:
        """Launch the kernel on the current stream; an empty grid launches nothing."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.constants, **self.options)
