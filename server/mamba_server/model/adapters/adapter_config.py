"""`AdapterConfig`: the facts of PEFT's `adapter_config.json` that change what an adapter computes.

`adapter_files` reads one for each adapter. A field that changes the mathematics and is not served is refused
by its name, and so is a field that is not known.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mamba_server.model.checkpoint.errors import AdapterError

CONFIG_FILE = "adapter_config.json"
READ = (
    "r", "lora_alpha", "use_rslora", "target_modules", "target_parameters", "rank_pattern", "alpha_pattern"
)  # fmt: skip
"""Fields that `AdapterConfig` holds."""
WITHOUT_EFFECT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "task_type",
})  # fmt: skip
"""Fields that describe the training, or that repeat facts in the names of the tensors."""
SAME_BASE = (True, False, None, "gaussian", "orthogonal", "eva", "true", "false")
"""Values of `init_lora_weights` that leave the base model as it is."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Ranks, scales and targets of one adapter, as its configuration file says."""

    rank: int
    """Rank of the matrices of a module, unless `ranks` has another one."""
    alpha: float
    """Number from which the scale of a module follows, unless `alphas` has another one."""
    rslora: bool = False
    """Whether the scale is alpha divided by the root of the rank, instead of by the rank."""
    targets: str | tuple[str, ...] = ALL_LINEAR
    """Regular expression of whole names of modules, or last parts of such names."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Other ranks, by regular expressions of the last parts of names."""
    alphas: dict[str, float] = field(default_factory=dict)
    """Other alphas, by such expressions."""
    parameters: tuple[str, ...] = ()
    """Last parts of the names of stacked parameters, such as `experts.gate_up_proj`."""

    @classmethod
    def read(cls, directory: Path) -> "AdapterConfig":
        """Read the configuration of the adapter in `directory`. Raises AdapterError."""
        path = directory / CONFIG_FILE
        try:
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise AdapterError(
                f"{path}: the file cannot be read ({error.strerror}): give the directory that PEFT's "
                f"save_pretrained wrote, with {CONFIG_FILE} and adapter_model.safetensors"
            ) from error
        except ValueError as error:
            raise AdapterError(f"{path}: the file is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise AdapterError(f"{path}: the file holds no JSON object")
        try:
            return cls._of(values)
        except (ValueError, TypeError, re.error) as error:
            raise AdapterError(f"{path}: {error}") from error

    @classmethod
    def _of(cls, values: dict[str, Any]) -> "AdapterConfig":
        """Return the configuration with these values. Raises ValueError, TypeError, re.error."""
        _refuse_unserved(values)
        rank, alpha = _positive_integer("r", values.get("r")), float(values.get("lora_alpha") or 0)
        targets, parameters = _targets(values)
        ranks, alphas = values.get("rank_pattern") or {}, values.get("alpha_pattern") or {}
        for pattern in (*ranks, *alphas):
            re.compile(pattern)
        return cls(
            rank,
            alpha,
            bool(values.get("use_rslora")),
            targets,
            {pattern: _positive_integer("rank_pattern", each) for pattern, each in ranks.items()},
            {pattern: float(each) for pattern, each in alphas.items()},
            parameters,
        )

    def rank_of(self, module: str) -> int:
        """Return the rank of the adapter's matrices for the module with the name `module`."""
        return next((rank for key, rank in self.ranks.items() if _ends(key, module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor on the product of both matrices for the module with the name `module`."""
        alpha = next((each for key, each in self.alphas.items() if _ends(key, module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def names(self, module: str) -> bool:
        """Return whether the module with the name `module` is one of the targets."""
        if isinstance(self.targets, str):
            return self.targets == ALL_LINEAR or re.fullmatch(self.targets, module) is not None
        return any(_is_last_part(target, module) for target in self.targets)

    def parameters_of(self, module: str) -> list[str]:
        """Return the parameters of a module that are targets, the last projection's parameter first."""
        own = [
            name
            for stem, _, name in (parameter.rpartition(".") for parameter in self.parameters)
            if stem and _is_last_part(stem, module)
        ]
        return sorted(own, key=lambda name: "down" not in name)

    def without_module(self, modules: list[str]) -> str | None:
        """Return a target that names none of the modules; None = each names one."""
        targets = () if isinstance(self.targets, str) else self.targets
        return next(
            (each for each in targets if not any(_is_last_part(each, module) for module in modules)), None
        )


def _targets(values: dict[str, Any]) -> tuple[str | tuple[str, ...], tuple[str, ...]]:
    """Return the targets among modules, and those among parameters. Raises ValueError, re.error."""
    targets, parameters = values.get("target_modules"), values.get("target_parameters") or []
    if not isinstance(parameters, list):
        raise ValueError("target_parameters is not a list of names")
    names = tuple(map(str, parameters))
    if isinstance(targets, list) and targets:
        return tuple(map(str, targets)), names
    if not targets and names:
        return (), names
    if not isinstance(targets, str) or not targets:
        raise ValueError("target_modules names no modules: a list of names, or a regular expression")
    if targets != ALL_LINEAR:
        re.compile(targets)
    return targets, names


def _is_last_part(target: str, module: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _ends(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def _positive_integer(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} {value!r} must be an integer of at least 1")
    return value


def _refuse_unserved(values: dict[str, Any]) -> None:
    """Raise ValueError for values with which this version cannot compute."""
    if values.get("peft_type") != "LORA":
        raise ValueError(f"peft_type {values.get('peft_type')!r} is not served: adapters must be LORA")
    if values.get("bias", "none") != "none":
        raise ValueError(
            f"bias {values['bias']!r} is not served: train with bias='none', or merge the adapter into the "
            "model"
        )
    start = values.get("init_lora_weights")
    if start not in SAME_BASE:
        raise ValueError(
            f"init_lora_weights {start!r} changes the base model: convert the adapter to one of the original "
            "weights (PEFT's path_initial_model_for_weight_conversion)"
        )
    for name, value in values.items():
        if name not in READ and name not in WITHOUT_EFFECT and name != "bias" and value:
            raise ValueError(
                f"{name} is not served in this version: train without it, or merge the adapter into the model"
            )
