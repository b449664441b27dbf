"""LoRA adapters in the layout that PEFT documents, written by hand, and their weights merged into a model."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

UNADAPTED = ("lm_head", ".experts", "shared_expert", ".gate.", "router")


def projections(model: torch.nn.Module) -> list[str]:
    """Return the names of the modules of a transformers model that an adapter may change."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not any(part in f".{name}." for part in UNADAPTED)
    ]


def computed_projections(model: torch.nn.Module) -> list[str]:
    """Return the names of those modules that a forward pass computes, as training changes them."""
    names = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: names.append(name))
        for name in projections(model)
    ]
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return names


def untie(model: torch.nn.Module) -> torch.nn.Module:
    """Give each projection of a model a weight of its own, as adapters of layers that share one assume."""
    for name in projections(model):
        module = model.get_submodule(name)
        module.weight = torch.nn.Parameter(module.weight.detach().clone())
    return model


def write_adapter(
    directory: Path,
    shapes: dict[str, tuple[int, int]],
    *,
    seed: int = 0,
    rank: int = 4,
    size: float = 0.3,
    prefix: str = "",
    zeros: Collection[str] = (),
    **fields: Any,
) -> Path:
    """Write an adapter of modules, given by name with outputs and inputs; return its directory.

    `size`: standard deviation of the matrices; `prefix`: of the modules' names in the model that was trained;
    `zeros`: modules whose change is zero, as before the training; `fields`: of the configuration.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        key = f"base_model.model.{prefix}{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * size
        second = torch.randn(outputs, rank, generator=generator) * size
        tensors[f"{key}.lora_B.weight"] = torch.zeros_like(second) if name in zeros else second
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "some/model",
        "bias": "none", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.05, "use_dora": False,
        "use_rslora": False, "modules_to_save": None, "fan_in_fan_out": False, "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        **fields,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return directory


def shapes_of(model: torch.nn.Module, names: list[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of modules of a transformers model; of all that can be adapted by default."""
    return {name: tuple(model.get_submodule(name).weight.shape) for name in names or projections(model)}


def changes(directory: Path) -> dict[str, torch.Tensor]:
    """Return the change of each module's weight, in float64, by name; for adapters without patterns."""
    config = json.loads((directory / "adapter_config.json").read_text())
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config["use_rslora"] else rank)
    tensors = load_file(directory / "adapter_model.safetensors")
    return {
        name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): scale
        * (tensors[name.replace("lora_A", "lora_B")].double() @ first.double())
        for name, first in tensors.items()
        if ".lora_A." in name
    }


@contextlib.contextmanager
def merged(model: torch.nn.Module, directory: Path | None) -> Iterator[torch.nn.Module]:
    """Merge an adapter into the weights of a transformers model while the context is open; None = nothing."""
    before = {}
    for name, change in (changes(directory) if directory is not None else {}).items():
        weight = model.get_submodule(name).weight
        before[name] = weight.detach().clone()
        with torch.no_grad():
            weight.copy_((weight.double() + change).to(weight.dtype))
    try:
        yield model
    finally:
        for name, weight in before.items():
            with torch.no_grad():
                model.get_submodule(name).weight.copy_(weight)


def shapes_in(checkpoint: Path, *endings: str) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the modules of a checkpoint, but not of its head, whose names end so."""
    tensors = load_file(next(checkpoint.glob("*.safetensors")))
    return {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in tensors.items()
        if name.endswith(tuple(f"{ending}.weight" for ending in endings)) and not name.startswith("mtp.")
    }


def merged_checkpoint(checkpoint: Path, adapter: Path, directory: Path) -> Path:
    """Write a checkpoint of one file with an adapter merged into its weights; return its directory."""
    shutil.copytree(checkpoint, directory)
    file = next(directory.glob("*.safetensors"))
    tensors = load_file(file)
    for name, change in changes(adapter).items():
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = (weight.double() + change).to(weight.dtype)
    save_file(tensors, file, {"format": "pt"})
    return directory


def write_expert_adapter(
    directory: Path,
    model: torch.nn.Module,
    *,
    form: str,
    seed: int,
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    rank: int = 4,
    size: float = 0.3,
) -> dict[str, torch.Tensor]:
    """Write an adapter of all experts of a transformers model; return the change of each stacked parameter.

    form: "each", with modules for each expert, whose last parts are `names`, the last projection last;
    "stacked", as PEFT writes the adapter of such a parameter; "turned", the same by its first versions.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * size

    tensors, deltas = {}, {}
    parameters = [(n, p) for n, p in model.named_parameters() if p.dim() == 3 and ".experts." in n]
    for name, parameter in parameters:
        module, _, own = name.rpartition(".")
        experts, outputs, inputs = parameter.shape
        is_last = own.startswith("down")
        key = f"base_model.model.{module}"
        if form == "each":
            parts = names[-1:] if is_last else names[:-1]
            deltas[name] = torch.zeros(experts, outputs, inputs, dtype=torch.float64)
            for expert in range(experts):
                for part, rows in zip(parts, deltas[name][expert].chunk(len(parts)), strict=True):
                    first, second = random(rank, inputs), random(len(rows), rank)
                    tensors[f"{key}.{expert}.{part}.lora_A.weight"] = first
                    tensors[f"{key}.{expert}.{part}.lora_B.weight"] = second
                    rows += 2 * (second.double() @ first.double())
            continue
        sides = (outputs, inputs) if form == "turned" else (inputs, outputs)
        first, second = random(rank * experts, sides[0]), random(sides[1], rank * experts)
        wrapped = key if is_last else f"{key}.base_layer"
        tensors[f"{wrapped}.lora_A.weight"], tensors[f"{wrapped}.lora_B.weight"] = first, second
        change = 2 * torch.einsum(
            "ore,eri->eoi",
            second.double().reshape(sides[1], rank, experts),
            first.double().reshape(experts, rank, sides[0]),
        )
        deltas[name] = change.transpose(1, 2) if form == "turned" else change
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "use_rslora": False,
        "target_modules": list(names) if form == "each" else [],
        "target_parameters": None if form == "each" else ["experts.gate_up_proj", "experts.down_proj"],
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return deltas


@contextlib.contextmanager
def with_deltas(model: torch.nn.Module, deltas: dict[str, torch.Tensor]) -> Iterator[torch.nn.Module]:
    """Add changes to the parameters of a transformers model while the context is open."""
    before = {name: model.get_parameter(name).detach().clone() for name in deltas}
    with torch.no_grad():
        for name, delta in deltas.items():
            model.get_parameter(name).copy_((before[name].double() + delta).to(before[name].dtype))
    try:
        yield model
    finally:
        with torch.no_grad():
            for name, weight in before.items():
                model.get_parameter(name).copy_(weight)
