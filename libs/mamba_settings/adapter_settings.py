"""Settings of LoRA adapters: which are loaded at the start, and how many and how large they may be.

The engine loads them and the planner counts their places; names and paths are checked here alone.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
"""Names of adapters, which requests give as `model`."""


def check_name(name: str) -> str:
    """Return the name of an adapter. Raises ValueError for a name that requests could not give."""
    if NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is no name of an adapter: use up to 255 letters, digits and . _ / : @ -, beginning "
            "with a letter or a digit"
        )
    return name


def _split(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


def _adapters(values: tuple[str, ...]) -> tuple[str, ...]:
    names = set()
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not path:
            raise ValueError(
                f"{value!r} is no adapter: write NAME=PATH or NAME=URI, such as sql=/adapters/sql or "
                "sql=hf://OWNER/NAME"
            )
        if check_name(name) in names:
            raise ValueError(f"the adapter {name} is named twice: give each adapter a name of its own")
        names.add(name)
    return values


Adapters = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_adapters)]


class AdapterSettings(BaseModel):
    """LoRA adapters."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    lora: Adapters = ()
    """Adapters beside the model, as NAME=PATH of the directory that PEFT wrote, or NAME=URI of one that is
    downloaded as a model is; requests choose one by `model`. In the environment, separate them with spaces.
    Others are loaded through the admin port."""
    max_loras: int | None = Field(None, ge=0, le=256)
    """Number of adapters that can be loaded at once, for which memory is reserved; default: one more than
    `lora` names, so that each can be replaced while it serves; 0 without `lora`."""
    max_lora_rank: int = Field(16, ge=1, le=512)
    """Largest rank of an adapter, for which memory is reserved."""
    max_lora_expert_rank: int = Field(0, ge=0, le=512)
    """Largest rank of an adapter's changes of experts, for which memory is reserved for every expert; 0 =
    adapters that change experts are refused."""

    @property
    def lora_places(self) -> int:
        """Number of adapters that memory is reserved for."""
        if self.max_loras is not None:
            return self.max_loras
        return len(self.lora) + 1 if self.lora else 0

    @property
    def lora_paths(self) -> dict[str, str]:
        """Paths or URIs of the adapters of the start, by name."""
        return paths_of(self.lora)


def adapter_text(name: str, source: str) -> str:
    """Return the text by which the setting `lora` names an adapter."""
    return f"{name}={source}"


def paths_of(values: Sequence[str]) -> dict[str, str]:
    """Return the paths or URIs in texts NAME=PATH, by name."""
    return {name: path for name, _, path in (value.partition("=") for value in values)}
