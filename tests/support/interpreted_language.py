"""Triton's interpreter without preparing `triton.language` anew for each function that a kernel calls.

The interpreter puts its own functions into the modules of the language for a launch and takes them out again
after it. It does so anew for every call of a device function inside the launch, to modules that are prepared
already, which takes it longer than the arithmetic.
"""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_prepare = interpreter._patch_lang


@functools.cache
def _languages(function: Callable[..., Any]) -> tuple[ModuleType, ...]:
    """The modules of the language that `function` sees: those that a preparation for it changes."""
    seen = [each for each in function.__globals__.values() if inspect.ismodule(each)]
    return tuple(each for each in (tl, tl.core) if each in seen)


def _prepare_once(function: Callable[..., Any]) -> Any:
    languages = _languages(function)
    if languages and not any(tl.core.is_builtin(each.load) for each in languages):
        return interpreter._LangPatchScope()
    return _prepare(function)


def install() -> None:
    """For the whole process; a second time changes nothing."""
    interpreter._patch_lang = _prepare_once
