"""`AdapterWeights`: the matrices of one adapter, from the files that PEFT's `save_pretrained` writes.

The engine reads one at its start, or in a thread while it serves, and the bank copies it to the device.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from mamba_server.model.adapters.adapter_config import CONFIG_FILE, AdapterConfig
from mamba_server.model.checkpoint.errors import AdapterError
from mamba_server.model.checkpoint.weight_files import is_multimodal, text_name
from mamba_server.model.checkpoint.weights import STORED, short_name

WEIGHTS_FILE = "adapter_model.safetensors"
OLD_WEIGHTS_FILE = "adapter_model.bin"
PEFT_PREFIX = "base_model.model."
FIRST, SECOND = ".lora_A.weight", ".lora_B.weight"
"""Endings of the names of the two matrices of a module."""
WRAPPED = ".base_layer"
"""Ending of the name of a module that PEFT has wrapped once more."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LowRank:
    """How an adapter changes one module: the module's outputs grow by second @ first @ x."""

    first: torch.Tensor
    """[rank, inputs], float32"""
    second: torch.Tensor
    """[outputs, rank], float32; the adapter's scale is a factor of it."""


@dataclass(frozen=True, slots=True)
class StackedLowRank:
    """How an adapter changes a parameter that holds the matrices of all experts, as PEFT stores it."""

    first: torch.Tensor
    """[experts * rank, a], float32"""
    second: torch.Tensor
    """[b, rank * experts], float32; the adapter's scale is a factor of it."""
    rank: int

    def split(self, name: str, experts: int, shape: tuple[int, int]) -> list[LowRank]:
        """Return the changes of the experts, of outputs and inputs `shape`. Raises AdapterError.

        PEFT has had two orders: `a` was the outputs of an expert at first, and its inputs later.
        """
        outputs, inputs = shape
        a, b = self.first.shape[1], len(self.second)
        if len(self.first) != experts * self.rank or self.second.shape[1] != experts * self.rank:
            raise AdapterError(
                f"the adapter's change of {name} is for {len(self.first) // self.rank} experts, and the "
                f"model has {experts}: it was trained for another model"
            )
        first = self.first.view(experts, self.rank, a)
        second = self.second.view(b, self.rank, experts).permute(2, 0, 1)
        if (b, a) == (outputs, inputs) == (inputs, outputs):
            raise AdapterError(
                f"the adapter's change of {name} is square, so that its files do not say which side is that "
                "of the outputs: merge the adapter into the model"
            )
        if (b, a) == (inputs, outputs):
            return [LowRank(two.t(), one.t()) for one, two in zip(first, second, strict=True)]
        return [LowRank(one, two) for one, two in zip(first, second, strict=True)]


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """The changes of all modules by one adapter, on the host."""

    fingerprint: str
    """32 hexadecimal digits that identify the bytes of its files."""
    rank: int
    """Largest rank of a module."""
    modules: dict[str, LowRank]
    """Changes by name of the module, without the prefixes of PEFT and of the model. Changes that are zero are
    left out: PEFT writes them for modules that the training never computed."""
    stacked: dict[str, StackedLowRank] = field(default_factory=dict)
    """Changes of parameters that hold the matrices of all experts, by such names of the parameters."""

    @classmethod
    def read(cls, directory: Path) -> "AdapterWeights":
        """Read the adapter in `directory`. Raises AdapterError, whose message names file and tensor."""
        config = AdapterConfig.read(directory)
        path = directory / WEIGHTS_FILE
        if not path.is_file():
            why = "is missing"
            if (directory / OLD_WEIGHTS_FILE).is_file():
                why += f", and {OLD_WEIGHTS_FILE} can run code: save it with safe_serialization=True"
            raise AdapterError(f"{path}: the file {why}")
        try:
            fingerprint = _digest(directory / CONFIG_FILE, path)
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors = {name: _tensor(path, name, file) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{path}: the file cannot be read: {error}") from error
        stacked = _stacked(path, config, tensors)
        others = {name: each for name, each in tensors.items() if _module_of(name) not in stacked.names}
        modules = _modules(path, config, others)
        if not modules and not stacked.changes:
            raise AdapterError(f"{path}: the file contains no tensor")
        ranks = [len(change.first) for change in modules.values()]
        ranks += [change.rank for change in stacked.changes.values()]
        changed = {name: change for name, change in modules.items() if bool(change.second.any())}
        return cls(fingerprint, max(ranks), changed, stacked.changes)


@dataclass(frozen=True, slots=True)
class _Stacked:
    """Changes of stacked parameters, and the names in the file of the modules that hold these."""

    changes: dict[str, StackedLowRank]
    names: frozenset[str]


def _module_of(name: str) -> str:
    """Return the module to which a tensor of the file belongs, as the file writes it."""
    return name.removeprefix(PEFT_PREFIX).removesuffix(FIRST).removesuffix(SECOND)


def _stacked(path: Path, config: AdapterConfig, tensors: dict[str, torch.Tensor]) -> _Stacked:
    """Return the changes of stacked parameters. Raises AdapterError.

    PEFT wraps a module once for each of its parameters, in the order in which the module has them, and the
    last wrapper is the outermost: `experts.base_layer.lora_A` belongs to the first projection.
    """
    changes: dict[str, StackedLowRank] = {}
    names: set[str] = set()
    modules = dict.fromkeys(_module_of(name) for name in tensors)
    multimodal = is_multimodal([name.removeprefix(PEFT_PREFIX) for name in tensors])
    for written in modules:
        module, depth = written, 0
        while module.endswith(WRAPPED):
            module, depth = module.removesuffix(WRAPPED), depth + 1
        own = config.parameters_of(module)
        if not own:
            continue
        if depth >= len(own):
            raise AdapterError(f"{path}: {written} is wrapped more often than target_parameters says")
        parameter = f"{module}.{own[depth]}"
        rank = config.rank_of(parameter)
        key = f"{PEFT_PREFIX}{written}"
        first, second = tensors.get(key + FIRST), tensors.get(key + SECOND)
        if first is None or second is None or first.dim() != 2 or second.dim() != 2 or len(first) % rank:
            raise AdapterError(
                f"{path}: {written} needs matrices lora_A and lora_B of rank {rank} for each expert"
            )
        text = text_name(parameter) if multimodal else parameter
        if text is None:
            raise AdapterError(f"{path}: {parameter} is of a part that is not served: only text models are")
        changes[short_name(text)] = StackedLowRank(first, second * config.scale_of(parameter), rank)
        names.add(written)
    return _Stacked(changes, frozenset(names))


def _tensor(path: Path, name: str, file: "safe_open") -> torch.Tensor:
    kind = file.get_slice(name).get_dtype()
    if kind not in STORED:
        raise AdapterError(f"{path}: tensor {name} is stored as {kind}: served are {', '.join(STORED)}")
    tensor: torch.Tensor = file.get_tensor(name).to(torch.float32)
    if not bool(tensor.isfinite().all()):
        raise AdapterError(f"{path}: tensor {name} holds numbers that are not finite")
    return tensor


def _modules(path: Path, config: AdapterConfig, tensors: dict[str, torch.Tensor]) -> dict[str, LowRank]:
    """Pair the tensors by module, after comparing them with the configuration. Raises AdapterError."""
    whole = [name.removeprefix(PEFT_PREFIX) for name in tensors]
    multimodal = is_multimodal(whole)
    modules: dict[str, LowRank] = {}
    for name, first in tensors.items():
        if name.endswith(SECOND) and name.removesuffix(SECOND) + FIRST in tensors:
            continue
        if not name.startswith(PEFT_PREFIX) or not name.endswith(FIRST):
            raise AdapterError(
                f"{path}: tensor {name} is not served: an adapter may hold the matrices lora_A and lora_B of "
                "projections, and nothing else"
            )
        module = name.removeprefix(PEFT_PREFIX).removesuffix(FIRST)
        second = tensors.get(name.removesuffix(FIRST) + SECOND)
        change = _change(path, config, module, first, second)
        text = text_name(module) if multimodal else module
        if text is None:
            raise AdapterError(f"{path}: tensor {name} is of a part that is not served: only text models are")
        modules[short_name(text)] = change
    if (target := config.without_module([name.removesuffix(FIRST) for name in whole])) is not None:
        raise AdapterError(f"{path}: the file has no tensor of the target module {target!r}")
    return modules


def _change(
    path: Path, config: AdapterConfig, module: str, first: torch.Tensor, second: torch.Tensor | None
) -> LowRank:
    """Return the change of a module, after comparing it with the configuration. Raises AdapterError."""
    if second is None:
        raise AdapterError(f"{path}: module {module} has no {SECOND[1:]}; save the adapter again")
    if not config.names(module):
        raise AdapterError(f"{path}: the file changes {module}, which target_modules does not name")
    rank = config.rank_of(module)
    if first.dim() != 2 or second.dim() != 2 or len(first) != rank or second.shape[1] != rank:
        raise AdapterError(
            f"{path}: the matrices of {module} have the shapes {list(first.shape)} and {list(second.shape)}, "
            f"and by the configuration their rank is {rank}"
        )
    return LowRank(first, second * config.scale_of(module))


def _digest(*paths: Path) -> str:
    digest = blake2b(digest_size=16)
    for path in paths:
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()
