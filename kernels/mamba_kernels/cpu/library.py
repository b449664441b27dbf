"""The library of this process: built if necessary, loaded, and set to an instruction set.

`MAMBASERVE_KERNELS` may name the instruction set, or leave the choice to the machine.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mamba_kernels.cpu.build import CannotBuild, ensure_built, is_built
from mamba_kernels.kernel_choice import (
    AUTO,
    INSTRUCTION_SETS,
    TORCH,
    TRITON,
    VARIABLE,
    KernelChoice,
    UnknownKernels,
)

log = logging.getLogger(__name__)


class Library:
    """Functions of the loaded library of C++ kernels, by which Python calls it.

    `name` is the instruction set that they use.
    """

    def __init__(self, path: Path, instruction_set: str = "") -> None:
        """Load the library and select an instruction set; "" = the fastest one.

        Raises CannotBuild if this CPU lacks the instruction set, and OSError for a file that is no library.
        """
        # Other Python threads can run while a function of the library does.
        self._dll = ctypes.CDLL(str(path))
        self._dll.mamba_use.restype = ctypes.c_char_p
        self._dll.mamba_use.argtypes = [ctypes.c_char_p]
        name = self._dll.mamba_use(instruction_set.encode())
        if name is None:
            raise CannotBuild(f"this CPU has no {instruction_set or 'AVX2'} instructions")
        self.name: str = name.decode()
        self.set_threads: Callable[[int], None] = self._function("mamba_set_threads", ctypes.c_int)
        self.threads: Callable[[], int] = self._function("mamba_threads", result=ctypes.c_int)
        pointer, wide = ctypes.c_void_p, ctypes.c_int64
        self.linear: Callable[..., None] = self._function(
            "mamba_linear", pointer, pointer, wide, wide, pointer
        )
        self.mamba_decode: Callable[..., None] = self._function("mamba_decode", pointer)
        self.mamba_prefill: Callable[..., None] = self._function("mamba_prefill", pointer)
        self.rms_norm: Callable[..., None] = self._function("mamba_rms_norm", pointer)
        self.paged_decode: Callable[..., None] = self._function("mamba_paged_decode", pointer)
        self.paged_extend: Callable[..., None] = self._function("mamba_paged_extend", pointer)
        self.kv_write: Callable[..., None] = self._function("mamba_kv_write", pointer)
        self.decode_step: Callable[..., None] = self._function("mamba_decode_step", pointer, pointer)
        self.draft: Callable[..., None] = self._function("mamba_draft", pointer, pointer)
        self.largest: Callable[..., None] = self._function(
            "mamba_largest", pointer, wide, wide, ctypes.c_int32, pointer, pointer
        )
        self.rope: Callable[..., None] = self._function("mamba_rope", pointer)
        self.route: Callable[..., None] = self._function(
            "mamba_route", pointer, pointer, wide, pointer, pointer
        )
        self.moe: Callable[..., None] = self._function("mamba_moe", pointer)
        self.gated_delta_update: Callable[..., None] = self._function("mamba_gated_delta_update", pointer)
        self.gated_delta_prefill: Callable[..., None] = self._function("mamba_gated_delta_prefill", pointer)
        self.delta_decode: Callable[..., None] = self._function("mamba_delta_decode", pointer)
        self.delta_prefill: Callable[..., None] = self._function("mamba_delta_prefill", pointer)
        self.short_conv_decode: Callable[..., None] = self._function("mamba_short_conv_decode", pointer)
        self.short_conv_prefill: Callable[..., None] = self._function("mamba_short_conv_prefill", pointer)
        self.gate: Callable[..., None] = self._function("mamba_gate", pointer)
        self.change_rows: Callable[..., None] = self._function(
            "mamba_change_rows", pointer, pointer, pointer, wide, wide, pointer, ctypes.c_int32
        )
        number = ctypes.c_int
        self.is_on_disk: Callable[[int], bool] = self._function(
            "mamba_is_on_disk", number, result=ctypes.c_bool
        )
        self.put_aside: Callable[[int, int, int, int], int] = self._function(
            "mamba_put_aside", number, wide, pointer, pointer, result=wide
        )
        self.begin_checked_bytes: Callable[[int], int | None] = self._function(
            "mamba_begin_checked_bytes", pointer, result=pointer
        )
        self.move_checked_bytes: Callable[[int, int], int] = self._function(
            "mamba_move_checked_bytes", pointer, number, result=wide
        )
        self.end_checked_bytes: Callable[[int], None] = self._function("mamba_end_checked_bytes", pointer)

    def _function(self, name: str, *arguments: object, result: object = None) -> Any:
        function = getattr(self._dll, name)
        function.argtypes, function.restype = arguments, result
        return function


@lru_cache(1)
def library() -> Library | None:
    """Return the library, or None where torch computes; log the reason once. Raises UnknownKernels."""
    return open_library(os.environ)


def has_to_be_built(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether `open_library` would compile first, which takes a minute."""
    try:
        if KernelChoice.of(environment).kernels not in (AUTO, *INSTRUCTION_SETS):
            return False
        return not is_built(environment)
    except (CannotBuild, UnknownKernels, OSError):
        return False


def open_library(environment: Mapping[str, str]) -> Library | None:
    """Open the library as `library` does, with this environment. Raises UnknownKernels.

    The result is None if the environment chooses torch or Triton. It is None, too, if the library cannot be
    built or loaded, unless the environment names an instruction set.
    """
    kernels = KernelChoice.of(environment).kernels
    if kernels in (TORCH, TRITON):
        return None
    try:
        return Library(ensure_built(environment), "" if kernels == AUTO else kernels)
    except (CannotBuild, OSError) as why:
        if kernels != AUTO:
            raise UnknownKernels(f"{VARIABLE}={kernels}: {why}") from why
        log.warning("the CPU kernels are not used, torch computes: %s", why)
        return None
