"""A kernel with its reference, which computes calls that the kernel cannot take, or all calls.

A kernel is left out if `MAMBASERVE_KERNELS` says so, or if it does not compile or cannot be launched while
an engine starts. While an engine serves, no further kernel is left out: captured steps and plans rely on
the implementation that was chosen.
"""

import logging
from collections.abc import Callable
from subprocess import SubprocessError
from typing import Generic, ParamSpec, TypeVar

import torch

from mamba_kernels.arguments import UnsupportedArgument
from mamba_kernels.device_errors import ends_the_device, lacks_memory
from mamba_kernels.slot_plan import NoHostRoutes

log = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", covariant=True)

ASKED, FAILED = "asked", "failed"
"""Reasons why a kernel is left out: the user's request, or a failure at the start."""
MAX_ERROR_CHARACTERS = 600
"""Characters of an error in the log; compiler errors contain pages of source."""


class KernelLeftOut(Exception):
    """Raised when a kernel fails in a trial. Its reference computes from now on; repeat the trial."""


class KernelOrReference(Generic[Arguments, Result]):
    """Calls a kernel, and its reference in torch for the calls that the kernel cannot take.

    A kernel that fails in a trial is left out from then on.
    """

    def __init__(
        self,
        name: str,
        kernel: Callable[Arguments, Result],
        reference: Callable[Arguments, Result],
        *,
        backend: str = "Triton",
        same_plans: bool = True,
    ) -> None:
        """Join a kernel with its reference.

        Args:
            name: name of the operator.
            kernel: the kernel, with the arguments of the reference.
            reference: the reference in torch.
            backend: name of the kernel's backend in log messages.
            same_plans: whether the reference can follow a plan that was built for the kernel.
        """
        self.name, self.kernel, self._reference, self._backend = name, kernel, reference, backend
        self._same_plans = same_plans
        self._warned = False
        self.left_out = ""
        """Reason why the reference computes all calls, ASKED or FAILED; empty = the kernel computes."""
        self.on_trial = False
        """Whether a kernel that fails is left out; otherwise its error is raised from the step."""

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if self.left_out:
            return self._reference(*arguments, **named)
        try:
            return self.kernel(*arguments, **named)
        except UnsupportedArgument as why:
            if not self._same_plans:
                self._give_up(why)
                raise
            if not self._warned:
                self._warned = True
                log.warning(
                    "the %s kernel %s cannot take a call, torch computes: %s", self._backend, self.name, why
                )
            return self._reference(*arguments, **named)
        except Exception as why:
            if _is_of_a_kernel(why):
                self._give_up(why)
            raise

    def leave_out(self) -> None:
        """Let the reference compute all calls, as the user requested."""
        self.left_out = ASKED

    def _give_up(self, why: Exception) -> None:
        if self.on_trial:
            self.left_out = FAILED
            log.warning(
                "the %s kernel %s is left out, torch computes: %s", self._backend, self.name, _shorten(why)
            )
            raise KernelLeftOut(self.name) from why


def computes_by_reference(operator: object) -> bool:
    """Return whether `operator` is a reference, or a kernel that is left out."""
    return not isinstance(operator, KernelOrReference) or bool(operator.left_out)


def _is_of_a_kernel(error: Exception) -> bool:
    """Return whether `error` says that a kernel does not compile or cannot be launched.

    Errors of the device, of its memory, of a plan, and of a capture, in which less is permitted, do not
    count.
    """
    if isinstance(error, NoHostRoutes) or lacks_memory(error) or ends_the_device(error) or _capturing():
        return False
    # Compilers and linkers are programs and files; Triton's own errors have one base.
    return isinstance(error, RuntimeError | OSError | ImportError | SubprocessError) or _is_tritons(error)


def _is_tritons(error: Exception) -> bool:
    try:
        from triton.errors import TritonError
    except ImportError:
        return False
    return isinstance(error, TritonError)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _shorten(error: Exception) -> str:
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if len(words) <= MAX_ERROR_CHARACTERS:
        return words
    return f"{words[: MAX_ERROR_CHARACTERS // 2]} ... {words[-MAX_ERROR_CHARACTERS // 2 :]}"
