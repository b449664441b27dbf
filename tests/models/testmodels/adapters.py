"""LoRA adapters in the layout that PEFT documents, written by hand, and their weights merged into a model."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

UNADAPTED = ("lm_head", ".experts", "shared_expert", ".gate", "router")


def projections(model: torch.nn.Module) -> list[str]:
    """Return the names of the modules of a transformers model that an adapter may change."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not any(part in f".{name}." for part in UNADAPTED)
        if not name.endswith(".gate")
    ]


def write_adapter(
    directory: Path,
    shapes: dict[str, tuple[int, int]],
    *,
    seed: int = 0,
    rank: int = 4,
    size: float = 0.3,
    prefix: str = "",
    **fields: Any,
) -> Path:
    """Write an adapter of modules, given by name with outputs and inputs; return its directory.

    `size`: standard deviation of the matrices; `prefix`: of the modules' names in the model that was trained;
    `fields`: of the configuration.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        key = f"base_model.model.{prefix}{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * size
        tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * size
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
