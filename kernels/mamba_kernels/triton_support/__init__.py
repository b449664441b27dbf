"""Support code of the Triton kernels: argument checks, launches, their configurations, the interpreter."""

from mamba_kernels.arguments import UnsupportedArgument, WrongArgument, check, check_plan
from mamba_kernels.triton_support.arithmetic import (
    LOG2_E,
    LOG2_E_CONSTANT,
    as_stored,
    block_of,
    ceil_div,
    extent_at,
    softplus,
)
from mamba_kernels.triton_support.interpreter import dot_dtype, interpreted
from mamba_kernels.triton_support.kernel_call import KernelCall
from mamba_kernels.triton_support.launch_table import Launch, launch_for
from mamba_kernels.triton_support.processors import processors, warp_groups
from mamba_kernels.triton_support.row_loop import rows_of_a_program
from mamba_kernels.triton_support.scan_arguments import check_scan, scan_arguments
from mamba_kernels.triton_support.stride_unit import stride_unit

__all__ = [
    "LOG2_E",
    "LOG2_E_CONSTANT",
    "KernelCall",
    "Launch",
    "UnsupportedArgument",
    "WrongArgument",
    "as_stored",
    "block_of",
    "ceil_div",
    "check",
    "check_plan",
    "check_scan",
    "dot_dtype",
    "extent_at",
    "interpreted",
    "launch_for",
    "processors",
    "rows_of_a_program",
    "scan_arguments",
    "softplus",
    "stride_unit",
    "warp_groups",
]
