"""What the user fixed before planning: the planner's view of an engine's settings, and of them alone.

A MambaDeployment gets here through `spec_settings`, so that cluster, workstation and engine plan alike.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from mamba_api.choices import Quantization, Strategy
from mamba_api.v1alpha1 import Workload as DeclaredWorkload
from mamba_planner.errors import UnusableInput
from mamba_settings.engine_settings import EngineSettings

StateDtype = Literal["float32", "float16"]
MOST_STEP_TOKENS = 2048
"""Tokens of a step at most where nobody set them: the workspace is planned for so many."""


def _assumed(name: str) -> Any:
    """The default of a MambaDeployment's field: what is left out is assumed, in part or altogether."""
    return DeclaredWorkload.model_fields[name].default


@dataclass(frozen=True, slots=True)
class Workload:
    """Mean shape of the traffic. `concurrency` is wanted at least; None = as much as fits."""

    prompt_tokens: int = _assumed("prompt_tokens")
    output_tokens: int = _assumed("output_tokens")
    shared_prefix_ratio: float = _assumed("shared_prefix_ratio")
    """Share of prompt tokens that an earlier request had too."""
    concurrency: int | None = None
    declared: bool = False
    """False: the assumption that stands in while nothing was declared or measured."""
    measured: bool = False
    """Engines measured it."""

    @classmethod
    def of(cls, settings: EngineSettings) -> "Workload":
        """The traffic that the settings declare; the assumption where they declare none."""
        if (declared := settings.workload) is None:
            return cls()
        return cls(
            prompt_tokens=declared.prompt_tokens,
            output_tokens=declared.output_tokens,
            shared_prefix_ratio=declared.shared_prefix_ratio,
            concurrency=declared.concurrency,
            declared=True,
        )

    @property
    def tokens(self) -> int:
        """Tokens of a sequence at its end: what it holds at most."""
        return self.prompt_tokens + self.output_tokens

    @property
    def origin(self) -> str:
        """What people call it: of measured traffic the concurrency may be one that was declared too."""
        return "expected" if self.measured else "declared"

    @property
    def lengths(self) -> str:
        """Prompt and output, for people."""
        return f"{self.prompt_tokens:,} + {self.output_tokens:,}"

    def within(self, longest: int) -> "Workload":
        """The same traffic cut to sequences of at most `longest` tokens."""
        output = min(self.output_tokens, max(longest - 1, 1))
        prompt = max(min(self.prompt_tokens, longest - output), 1)
        return replace(self, prompt_tokens=prompt, output_tokens=output)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Sizes are bytes, lengths are tokens; None = the planner's choice."""

    strategy: Strategy | None = None
    state_dtype: StateDtype | None = None
    dtype: str | None = None
    """Type of weights and activations; None = the checkpoint's."""
    quantization: Quantization = "none"
    page_size: int = 16
    track_interval: int = 256
    max_model_len: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_tokens: int = MOST_STEP_TOKENS
    step_time: float | None = None
    """Seconds that a step may take while answers are written; 0 = any, None = what suits the device."""
    max_checkpoints_per_path: int = 4
    prefix_caching: bool = True
    overlap: bool | None = None
    """Whether step n+1 is planned while step n runs; None = what suits the device."""
    utilization: float = 0.9
    arena_bytes: int | None = None
    tensor_parallel: int = 1
    """Devices to count with; engines run on one, so it is no setting of theirs."""

    def __post_init__(self) -> None:
        if self.track_interval % self.page_size:
            raise UnusableInput(
                f"track_interval {self.track_interval} must be a multiple of the page size {self.page_size}, "
                f"for example {max(self.track_interval // self.page_size, 1) * self.page_size}"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise UnusableInput(
                f"max_model_len {self.max_model_len} leaves no room: one token of a prompt and one of an "
                "answer take 2"
            )
        if not 0 < self.utilization <= 1:
            raise UnusableInput(f"utilization {self.utilization} must be above 0 and at most 1")

    def overlaps(self, device: Literal["cuda", "cpu"]) -> bool:
        """Whether an engine on `device` overlaps: on a CPU planning only takes the core from the model."""
        return device == "cuda" if self.overlap is None else self.overlap

    @classmethod
    def of(cls, settings: EngineSettings) -> "Constraints":
        """The constraints an engine's settings carry. Raises `UnusableInput`."""
        return cls(
            strategy=None if settings.strategy == "Auto" else settings.strategy,
            state_dtype=None if settings.state_dtype == "auto" else settings.state_dtype,
            dtype=None if settings.dtype == "auto" else settings.dtype,
            quantization=settings.quantization,
            page_size=settings.page_size,
            track_interval=settings.track_interval,
            max_model_len=settings.max_model_len,
            max_running_requests=settings.max_running_requests,
            chunked_prefill_tokens=settings.chunked_prefill_tokens or MOST_STEP_TOKENS,
            step_time=settings.step_time_asked,
            max_checkpoints_per_path=settings.max_checkpoints_per_path,
            prefix_caching=settings.prefix_caching,
            overlap=settings.overlap,
            utilization=settings.utilization,
            arena_bytes=None if settings.arena_bytes is None else int(settings.arena_bytes),
        )
