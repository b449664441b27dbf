"""`MAMBASERVE_KERNELS`: which kernels compute, and which operators are left to their references.

The value is `auto` (the default: Triton kernels on a GPU, on a CPU the C++ kernels with its fastest
instructions), `torch` (references only), `triton`, or the name of an instruction set. After `auto` or
`triton` each `,-OPERATOR` leaves one operator out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "MAMBASERVE_KERNELS"
AUTO, TORCH, TRITON = "auto", "torch", "triton"
INSTRUCTION_SETS = ("avx2", "avx512", "avx512_bf16", "amx_bf16")


class UnknownKernels(Exception):
    """The environment variable names unknown kernels or operators, or some that this machine cannot run."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The parsed value of the environment variable `VARIABLE`."""

    kernels: str
    """auto, torch, triton or an instruction set."""
    left_out: tuple[str, ...] = ()
    """Names of operators without a check: only the dispatcher knows which operators exist."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KernelChoice":
        """Read the environment variable `VARIABLE`. Raises UnknownKernels."""
        text = environment.get(VARIABLE, AUTO)
        kernels, *rest = (part.strip() for part in text.split(","))
        if kernels not in (AUTO, TORCH, TRITON, *INSTRUCTION_SETS):
            raise UnknownKernels(
                f"{VARIABLE}={text}: choose auto, torch, triton, {', '.join(INSTRUCTION_SETS)}"
            )
        if wrong := [part for part in rest if part[:1] != "-" or part == "-"]:
            raise UnknownKernels(
                f"{VARIABLE}={text}: {wrong[0] or 'nothing'} follows a comma; write -OPERATOR to leave "
                "an operator out, as in triton,-moe"
            )
        if rest and kernels not in (AUTO, TRITON):
            raise UnknownKernels(
                f"{VARIABLE}={text}: only Triton's kernels can be left out one by one; choose {kernels}, or "
                f"triton,{','.join(rest)}"
            )
        return cls(kernels, tuple(part.removeprefix("-") for part in rest))
