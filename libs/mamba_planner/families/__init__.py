"""Adapters from Hugging Face configurations to `ModelConfig`, one file per family of models."""

from mamba_planner.errors import ModelConfigError
from mamba_planner.families.registry import load_model_config, model_config_from_hf, read_config

__all__ = ["ModelConfigError", "load_model_config", "model_config_from_hf", "read_config"]
