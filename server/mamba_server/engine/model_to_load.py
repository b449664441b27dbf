"""Choice of what an engine loads: the model with or without its head, the type of its weights, their bytes.

Called by the boot before the plan. Reads configurations and headers of files, and never a tensor.
"""

from dataclasses import replace
from pathlib import Path

import torch

from mamba_planner.draft_heads import with_heads
from mamba_planner.engine_plan import affordable_model
from mamba_planner.memory import Device
from mamba_planner.model_config import ModelConfig
from mamba_server.engine.draft_model import device_kind
from mamba_server.host_memory import available_bytes
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.weight_files import DRAFT_HEADS, has_draft_heads, weights_size
from mamba_settings.engine_settings import EngineSettings


def with_own_head(
    config: ModelConfig, settings: EngineSettings, directory: Path, *, replaced: bool
) -> ModelConfig:
    """Return the model with its head if speculation is mtp, and as one without a head if the files lack it.

    `replaced` says whether the tensors come from elsewhere than the files, which are not read then. Raises
    UnsupportedModel if speculation is mtp and the files lack the head.
    """
    needs_files = settings.speculation == "mtp" or (settings.speculation == "auto" and config.has_head)
    has_files = not needs_files or replaced or has_draft_heads(directory)
    if settings.speculation == "mtp":
        config = with_heads(config, "mtp")
        if not has_files:
            raise UnsupportedModel(
                f"speculation mtp: the checkpoint in {directory} has no head for drafts (no tensor "
                f"{DRAFT_HEADS}*): use ngram or auto"
            )
    elif not has_files:
        # The configuration of a copy may name a head that the copy leaves out.
        config = replace(config, has_head=False)
    return config


def type_of_weights(config: ModelConfig, settings: EngineSettings) -> str:
    """Return the type of weights and activations: the setting, or that of the model."""
    return config.dtype if settings.dtype == "auto" else settings.dtype


def device_memory(settings: EngineSettings, device: torch.device) -> Device:
    """Return the memory of the device in bytes: as configured, or as the device or the machine reports it."""
    is_configured = settings.device_memory is not None
    if settings.device_memory is not None:
        size = int(settings.device_memory)
    elif device.type == "cuda":
        free, size = torch.cuda.mem_get_info(device)
        return Device("cuda", size, declared=False, free=free)
    else:
        size = available_bytes()
    return Device(device_kind(device), size, declared=is_configured)


def _weights_bytes(
    directory: Path, config: ModelConfig, dtype: str, settings: EngineSettings, device: torch.device
) -> int | None:
    """Return the bytes of the weights in memory as `dtype`, by the files' headers; None without files."""
    size = weights_size(directory, heads=config.draft_head)
    on_cpu = device.type == "cpu"
    return None if size is None else size.loaded(config, dtype, settings.quantization, on_cpu=on_cpu)


def with_affordable_head(
    config: ModelConfig,
    directory: Path,
    dtype: str,
    settings: EngineSettings,
    device: torch.device,
    memory: Device,
) -> tuple[ModelConfig, int | None]:
    """Return the model with the head that the memory has room for, and the bytes of its weights."""
    weights = _weights_bytes(directory, config, dtype, settings, device)
    affordable, _ = affordable_model(config, settings, weights, memory)
    if affordable.draft_head != config.draft_head:
        weights = _weights_bytes(directory, affordable, dtype, settings, device)
    return affordable, weights
