"""The planner's view of an engine's settings: what the user fixed before planning.

The spec of a MambaDeployment is first converted to an engine's settings (`spec_settings`), so that cluster,
workstation and engine plan alike.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from mamba_api.choices import KvCacheDtype, Quantization, Role, Strategy
from mamba_api.v1alpha1 import Workload as DeclaredWorkload
from mamba_planner.errors import UnusableInput
from mamba_settings.engine_settings import EngineSettings

StateDtype = Literal["float32", "float16"]
MOST_STEP_TOKENS = 2048
"""Default for the maximum tokens of a step, for which the workspace is planned."""


def _assumed(name: str) -> Any:
    """Return the default of a MambaDeployment's field, which is assumed where the field is not declared."""
    return DeclaredWorkload.model_fields[name].default


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic that the memory is planned for: mean lengths, and the number of sequences at once.

    `concurrency` is the minimum wanted; None = as many as fit.
    """

    prompt_tokens: int = _assumed("prompt_tokens")
    output_tokens: int = _assumed("output_tokens")
    shared_prefix_ratio: float = _assumed("shared_prefix_ratio")
    """Share of prompt tokens that an earlier request also had."""
    concurrency: int | None = None
    declared: bool = False
    """Whether somebody declared this traffic; False = an assumption."""
    measured: bool = False
    """Whether engines measured this traffic."""

    @classmethod
    def of(cls, settings: EngineSettings) -> "Workload":
        """Return the traffic that the settings declare, or the assumption if they declare none."""
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
        """Mean number of tokens of a sequence at its end: prompt and output."""
        return self.prompt_tokens + self.output_tokens

    @property
    def origin(self) -> str:
        """Adjective for the traffic in messages.

        Measured traffic is "expected", because its concurrency may also have been declared.
        """
        return "expected" if self.measured else "declared"

    @property
    def lengths(self) -> str:
        """Prompt and output length for people."""
        return f"{self.prompt_tokens:,} + {self.output_tokens:,}"

    def of_role(self, role: Role) -> "Workload":
        """Return the part of the traffic that an engine of `role` has: prefill engines write no answers.

        The one output token stands for the last token of the prompt, which the decode engine computes.
        """
        return replace(self, output_tokens=1) if role == "prefill" else self

    def within(self, longest: int) -> "Workload":
        """Return the same traffic with sequences of at most `longest` tokens."""
        output = min(self.output_tokens, max(longest - 1, 1))
        prompt = max(min(self.prompt_tokens, longest - output), 1)
        return replace(self, prompt_tokens=prompt, output_tokens=output)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Values that the user has set, which the planner keeps.

    Sizes are bytes, lengths are tokens; None = the planner's choice.
    """

    strategy: Strategy | None = None
    state_dtype: StateDtype | None = None
    dtype: str | None = None
    """Type of weights and activations; None = the checkpoint's type."""
    quantization: Quantization = "none"
    page_size: int = 16
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the keys and values in pages; auto = that of the activations."""
    track_interval: int = 256
    max_model_len: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_tokens: int = MOST_STEP_TOKENS
    step_time: float | None = None
    """Maximum seconds of a step while answers are written; 0 = no limit, None = the default of the device."""
    max_checkpoints_per_path: int = 4
    prefix_caching: bool = True
    overlap: bool | None = None
    """Whether step n+1 is planned while step n runs; None = the default of the device."""
    utilization: float = 0.9
    arena_bytes: int | None = None
    role: Role = "unified"
    host_memory: int = 0
    """Bytes of host memory for states that are evicted from the arena."""
    disk: int = 0
    """Bytes of disk space for states that are evicted from the arena."""
    draft_tokens: int = 0
    """Drafted tokens of a sequence in one step; 0 = no speculation."""
    adapters: int = 0
    """Places for LoRA adapters."""
    adapter_rank: int = 16
    """Largest rank of an adapter."""
    adapter_expert_rank: int = 0
    """Largest rank of an adapter's changes of experts; 0 = experts have no places."""
    ring_tokens: int = 0
    """Tokens after which the state of a sequence is written; 0 = each step writes it."""
    tensor_parallel: int = 1
    """Number of devices to plan for. Engines run on one device, so it is not one of their settings."""

    def __post_init__(self) -> None:
        if self.track_interval % self.page_size:
            raise UnusableInput(
                f"track_interval {self.track_interval} must be a multiple of the page size {self.page_size}, "
                f"for example {max(self.track_interval // self.page_size, 1) * self.page_size}"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise UnusableInput(
                f"max_model_len {self.max_model_len} is too short: a prompt and an answer of one token each "
                "take 2"
            )
        if not 0 < self.utilization <= 1:
            raise UnusableInput(f"utilization {self.utilization} must be above 0 and at most 1")

    def overlaps(self, device: Literal["cuda", "cpu"]) -> bool:
        """Return whether an engine on `device` plans step n+1 while step n runs.

        By default only GPUs do: on a CPU, planning would take cores from the model.
        """
        return device == "cuda" if self.overlap is None else self.overlap

    @classmethod
    def of(cls, settings: EngineSettings) -> "Constraints":
        """Return the constraints in an engine's settings. Raises `UnusableInput`."""
        return cls(
            strategy=None if settings.strategy == "Auto" else settings.strategy,
            state_dtype=None if settings.state_dtype == "auto" else settings.state_dtype,
            dtype=None if settings.dtype == "auto" else settings.dtype,
            quantization=settings.quantization,
            page_size=settings.page_size,
            kv_cache_dtype=settings.kv_cache_dtype,
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
            role=settings.role,
            host_memory=int(settings.host_memory or 0),
            disk=int(settings.disk_cache_bytes or 0),
            draft_tokens=settings.draft_tokens,
            adapters=settings.lora_places,
            adapter_rank=settings.max_lora_rank,
            adapter_expert_rank=settings.max_lora_expert_rank,
            ring_tokens=settings.ring_tokens,
        )
