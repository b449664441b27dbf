"""The structures that Python fills are those that the C++ kernels read, field by field."""

import ctypes
import os
import subprocess
from collections.abc import Sequence

import pytest

from mamba_kernels.cpu import structures
from mamba_kernels.cpu.build import SOURCES, CannotBuild, find_compiler

TYPES: dict[type, str] = {ctypes.c_float: "float", ctypes.c_int32: "int32_t", ctypes.c_int64: "int64_t"}
CONSTANTS = {
    "kFloat32": "FLOAT32", "kBfloat16": "BFLOAT16", "kFloat16": "FLOAT16", "kWhole": "WHOLE", "kInt8": "INT8",
    "kInt4": "INT4", "kInt4Zeros": "INT4_ZEROS",
    "kIdentity": "IDENTITY", "kRelu": "RELU", "kReluSquared": "RELU_SQUARED", "kSilu": "SILU",
    "kMambaBlock": "MAMBA_BLOCK", "kAttentionBlock": "ATTENTION_BLOCK", "kMlpBlock": "MLP_BLOCK",
    "kParallelBlock": "PARALLEL_BLOCK", "kMoeBlock": "MOE_BLOCK", "kDeltaBlock": "DELTA_BLOCK",
    "kShortConvBlock": "SHORT_CONV_BLOCK",
}  # fmt: skip
STRUCTURES = [
    kind
    for kind in vars(structures).values()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
]


def assertions(kind: type[ctypes.Structure], name: str) -> str:
    """Write what the compiler has to find true of the C++ structure `name`."""
    fields: Sequence[tuple[str, type]] = kind._fields_  # type: ignore[assignment]
    lines = [f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});"]
    for field, field_type in fields:
        member = f"decltype({name}::{field})"
        place = getattr(kind, field)
        lines.append(f"static_assert(offsetof({name}, {field}) == {place.offset});")
        lines.append(f"static_assert(sizeof({member}) == {place.size});")
        if field_type is ctypes.c_void_p:
            lines.append(f"static_assert(std::is_pointer_v<{member}>);")
        else:
            expected = TYPES.get(field_type, field_type.__name__)
            lines.append(f"static_assert(std::is_same_v<{member}, {expected}>);")
    # A structured binding compiles only with as many names as there are members.
    names = ", ".join(f"field{number}" for number in range(len(fields)))
    lines.append(f"[[maybe_unused]] void bind({name}& x) {{ [[maybe_unused]] auto& [{names}] = x; }}")
    return "\n".join(lines)


def compiles(text: str) -> bool:
    """Return whether the compiler accepts `text` after the kernels' interface."""
    try:
        compiler = find_compiler(os.environ)
    except CannotBuild as why:
        pytest.skip(str(why))
    source = f'#include <cstddef>\n#include <type_traits>\n#include "interface.h"\n{text}\n'
    command = [compiler, "-std=c++17", "-fsyntax-only", "-I", str(SOURCES), "-x", "c++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stderr)
    return result.returncode == 0


def test_every_structure_has_the_fields_of_the_kernels_interface() -> None:
    assert {"LinearLayer", "DecodeStep"} <= {kind.__name__ for kind in STRUCTURES}
    assert compiles("\n".join(assertions(kind, kind.__name__) for kind in STRUCTURES))


def test_every_constant_has_the_value_of_the_kernels_interface() -> None:
    lines = [f"static_assert({name} == {getattr(structures, ours)});" for name, ours in CONSTANTS.items()]
    assert compiles("\n".join(lines))


class Swapped(ctypes.Structure):
    _fields_ = tuple(structures.SigmoidGate._fields_[place] for place in (0, 1, 2, 4, 3, 5))


class WithoutTheLast(ctypes.Structure):
    _fields_ = structures.RmsNorm._fields_[:-1]


class OfAnotherType(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int32 if kind is ctypes.c_float else kind)
        for name, kind in structures.Router._fields_
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(Swapped, "SigmoidGate"), (WithoutTheLast, "RmsNorm"), (OfAnotherType, "Router")]
)
def test_a_structure_that_differs_is_noticed(kind: type[ctypes.Structure], name: str) -> None:
    assert not compiles(assertions(kind, name))
