"""How a published checkpoint stores quantized weights, as its `quantization_config` says.

`blocks` reads it for each family, and the engine asks the same rules where the files alone do not tell. Pure.
A method, a format or an option that this version would read wrongly is refused by its name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from mamba_planner.errors import ModelConfigError
from mamba_planner.families.fields import Fields

Layout = Literal["gptq", "awq", "packed", "int8", "fp8", "nvfp4", "mxfp4"]
"""Arrangement of a matrix in tensors: packed = numbers of compressed-tensors in 32-bit words."""
Held = Literal["plain", "int8", "int4", "int4_zeros"]
"""Form of a matrix in the C++ kernels: plain = numbers of the model's type."""
BLOCK = 32
"""Inputs of a block of the kernels: groups are held as integers if they are whole blocks."""
NVFP4_GROUP, MXFP4_GROUP, FP8_BLOCK = 16, 32, [128, 128]
_PREFIXES = ("", "model.", "backbone.", "model.language_model.", "language_model.model.")
"""Prefixes of the names of layers in published files and in lists of modules."""


QUANTIZATION = ("quantization_config", "compression_config")
"""Sections of a configuration that describe quantized weights; the second is the older name."""


class Unreadable(Exception):
    """The checkpoint stores weights in a way that this version does not read; the text names it."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The form in which a checkpoint stores the matrix of one module: its layout, bits and scales."""

    layout: Layout
    bits: int
    group: int = 0
    """Number of inputs that share a scale; 0 = all inputs of an output."""
    symmetric: bool = True
    multiplied: bool = True
    """Whether kernels multiply these tensors in few bits; False if one tensor has all experts."""

    @property
    def held(self) -> Held:
        """Form in which the C++ kernels hold the same numbers."""
        if not self.multiplied or self.group % BLOCK or self.layout in ("fp8", "nvfp4"):
            return "plain"
        if self.layout == "mxfp4":
            return "int8"
        if self.bits == 8:
            return "int8" if self.symmetric else "plain"
        return "int4" if self.symmetric else "int4_zeros"

    @property
    def packs_on_gpus(self) -> bool:
        """Whether the matrix stays in four bits on a GPU."""
        return self.bits == 4 and self.multiplied and (self.layout == "nvfp4" or not self.group % BLOCK)

    def packed_bytes(self, elements: int, rows: int = 0) -> int:
        """Return the bytes of a matrix that stays in four bits on a GPU.

        `elements` and `rows` are the sizes of the matrix; 0 rows = their number is not known.
        """
        groups = elements // self.group if self.group else rows
        if self.layout in ("nvfp4", "mxfp4"):
            # Scales have a byte; a factor of each row is a float32.
            return elements // 2 + groups + 4 * rows
        return elements // 2 + groups * (2 if self.symmetric else 3)

    @property
    def words(self) -> str:
        """The form in a few words."""
        groups = f" by groups of {self.group}" if self.group else ""
        return f"{self.layout} of {self.bits} bits{groups}{'' if self.symmetric else ' with zeros'}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of names of modules, and the form in which the weights of those modules are stored.

    Of several rules that match a module, the first one applies.
    """

    pattern: str
    kind: Literal["regex", "wildcard", "parts", "all"]
    """How the pattern is read: parts = whole parts of the name, one after another."""
    form: StoredForm | None
    """How the weights are stored; None = they are not quantized."""

    def names(self, module: str) -> bool:
        """Return whether the pattern matches `module`, a name without the prefix that all layers share."""
        if self.kind == "all":
            return True
        if self.kind == "parts":
            return f".{self.pattern}." in f".{module}."
        spellings = (prefix + module for prefix in _PREFIXES)
        if self.kind == "regex":
            return any(re.match(self.pattern, name) for name in spellings)
        return any(fnmatchcase(name, self.pattern) for name in spellings)


@dataclass(frozen=True, slots=True)
class Quantization:
    """The rules of a checkpoint's `quantization_config`, which tell how it stores each of its matrices."""

    method: str
    rules: tuple[Rule, ...]
    zero_offset: int = 0
    """Number that is added to stored zeros (1 in the first version of GPTQ's format)."""

    @property
    def is_fp8(self) -> bool:
        """Whether all quantized matrices are FP8.

        Engines hold them as numbers of the model's type, unless their own quantization is fp8.
        """
        return all(rule.form is None or rule.form.layout == "fp8" for rule in self.rules)

    def form_of(self, module: str) -> StoredForm | None:
        """Return the form of a module such as `layers.0.mlp.up_proj`; None = it is not quantized."""
        return next((rule.form for rule in self.rules if rule.names(module)), None)


def read_quantization(fields: Fields) -> Quantization | None:
    """Read a `quantization_config`; None if it quantizes no weights. Raises Unreadable, `WrongField`."""
    if not fields:
        return None
    match method := fields.word("quant_method", default="a method of no name"):
        case "gptq":
            return _gptq(fields)
        case "awq":
            return _awq(fields)
        case "compressed-tensors":
            return _compressed_tensors(fields)
        case "modelopt" | "modelopt_fp4" | "modelopt_mixed":
            return _modelopt(fields, method)
        case "fp8":
            return _fp8(fields)
        case "mxfp4":
            # This method quantizes experts alone, which lie in one tensor.
            form = StoredForm("mxfp4", 4, MXFP4_GROUP, multiplied=False)
            kept = _kept(fields, "modules_to_not_convert")
            return Quantization(method, (*kept, Rule("experts", "parts", form)))
        case _:
            raise Unreadable(method)


def _every(form: StoredForm) -> Rule:
    return Rule("", "all", form)


def _kept(fields: Fields, *names: str) -> tuple[Rule, ...]:
    """Return a rule for each entry of the lists `names`, whose modules are not quantized."""
    patterns = [value for name in names for value in fields.items(name) or [] if isinstance(value, str)]
    return tuple(_rule(pattern, None) for pattern in patterns)


def _rule(pattern: str, form: StoredForm | None) -> Rule:
    if pattern.startswith("re:"):
        return Rule(_checked(pattern.removeprefix("re:")), "regex", form)
    if "*" in pattern:
        return Rule(pattern, "wildcard", form)
    prefix = max((each for each in _PREFIXES if pattern.startswith(each)), key=len)
    return Rule(pattern.removeprefix(prefix).strip("."), "parts", form)


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise Unreadable(f"the pattern {pattern!r}: {error}") from error
    return pattern


def _group(value: int | None, method: str) -> int:
    """Return the number of inputs of a group; 0 for -1 and None, which mean all inputs. Raises Unreadable."""
    if value is None or value == -1:
        return 0
    if value < 1:
        raise Unreadable(f"{method} with groups of {value}")
    return value


def _gptq(fields: Fields) -> Quantization:
    format_ = fields.word("checkpoint_format", default="gptq")
    if format_ not in ("gptq", "gptq_v2") or fields.flag("is_marlin_format", default=False):
        raise Unreadable(f"gptq in the format {format_ if format_ != 'gptq' else 'marlin'}")
    whole = _gptq_form(fields, fields)
    rules: list[Rule] = []
    for pattern, changes in fields.section("dynamic").sections_by_name().items():
        form = None if pattern.startswith("-:") else _gptq_form(changes, fields)
        rules.append(Rule(_checked(re.sub(r"^[-+]:", "", pattern)), "regex", form))
    if not fields.flag("lm_head", default=False):
        rules.append(Rule("lm_head", "parts", None))
    inside = fields.items("modules_in_block_to_quantize")
    if inside:
        names = [name for part in inside for name in (part if isinstance(part, list) else [part])]
        rules += [Rule(str(name), "parts", whole) for name in names]
    else:
        rules.append(_every(whole))
    return Quantization("gptq", tuple(rules), 1 if format_ == "gptq" else 0)


def _gptq_form(fields: Fields, defaults: Fields) -> StoredForm:
    bits = fields.integer("bits", default=defaults.integer("bits", default=4))
    if bits not in (4, 8):
        raise Unreadable(f"gptq with {bits} bits")
    default = defaults.integer("group_size", default=128, minimum=-1)
    group = _group(fields.integer("group_size", default=default, minimum=-1), "gptq")
    symmetric = fields.flag("sym", default=defaults.flag("sym", default=True))
    return StoredForm("gptq", bits, group, symmetric)


def _awq(fields: Fields) -> Quantization:
    version = fields.word("version", default="gemm").lower()
    if version != "gemm":
        raise Unreadable(f"awq in the version {version}")
    if (bits := fields.integer("bits", "w_bit", default=4)) != 4:
        raise Unreadable(f"awq with {bits} bits")
    group = _group(fields.integer("group_size", "q_group_size", default=128, minimum=-1), "awq")
    form = StoredForm("awq", 4, group, symmetric=not fields.flag("zero_point", default=True))
    kept = _kept(fields, "modules_to_not_convert")
    return Quantization("awq", (*kept, Rule("lm_head", "parts", None), _every(form)))


def _compressed_tensors(fields: Fields) -> Quantization | None:
    """Read a section of compressed-tensors; None if it quantizes only the KV cache and no weights."""
    method = "compressed-tensors"
    for name in ("sparsity_config", "transform_config"):
        section = fields.section(name)
        if section and section.word("format", default="") != "dense":
            raise Unreadable(f"{method} with a {name}")
    format_ = fields.word("format", default="dense")
    rules = list(_kept(fields, "ignore"))
    groups = fields.section("config_groups").sections()
    of_weights = [group for group in groups if group.section("weights")]
    if not of_weights and fields.section("kv_cache_scheme"):
        return None
    if not groups:
        raise Unreadable(f"{method} of the format {format_} without config_groups")
    for group in groups:
        form = _compressed_form(group.section("weights"), group.word("format", default=format_))
        targets = group.items("targets") or ["Linear"]
        rules += [_every(form) if target == "Linear" else _rule(str(target), form) for target in targets]
    # Names of single modules come before those of a whole class.
    rules.sort(key=lambda rule: rule.kind == "all")
    return Quantization(method, tuple(rules))


def _compressed_form(weights: Fields, format_: str) -> StoredForm:
    bits, kind = weights.integer("num_bits", default=8), weights.word("type", default="int")
    symmetric = weights.flag("symmetric", default=True)
    group = _group(weights.integer("group_size", default=None, minimum=-1), "compressed-tensors")
    match kind, bits, format_:
        case "float", 8, _ if "pack" not in format_:
            return StoredForm("fp8", 8)
        case "float", 4, "nvfp4-pack-quantized":
            return StoredForm("nvfp4", 4, NVFP4_GROUP)
        case "float", 4, "mxfp4-pack-quantized":
            return StoredForm("mxfp4", 4, MXFP4_GROUP)
        case "int", 4 | 8, "pack-quantized":
            return StoredForm("packed", bits, group, symmetric)
        case "int", 8, "int-quantized" | "naive-quantized":
            return StoredForm("int8", bits, group, symmetric)
    raise Unreadable(f"compressed-tensors of {kind} and {bits} bits in the format {format_}")


_MODELOPT: Mapping[str, StoredForm] = {
    "FP8": StoredForm("fp8", 8),
    "FP8_PER_CHANNEL_PER_TOKEN": StoredForm("fp8", 8),
    "FP8_PB_WO": StoredForm("fp8", 8),
    "NVFP4": StoredForm("nvfp4", 4, NVFP4_GROUP),
    "W4A16_NVFP4": StoredForm("nvfp4", 4, NVFP4_GROUP),
}
"""Forms of ModelOpt's algorithms."""


def _modelopt(fields: Fields, method: str) -> Quantization | None:
    """Read a section of ModelOpt; None if it quantizes only the KV cache and no weights."""
    algorithm = fields.word("quant_algo", default="NVFP4" if method == "modelopt_fp4" else "")
    if not algorithm and fields.word("kv_cache_quant_algo", default=""):
        return None
    kept = _kept(fields, "ignore", "exclude_modules")
    if algorithm != "MIXED_PRECISION":
        return Quantization("modelopt", (*kept, _every(_modelopt_form(algorithm, fields))))
    named = fields.section("quantized_layers").sections_by_name()
    rules = [
        _rule(name, _modelopt_form(layer.word("quant_algo", default=""), layer))
        for name, layer in named.items()
    ]
    return Quantization("modelopt", (*kept, *rules))


def _modelopt_form(algorithm: str, fields: Fields) -> StoredForm:
    if (form := _MODELOPT.get(algorithm)) is None:
        raise Unreadable(f"modelopt with the algorithm {algorithm or 'of no name'}")
    group = fields.integer("group_size", default=form.group, minimum=0)
    if form.group and group != form.group:
        raise Unreadable(f"modelopt {algorithm} with groups of {group}")
    return form


def _fp8(fields: Fields) -> Quantization:
    if (kind := fields.word("fmt", default="e4m3")) != "e4m3":
        raise Unreadable(f"fp8 of the kind {kind}")
    block = fields.items("weight_block_size")
    if block not in (None, FP8_BLOCK):
        raise Unreadable(f"fp8 with blocks of {' x '.join(map(str, block or []))}")
    kept = _kept(fields, "modules_to_not_convert", "ignored_layers")
    return Quantization("fp8", (*kept, _every(StoredForm("fp8", 8))))


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """Return the forms of a checkpoint's matrices from its raw configuration.

    The result is None if the configuration says nothing of quantization, or cannot be read: the code that
    loads the model has reported that before.
    """
    nested = config.get("text_config")
    sections = (config, nested if isinstance(nested, Mapping) else {})
    values = [section.get(name) for section in sections for name in QUANTIZATION]
    value = next((value for value in values if isinstance(value, Mapping) and value), {})
    try:
        return read_quantization(Fields(value, QUANTIZATION[0]))
    except (Unreadable, ModelConfigError):
        return None
