"""`MAMBASERVE_KERNELS`: which kernels compute, and which operators are left to their references.

`auto` (the default: Triton's on a GPU, on a CPU the C++ ones with its quickest instructions), `torch` (no
kernels of ours), `triton`, or the name of an instruction set. Behind `auto` or `triton` each `,-OPERATOR`
leaves one out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "MAMBASERVE_KERNELS"
AUTO, TORCH, TRITON = "auto", "torch", "triton"
INSTRUCTION_SETS = ("avx2", "avx512", "avx512_bf16", "amx_bf16")


class UnknownKernels(Exception):
    """The variable names no kernels or operators, or some that this machine cannot run."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What the variable says."""

    kernels: str
    """auto, torch, triton or an instruction set."""
    left_out: tuple[str, ...] = ()
    """Names of operators, which are known to the dispatcher alone."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KernelChoice":
        """Read the variable. Raises UnknownKernels."""
        text = environment.get(VARIABLE, AUTO)
        kernels, *rest = (part.strip() for part in text.split(","))
        if kernels not in (AUTO, TORCH, TRITON, *INSTRUCTION_SETS):
            raise UnknownKernels(
                f"{VARIABLE}={text}: choose auto, torch, triton, {', '.join(INSTRUCTION_SETS)}"
            )
        if wrong := [part for part in rest if part[:1] != "-" or part == "-"]:
            raise UnknownKernels(
                f"{VARIABLE}={text}: {wrong[0] or 'nothing'} stands behind a comma; write -OPERATOR to leave "
                "one out, as in triton,-moe"
            )
        if rest and kernels not in (AUTO, TRITON):
            raise UnknownKernels(
                f"{VARIABLE}={text}: only Triton's kernels can be left out one by one; choose {kernels}, or "
                f"triton,{','.join(rest)}"
            )
        return cls(kernels, tuple(part.removeprefix("-") for part in rest))
