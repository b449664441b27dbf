"""Settings of one engine: what `mambaserve serve` takes, what the operator and local mode hand over.

One frozen model for all processes, passed between them as one JSON document. The options of the command line
are made from it, one group a class; what a MambaDeployment says too has its default from there.
"""

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from mamba_api.choices import Quantization
from mamba_api.v1alpha1 import Engine, Limits, Memory, Rollout, StateCache, Workload
from mamba_settings.browser_origins import BrowserOrigins
from mamba_settings.byte_size import Bytes
from mamba_settings.http_limits import HttpLimits
from mamba_settings.trace_settings import TraceSettings


def _default(model: type[BaseModel], name: str) -> Any:
    """The default of a MambaDeployment's field, which stands there alone."""
    return model.model_fields[name].default


class SettingsGroup(BaseModel):
    """Settings that are shown together, under the docstring of their class."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ModelSettings(SettingsGroup):
    """Model."""

    model: str
    """Model directory or URI: file://, hf://owner/name, pvc://claim/path, builtin://name."""
    served_model_name: str | None = None
    """Name in the API; default: the last part of the model's URI."""
    max_model_len: int | None = Field(None, ge=1)
    """Longest prompt plus output; default: the model's own limit."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto = the checkpoint's."""
    quantization: Quantization = _default(Engine, "quantization")
    """Type of the matrices in memory: none = dtype; int8 = half the bytes of bfloat16, on a CPU alone."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; auto = cuda if there is one."""
    seed: int | None = None
    """Seed of requests that bring none; default: one that is drawn at each start, so that engines of one
    model do not draw the same answers."""


class ServerSettings(SettingsGroup):
    """HTTP."""

    host: str = "127.0.0.1"
    """Address the HTTP server binds."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of the HTTP server; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """Address of the admin server."""
    admin_port: int | None = Field(None, ge=0, le=65535)
    """Port of the admin server; default: port + 1, 0 = a free one."""
    api_key_file: str | None = None
    """File with one accepted API key a line; default: no authentication."""
    admin_token_file: str | None = None
    """File with the token admin calls must carry; needed when the admin address is not loopback."""
    max_waiting_requests: int = Field(512, ge=1)
    """Most prompts that may wait for their first token; more get 429."""
    anonymous_priority: bool = False
    """Let `priority` act among all requests of which nobody knows whose they are, neither by a key nor from
    a gateway; among the requests of one key it acts in any case."""
    max_body_bytes: Bytes = Field(ByteSize(_default(Limits, "max_body_size").bytes), ge=1024)
    """Largest request body; larger ones get 413."""


class SchedulerSettings(SettingsGroup):
    """Scheduler."""

    max_running_requests: int | None = Field(None, ge=1)
    """Most sequences running at once, even if memory holds more; default: as many as it holds, up to 1024 on
    a GPU and 32 on a CPU."""
    step_time: float | None = Field(None, ge=0)
    """Seconds of a step while answers are being written: prompts are computed in pieces that fill the rest;
    0 = no such limit; default: 0.2 on a CPU, 0.05 on a GPU, no limit if chunked_prefill_tokens is set."""
    chunked_prefill_tokens: int | None = Field(None, ge=1)
    """Most tokens of one step, however quick they are; default: 2048, and fewer as step_time asks."""
    page_size: int = Field(_default(Engine, "page_size"), ge=1, le=1024)
    """Tokens per attention KV page."""
    overlap: bool | None = _default(Engine, "overlap_schedule")
    """Plan step n+1 while the device runs step n; default: on a GPU yes, on a CPU no."""
    batch_invariant: bool = _default(Engine, "batch_invariant")
    """Make a token's logits independent of the batch it runs in (slower)."""
    decode_graphs: Literal["auto", "off"] = "auto"
    """Whether decode steps are captured as CUDA graphs: auto = all that can be, where Triton's kernels
    compute; off = each is issued anew (slower at small batches)."""

    @property
    def step_time_asked(self) -> float | None:
        """`step_time`; 0 where tokens were asked for and no time, None = what suits the device."""
        if self.step_time is None and self.chunked_prefill_tokens is not None:
            return 0.0
        return self.step_time


class MemorySettings(SettingsGroup):
    """Memory."""

    utilization: float = Field(_default(Memory, "utilization"), gt=0, le=1)
    """Share of the device memory the engine may take."""
    device_memory: Bytes | None = None
    """Device memory to plan for; default: what the device reports."""
    arena_bytes: Bytes | None = None
    """Size of the state and KV arena; default: what the planner computes from the memory."""


class TrafficSettings(SettingsGroup):
    """Expected traffic."""

    workload_prompt_tokens: int | None = Field(None, ge=1, le=16_777_216)
    """Mean prompt length to plan for; default of the four: the planner's assumption."""
    workload_output_tokens: int | None = Field(None, ge=1, le=16_777_216)
    """Mean output length to plan for."""
    workload_shared_prefix_ratio: float | None = Field(None, ge=0, le=1)
    """Share of prompt tokens that an earlier request had too."""
    workload_concurrency: int | None = Field(None, ge=1, le=65_536)
    """Sequences that should run at once; the plan prefers a choice that meets it."""

    @property
    def workload(self) -> Workload | None:
        """The traffic that was declared, what was left out as in a MambaDeployment; None = nothing was."""
        declared = {
            name: value
            for name in Workload.model_fields
            if (value := getattr(self, f"workload_{name}")) is not None
        }
        return Workload(**declared) if declared else None


class PrefixIndexSettings(SettingsGroup):
    """Prefix index."""

    redis_url: str | None = None
    """Redis that gateways read what is cached here from; one with a password comes in the variable or a file;
    default: gateways ask the engine itself."""
    redis_url_file: str | None = None
    """File with that address, such as a mounted Secret."""
    prefix_index_scope: str | None = Field(None, min_length=1, max_length=512)
    """Name that the engines and gateways of one index share; default: the served model's name."""


class ProcessSettings(SettingsGroup):
    """Process."""

    drain_timeout: float = Field(_default(Rollout, "drain_timeout").seconds, ge=0)
    """Seconds that running requests get to finish after SIGTERM."""
    engine_silence: float = Field(120.0, gt=0)
    """Seconds without a sign of life after which a ready engine process counts as hung and is replaced."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""


class EngineSettings(
    ModelSettings, ServerSettings, BrowserOrigins, HttpLimits, SchedulerSettings, StateCache, MemorySettings,
    TrafficSettings, PrefixIndexSettings, TraceSettings, ProcessSettings,
):  # fmt: skip
    """One engine. Sizes are bytes, lengths are tokens, times are seconds.

    Fields of `spec.stateCache` are here as they are there: a new one needs no line in this file.
    """

    # Under their own names only, and read from text too: the API's spelling and strictness end here.
    model_config = ConfigDict(
        alias_generator=None, validate_by_alias=False, validate_by_name=True, serialize_by_alias=False,
        loc_by_alias=False, strict=False, frozen=True, extra="forbid", use_attribute_docstrings=True,
        protected_namespaces=(),
    )  # fmt: skip

    state_dtype: Literal["auto", "float32", "float16"] = "auto"  # type: ignore[assignment]
    """Type of the stored SSM state; auto lets the planner choose."""

    def document(self) -> dict[str, Any]:
        """What was set, as the JSON object that `mambaserve serve --config FILE` reads."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
