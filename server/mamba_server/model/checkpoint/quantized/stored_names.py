"""`StoredMatrix`: the tensors of one quantized matrix of a checkpoint, found by their names. Torch-free.

The planner counts matrices by the headers of files, and the engine reads them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from mamba_planner.families.quantization import (
    BLOCK,
    MXFP4_GROUP,
    NVFP4_GROUP,
    Layout,
    Quantization,
    StoredForm,
)

Entry = tuple[str, tuple[int, ...]]
"""Type of a tensor as safetensors files name it, and its shape."""
OF_CACHES = (".k_scale", ".v_scale", ".kv_scale", ".k_zero_point", ".v_zero_point")
"""Endings of tensors for keys and values, which this version gives scales of their own."""
OF_ACTIVATIONS = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".input_activation_scale",
    ".output_scale",
    ".q_scale",
    *OF_CACHES,
)
"""Endings of tensors for activations and caches, which this version does not quantize as they say."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One quantized matrix, or one of each expert."""

    layout: Layout
    tensors: Mapping[str, str] = field(hash=False)
    """Names of its tensors by their part, such as "scale"."""
    rows: int
    """First dimension of the matrix; 0 = it depends on the number of bits."""


@dataclass(frozen=True, slots=True)
class StoredSize:
    """Size and form of a quantized matrix, or of the matrices of all experts together."""

    rows: int
    inputs: int
    form: StoredForm

    @property
    def elements(self) -> int:
        return self.rows * self.inputs

    @property
    def packed_bytes(self) -> int:
        """Bytes of a matrix that stays in four bits on a GPU; 0 = it does not."""
        if not self.form.packs_on_gpus or self.inputs % BLOCK:
            return 0
        return self.form.packed_bytes(self.elements, self.rows)


def find(entries: Mapping[str, Entry]) -> dict[str, StoredMatrix]:
    """Return the quantized matrices among tensors, by the names that their weights would have."""
    matrices: dict[str, StoredMatrix] = {}
    for name, (dtype, shape) in entries.items():
        module, _, last = name.rpartition(".")

        def others(module: str = module, **parts: str) -> dict[str, str]:
            return {part: f"{module}.{end}" for part, end in parts.items() if f"{module}.{end}" in entries}

        match last, dtype:
            case "qweight", "I32" if f"{module}.scales" in entries:
                parts = others(words="qweight", zeros="qzeros", scale="scales", groups="g_idx")
                layout: Layout = "gptq" if "groups" in parts or _is_gptq(entries, module) else "awq"
                matrices[f"{module}.weight"] = StoredMatrix(
                    layout, parts, _first(entries[f"{module}.scales"][1][::-1])
                )
            case "weight_packed", "I32" if f"{module}.weight_scale" in entries:
                parts = others(
                    words="weight_packed",
                    zeros="weight_zero_point",
                    scale="weight_scale",
                    groups="weight_g_idx",
                )
                matrices[f"{module}.weight"] = StoredMatrix("packed", parts, _first(shape))
            case "weight_packed" | "weight", "U8" if f"{module}.weight_scale" in entries:
                parts = others(codes=last, scale="weight_scale")
                parts |= others(factor="weight_scale_2", divisor="weight_global_scale")
                kind = entries.get(parts.get("scale", ""), ("",))[0]
                matrices[f"{module}.weight"] = StoredMatrix(
                    "nvfp4" if kind == "F8_E4M3" else "mxfp4", parts, _first(shape)
                )
            case "weight", "I8" if f"{module}.weight_scale" in entries:
                parts = others(bytes="weight", zeros="weight_zero_point", scale="weight_scale")
                matrices[name] = StoredMatrix("int8", parts, _first(shape))
            case _, "U8" if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in entries:
                bare = name.removesuffix("_blocks")
                matrices[bare] = StoredMatrix(
                    "mxfp4", {"codes": name, "scale": f"{bare}_scales"}, _first(shape)
                )
    return matrices


def _is_gptq(entries: Mapping[str, Entry], module: str) -> bool:
    """Return whether words hold numbers of several inputs, so that each output has one scale in a group."""
    return entries[f"{module}.qweight"][1][-1:] == entries[f"{module}.scales"][1][-1:]


def _first(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 0


def shapes_of(matrices: Iterable[StoredMatrix]) -> set[str]:
    """Return the names of tensors that hold the shape of a packed matrix, which the model knows anyway."""
    return {
        name.rpartition(".")[0] + ".weight_shape" for matrix in matrices for name in matrix.tensors.values()
    }


def size_of(
    matrix: StoredMatrix, module: str, entries: Mapping[str, Entry], quantization: Quantization | None
) -> StoredSize:
    """Return the size of a matrix and its form, by the headers of its tensors and the configuration.

    `module` is the name of the module without the prefix of all layers.
    """
    shapes = {part: entries[name][1] for part, name in matrix.tensors.items() if name in entries}
    form = None if quantization is None else quantization.form_of(module)
    if form is None or form.layout != matrix.layout:
        form = StoredForm(matrix.layout, 4, symmetric=matrix.layout != "awq")
    kind = entries[matrix.tensors["scale"]][0]
    if matrix.layout in ("nvfp4", "mxfp4"):
        codes = shapes["codes"]
        form = replace(form, bits=4, group=NVFP4_GROUP if matrix.layout == "nvfp4" else MXFP4_GROUP)
        # No kernel computes with a tensor of all experts.
        return StoredSize(prod(codes[:-1]), 2 * codes[-1], replace(form, multiplied=len(codes) == 2))
    bits, numbers = _numbers(matrix.layout, shapes, form.bits)
    groups = shapes["scale"][0 if matrix.layout in ("gptq", "awq") else -1] if len(shapes["scale"]) > 1 else 1
    inputs = numbers[-1]
    group = -(-inputs // groups) if groups > 1 else 0
    if matrix.layout in ("packed", "int8"):
        form = replace(form, symmetric="zeros" not in shapes)
    # Nor with scales that are no float16 numbers.
    multiplied = len(numbers) == 2 and kind != "F32"
    form = replace(form, bits=bits, group=group, multiplied=multiplied)
    return StoredSize(prod(numbers[:-1]), inputs, form)


def _numbers(layout: Layout, shapes: Mapping[str, tuple[int, ...]], bits: int) -> tuple[int, tuple[int, ...]]:
    """Return the bits of a number and the shape of the numbers, the inputs last; `bits`: as configured."""
    if layout == "int8":
        return 8, shapes["bytes"]
    rows, columns = shapes["words"]
    if layout == "packed":
        return bits, (rows, columns * 32 // bits)
    if layout == "awq":
        return 4, (columns * 8, rows)
    if inputs := prod(shapes.get("groups", (0,))):
        bits = 32 * rows // inputs
    return bits, (columns, rows * 32 // bits)
