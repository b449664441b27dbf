"""One launch of a Triton kernel as a value: run by the operator, compiled without a GPU by the tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_kernels.triton_support.launch_table import Launch


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, its grid and its arguments by name."""

    kernel: Any
    """What `triton.jit` made."""
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    """Run-time ones: tensors, None, integers, floats."""
    constants: Mapping[str, Any]
    """`tl.constexpr` ones: a finite set for one model."""
    launch: Launch

    @property
    def options(self) -> dict[str, int | bool]:
        """For the compiler. Products and sums may fuse, said here since Triton's default changes."""
        return {
            "num_warps": self.launch.num_warps,
            "num_stages": self.launch.num_stages,
            "enable_fp_fusion": True,
        }

    def run(self) -> None:
        """Start it on the current stream; an empty grid starts nothing."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.constants, **self.options)
