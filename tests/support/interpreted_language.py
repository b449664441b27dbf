"""Triton's interpreter without what it does again and again to no effect.

The interpreter puts its own functions into the modules of the language for a launch and takes them out again
after it. It does so anew for every call of a device function inside the launch, to modules that are prepared
already. For each operator it makes the types of operands and results, and a table of all types to look one
up; brings equal shapes to a common one; and computes whether integers overflow, for an assertion that it
leaves out, since its options say `debug=False`. Together that takes it several times as long as the
arithmetic, which stays the interpreter's own: nothing here computes.
"""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_prepare = interpreter._patch_lang
_numpy_type = interpreter._get_np_dtype
_make_block = core.block_type.__init__
_make_tensor = core.tensor.__init__
_broadcast = TritonSemantic.broadcast_impl_value
_check_overflow = TritonSemantic.binary_op_sanitize_overflow_impl
_bring_together = TritonSemantic.binary_op_type_checking_impl
_computation_type = TritonSemantic.computation_type_impl
_constant = TritonSemantic.scalar_constant
_cast = TritonSemantic.cast
_unwrap = core._unwrap_if_constexpr


@functools.cache
def _languages(function: Callable[..., Any]) -> tuple[ModuleType, ...]:
    """Return the language modules that `function` refers to: a preparation for it changes these."""
    seen = [each for each in function.__globals__.values() if inspect.ismodule(each)]
    return tuple(each for each in (tl, tl.core) if each in seen)


def _prepare_once(function: Callable[..., Any]) -> Any:
    languages = _languages(function)
    if languages and not any(tl.core.is_builtin(each.load) for each in languages):
        return interpreter._LangPatchScope()
    return _prepare(function)


_numpy_types: dict[str, Any] = {}


def _numpy_type_once(of: Any) -> Any:
    name = of.scalar.name
    if name not in _numpy_types:
        _numpy_types[name] = _numpy_type(of)
    return _numpy_types[name]


_blocks: dict[Any, dict[str, Any]] = {}


def _make_block_once(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = [each.value if type(each) is core.constexpr else each for each in getattr(shape, "values", shape)]
    block = _blocks.get(key := (id(element_ty), *sizes))
    if block is None:
        _make_block(self, element_ty, shape)
        # What is kept holds `element_ty`, so that no other type can come to have its number.
        _blocks[key] = self.__dict__.copy()
    else:
        self.__dict__.update(block)


_shapes: dict[Any, tuple[Any, Any]] = {}


def _make_tensor_once(self: Any, handle: Any, of: Any) -> None:
    shape = tuple(of.shape.values) if of.is_block() else ()
    tensor_type = _shapes.get(shape)
    if tensor_type is None:
        _make_tensor(self, handle, of)
        _shapes[shape] = self.shape, self.numel
    else:
        self.handle, self.type, self.dtype = handle, of, of.scalar
        self.shape, self.numel = tensor_type


def _broadcast_unlike(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    left, right = lhs.type, rhs.type
    if left.is_block():
        same = right.is_block() and left.shape.values == right.shape.values
    else:
        same = not right.is_block()
    return (lhs, rhs) if same else _broadcast(self, lhs, rhs)


def _bring_unlike_together(self: Any, lhs: Any, rhs: Any, *rest: Any, **options: Any) -> tuple[Any, Any]:
    """Bring operands to one type and shape; plain operands of one type, and offsets of pointers, have it."""
    if type(lhs) is core.tensor and type(rhs) is core.tensor:
        left, right = lhs.dtype, rhs.dtype
        division = options.get("div_or_mod") or rest[3:] == (True,)
        same = left is right and type(left) is core.dtype and not division
        offset = type(left) is core.pointer_type and rest[:1] == (True,) and right is core.int32
        if same or offset:
            return self.broadcast_impl_value(lhs, rhs)  # type: ignore[no-any-return]
    return _bring_together(self, lhs, rhs, *rest, **options)


_types: dict[Any, Any] = {}


def _computation_type_once(self: Any, left: Any, left_scalar: bool, right: Any, *rest: Any) -> Any:
    key = (left.name, left_scalar, right.name, *rest)
    if key not in _types:
        _types[key] = _computation_type(self, left, left_scalar, right, *rest)
    return _types[key]


_constants: dict[Any, Any] = {}


def _constant_once(self: Any, value: Any, dtype: Any) -> Any:
    """Return the tensor of a number; no operation writes to the array of an operand."""
    # Zeros of both signs are equal, and no other number has that.
    if dtype is None or (not value and type(value) is float) or value != value:
        return _constant(self, value, dtype)
    key = (type(value), value, dtype.name)
    if key not in _constants:
        _constants[key] = _constant(self, value, dtype)
    return _constants[key]


_PLAIN = frozenset((core.tensor, int, float, bool, str, type(None)))


def _unwrap_once(operand: Any) -> Any:
    kind = type(operand)
    if kind in _PLAIN:
        return operand
    return operand.value if kind is core.constexpr else _unwrap(operand)


def _cast_unlike(self: Any, operand: Any, to: Any, *rest: Any) -> Any:
    return operand if operand.type.scalar is to.scalar else _cast(self, operand, to, *rest)


def _attach(target: object, name: str, member: Any, _: object, scope: Any) -> None:
    """Put a function of the language into a module or class for a launch, without its two sorters."""
    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **options: Any) -> Any:
        options["_semantic"] = semantic
        return function(*args, **options)

    scope.set_attr(target, name, call)


def _check_overflow_if_told(self: Any, *operands: Any) -> None:
    if self.builder.options.debug:
        _check_overflow(self, *operands)


def install() -> None:
    """Prepare the whole process; a second call changes nothing."""
    interpreter._patch_lang = _prepare_once
    interpreter._patch_attr = _attach
    core._unwrap_if_constexpr = _unwrap_once
    interpreter._get_np_dtype = _numpy_type_once
    core.block_type.__init__ = _make_block_once
    core.tensor.__init__ = _make_tensor_once
    TritonSemantic.broadcast_impl_value = _broadcast_unlike
    TritonSemantic.binary_op_sanitize_overflow_impl = _check_overflow_if_told
    TritonSemantic.binary_op_type_checking_impl = _bring_unlike_together
    TritonSemantic.computation_type_impl = _computation_type_once
    TritonSemantic.scalar_constant = _constant_once
    TritonSemantic.cast = _cast_unlike
