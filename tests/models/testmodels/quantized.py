"""Checkpoints whose matrices are quantized, with names and shapes as methods publish them.

`rewrite` quantizes a random checkpoint in place of a method's own program: it writes the numbers by the
method's documented layout, and a plain checkpoint of the float64 weights that the numbers stand for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


@dataclass(frozen=True)
class Method:
    """A form of published weights."""

    config: dict[str, Any]
    """The `quantization_config`."""
    write: Callable[[str, torch.Tensor, torch.Generator], tuple[Tensors, torch.Tensor]]
    """Function (module, weight, generator) -> (tensors, the float64 weight that they stand for)."""
    held: str
    """The class of the matrix in the C++ kernels, "" = an ordinary one."""


def packed_words(numbers: torch.Tensor, bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack numbers [n, k] along their last dimension into words [n, k * bits / 32]."""
    per_word = 32 // bits
    parts = numbers.long().unflatten(1, (-1, per_word))
    words = torch.zeros(parts.shape[:-1], dtype=torch.int64)
    for index in range(per_word):
        words |= parts[..., index if places is None else places[index]] << (bits * index)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def fit(
    weight: torch.Tensor, group: int, low: int, high: int, dtype: torch.dtype, *, centred: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers in low..high [out, in], scales and zeros [out, groups] near `weight`."""
    groups = weight.double().unflatten(1, (-1, group))
    smallest, largest = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if centred:
        scales = (groups.abs().amax(-1) / high).to(dtype)
        zeros = torch.zeros_like(scales, dtype=torch.float64)
    else:
        scales = ((largest - smallest) / (high - low)).to(dtype)
        zeros = (low - smallest / scales.double()).round().clamp(low, high)
    numbers = (groups / scales.double().unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(low, high)
    return numbers.flatten(1), scales, zeros


def stands_for(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_of: torch.Tensor
) -> torch.Tensor:
    return (numbers - zeros[:, group_of]) * scales.double()[:, group_of]


def gptq(bits: int, group: int, *, symmetric: bool, act_order: bool = False, version: int = 1) -> Method:
    """Return GPTQ: words of inputs, zeros less one in the first version, the group of each input."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        inputs, size = weight.shape[1], min(group, weight.shape[1])
        order = torch.randperm(inputs, generator=g) if act_order else torch.arange(inputs)
        group_of = torch.empty(inputs, dtype=torch.int64)
        group_of[order] = torch.arange(inputs) // size
        top = (1 << bits) - 1
        numbers, scales, zeros = fit(
            weight[:, order], size, -(top // 2) - 1 if symmetric else 0, top // 2 if symmetric else top,
            torch.float16, centred=symmetric,
        )  # fmt: skip
        if symmetric:
            numbers, zeros = numbers + top // 2 + 1, zeros + top // 2 + 1
        numbers = numbers[:, torch.argsort(order)]
        stored = zeros if version == 2 else (zeros - 1) % (top + 1)
        tensors = {
            f"{module}.qweight": packed_words(numbers, bits).t().contiguous(),
            f"{module}.qzeros": packed_words(stored.t(), bits),
            f"{module}.scales": scales.t().contiguous(),
            f"{module}.g_idx": group_of.int(),
            f"{module}.bias": torch.zeros(len(weight), dtype=torch.float16),
        }
        return tensors, stands_for(numbers, scales, zeros, group_of)

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2", "lm_head": False,
    }  # fmt: skip
    held = {(4, True): "Int4Weight", (4, False): "Int4ZerosWeight", (8, True): "QuantizedWeight"}
    return Method(config, write, held.get((bits, symmetric), ""))


def awq(group: int) -> Method:
    """Return AWQ (gemm): words of outputs, in the order of that kernel."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        numbers, scales, zeros = fit(weight, group, 0, 15, torch.float16, centred=False)
        tensors = {
            f"{module}.qweight": packed_words(numbers.t(), 4, AWQ_PLACES),
            f"{module}.qzeros": packed_words(zeros.t(), 4, AWQ_PLACES),
            f"{module}.scales": scales.t().contiguous(),
        }
        return tensors, stands_for(numbers, scales, zeros, torch.arange(weight.shape[1]) // group)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Method({**config, "modules_to_not_convert": ["lm_head"]}, write, "Int4ZerosWeight")


def compressed(format_: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "kv_cache_scheme": None,
    }


def packed(bits: int, group: int, *, symmetric: bool = True) -> Method:
    """Return packed numbers of compressed-tensors (W4A16, W8A16), plus half of their range."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        half = 1 << (bits - 1)
        numbers, scales, zeros = fit(weight, group, -half, half - 1, torch.bfloat16, centred=symmetric)
        tensors = {
            f"{module}.weight_packed": packed_words(numbers + half, bits),
            f"{module}.weight_scale": scales,
            f"{module}.weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors[f"{module}.weight_zero_point"] = packed_words((zeros + half).t(), bits).t().contiguous()
        return tensors, stands_for(numbers, scales, zeros, torch.arange(weight.shape[1]) // group)

    said = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}
    held = "QuantizedWeight" if bits == 8 else "Int4Weight" if symmetric else "Int4ZerosWeight"
    return Method(compressed("pack-quantized", said), write, held)


def of_channels() -> Method:
    """Return int8 of compressed-tensors with a scale for each output (W8A8)."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        numbers, scales, zeros = fit(weight, weight.shape[1], -128, 127, torch.bfloat16, centred=True)
        tensors = {f"{module}.weight": numbers.to(torch.int8), f"{module}.weight_scale": scales}
        return tensors, stands_for(numbers, scales, zeros, torch.zeros(weight.shape[1], dtype=torch.int64))

    said = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return Method(compressed("int-quantized", said), write, "QuantizedWeight")


def fp8_of_channels() -> Method:
    """Return FP8 of compressed-tensors with a scale for each output."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        scale = (weight.abs().amax(1, keepdim=True) / 448).float()
        numbers = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {f"{module}.weight": numbers, f"{module}.weight_scale": scale}
        return tensors, numbers.double() * scale.double()

    said = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    return Method(compressed("float-quantized", said), write, "")


def fp4_codes(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest FP4 numbers as codes of four bits."""
    nearest = (values.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    return (nearest | (values < 0).long() << 3).to(torch.uint8)


def of_codes(codes: torch.Tensor) -> torch.Tensor:
    return torch.where(codes > 7, -1.0, 1.0).double() * E2M1[(codes & 7).long()]


def in_bytes(codes: torch.Tensor) -> torch.Tensor:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def nvfp4(*, modelopt: bool) -> Method:
    """Return NVFP4 of ModelOpt (a factor) or of compressed-tensors (a divisor)."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        groups = weight.double().unflatten(1, (-1, 16))
        factor = (weight.abs().max() / (6 * 448)).float()
        scale = (groups.abs().amax(-1) / 6 / factor.double()).to(torch.float8_e4m3fn)
        whole = scale.double() * factor.double()
        codes = fp4_codes(groups / whole.clamp(min=1e-12).unsqueeze(-1)).flatten(1)
        exact = of_codes(codes) * whole.repeat_interleave(16, 1)
        if modelopt:
            tensors = {"weight": in_bytes(codes), "weight_scale_2": factor, "input_scale": torch.ones(())}
        else:
            divisor = (1 / factor)[None]
            exact = of_codes(codes) * (scale.double() / divisor.double()).repeat_interleave(16, 1)
            tensors = {"weight_packed": in_bytes(codes), "weight_global_scale": divisor}
            tensors["input_global_scale"] = torch.ones(1)
        tensors["weight_scale"] = scale
        return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, exact

    said = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    config = compressed("nvfp4-pack-quantized", said)
    if modelopt:
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return Method(config, write, "")


def mxfp4() -> Method:
    """Return MXFP4 of compressed-tensors: one power of two for 32 inputs."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        groups = weight.double().unflatten(1, (-1, 32))
        exponents = (groups.abs().amax(-1) / 6).log2().ceil().clamp(-127, 127)
        codes = fp4_codes(groups / torch.exp2(exponents).unsqueeze(-1)).flatten(1)
        tensors = {
            f"{module}.weight_packed": in_bytes(codes),
            f"{module}.weight_scale": (exponents + 127).to(torch.uint8),
        }
        return tensors, of_codes(codes) * torch.exp2(exponents).repeat_interleave(32, 1)

    said = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    return Method(compressed("mxfp4-pack-quantized", said), write, "QuantizedWeight")


METHODS: dict[str, Method] = {
    "gptq": gptq(4, 32, symmetric=True),
    "gptq-act-order": gptq(4, 32, symmetric=True, act_order=True),
    "gptq-zeros": gptq(4, 32, symmetric=False, act_order=True),
    "gptq-v2": gptq(4, 64, symmetric=False, version=2),
    "gptq-8": gptq(8, 32, symmetric=True),
    "gptq-8-zeros": gptq(8, 32, symmetric=False),
    "gptq-channel": gptq(4, 1 << 20, symmetric=True),
    "awq": awq(32),
    "w4a16": packed(4, 32),
    "w4a16-zeros": packed(4, 64, symmetric=False),
    "w8a16": packed(8, 32),
    "w8a8": of_channels(),
    "fp8": fp8_of_channels(),
    "nvfp4": nvfp4(modelopt=True),
    "nvfp4-packed": nvfp4(modelopt=False),
    "mxfp4": mxfp4(),
}


def rewrite(
    source: Path, target: Path, method: Method, *, keep: Callable[[str], bool] = lambda name: False
) -> Path:
    """Write the checkpoint `source` quantized to `target`, and to `target`/plain what its numbers stand for.

    Matrices of linear layers are quantized, except the head, routers and those that `keep` names.
    """
    (plain := target / "plain").mkdir(parents=True)
    tensors, exact = Tensors(), Tensors()
    g = torch.Generator().manual_seed(7)
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            module = name.removesuffix(".weight")
            left_alone = module.endswith(
                ("embed_tokens", "embeddings", "lm_head", ".gate", "shared_expert_gate")
            )
            if tensor.dim() != 2 or left_alone or keep(module):
                tensors[name] = exact[name] = tensor
                continue
            parts, stands = method.write(module, tensor, g)
            tensors |= parts
            exact[name] = stands
    config = json.loads((source / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config))
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": method.config}))
    for file in source.iterdir():
        if (
            file.suffix != ".safetensors"
            and file.name != "config.json"
            and not file.name.endswith("index.json")
        ):
            for folder in (target, plain):
                (folder / file.name).write_bytes(file.read_bytes())
    save_file({n: t.contiguous() for n, t in tensors.items()}, target / "model.safetensors", {"format": "pt"})
    save_file({n: t.contiguous() for n, t in exact.items()}, plain / "model.safetensors", {"format": "pt"})
    return target
