"""Settings of one engine: the options of `mambaserve serve`, which the operator and local mode also set.

One frozen model for all processes, passed between them as one JSON document. The options of the command line
are generated from it, one group per class. Settings that a MambaDeployment also has take their defaults from
there.
"""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, model_validator

from mamba_api.choices import DRAFT_MODEL, KvCacheDtype, Quantization, Speculation, StateReplay
from mamba_api.v1alpha1 import Engine, Limits, Memory, Rollout, StateCache, Workload
from mamba_settings.adapter_settings import AdapterSettings
from mamba_settings.browser_origins import BrowserOrigins
from mamba_settings.byte_size import Bytes
from mamba_settings.history_settings import HistorySettings
from mamba_settings.http_limits import HttpLimits
from mamba_settings.trace_settings import TraceSettings


def _default(model: type[BaseModel], name: str) -> Any:
    """Return the default of a MambaDeployment's field, which is defined there only."""
    return model.model_fields[name].default


def _known_drafts(choice: str) -> str:
    """Return `choice`, the value of the setting `speculation`.

    Raises ValueError if there is no such value.
    """
    uri = choice.removeprefix(DRAFT_MODEL)
    if choice not in get_args(Speculation) and (uri == choice or not uri.strip()):
        raise ValueError(
            f"speculation {choice!r} is not one of {', '.join(get_args(Speculation))} or draft=URI, with the "
            "directory or URI of a second model, in the forms that --model takes"
        )
    return choice


class SettingsGroup(BaseModel):
    """Settings that are shown together, under the docstring of their class."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ModelSettings(SettingsGroup):
    """Model."""

    model: str
    """Model directory or URI: file://, hf://owner/name, pvc://claim/path, s3://bucket/prefix,
    gs://bucket/prefix, oci://registry/repository:tag, https://host/path/, builtin://name."""
    served_model_name: str | None = None
    """Name in the API; default: the last part of the model's URI."""
    max_model_len: int | None = Field(None, ge=1)
    """Maximum length of prompt plus output in tokens; default: the model's own limit."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto = the checkpoint's type."""
    quantization: Quantization = _default(Engine, "quantization")
    """Type of the matrices in memory: none = as dtype; int8 = half the bytes of bfloat16, on CPUs;
    int4 = nearly a quarter; fp8 = half, on GPUs from L4 and H100 on, and on CPUs slowly."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the keys and values in pages of attention: auto = that of the activations; fp8_e4m3 = one byte
    for each number and a scale for each head of each token, so that nearly twice as many tokens fit as with
    bfloat16."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that the model runs on; auto = cuda if there is one."""
    pooling: Literal["auto", "mean", "last"] = "auto"
    """Pooling of `/v1/embeddings` where a request names none: mean = of all tokens, last = the last one;
    auto = that of the model's 1_Pooling/config.json, else last."""
    seed: int | None = None
    """Seed of requests that specify none; default: a random seed at each start, so that engines of one model
    do not draw the same answers."""


class ServerSettings(SettingsGroup):
    """HTTP."""

    host: str = "127.0.0.1"
    """Address that the HTTP server binds."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of the HTTP server; 0 chooses a free one."""
    admin_host: str = "127.0.0.1"
    """Address of the admin server."""
    admin_port: int | None = Field(None, ge=0, le=65535)
    """Port of the admin server; default: port + 1, 0 = a free one."""
    api_key_file: str | None = None
    """File with one accepted API key per line; default: no authentication."""
    admin_token_file: str | None = None
    """File with the token that admin calls must carry; required if the admin address is not loopback."""
    max_waiting_requests: int = Field(512, ge=1)
    """Maximum number of prompts that wait for their first token; further requests get 429."""
    anonymous_priority: bool = False
    """Whether `priority` also acts among requests without an identity, that is without a key and not from a
    gateway. Among the requests of one key it always acts."""
    max_body_bytes: Bytes = Field(ByteSize(_default(Limits, "max_body_size").bytes), ge=1024)
    """Maximum size of a request body; larger ones get 413."""


class SchedulerSettings(SettingsGroup):
    """Scheduler."""

    max_running_requests: int | None = Field(None, ge=1)
    """Maximum number of sequences that run at once, even if memory holds more; default: as many as memory
    holds, up to 1024 on a GPU and 32 on a CPU."""
    step_time: float | None = Field(None, ge=0)
    """Target seconds of a step while answers are being written: prompts are computed in pieces that fill the
    rest; 0 = no limit; default: 0.2 on a CPU, 0.05 on a GPU, no limit if chunked_prefill_tokens is set."""
    chunked_prefill_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens in one step, however fast they are computed; default: 2048, which step_time
    may lower."""
    page_size: int = Field(_default(Engine, "page_size"), ge=1, le=1024)
    """Tokens per attention KV page."""
    overlap: bool | None = _default(Engine, "overlap_schedule")
    """Plan step n+1 while the device runs step n; default: yes on a GPU, no on a CPU."""
    batch_invariant: bool = _default(Engine, "batch_invariant")
    """Make a token's logits independent of the batch that it runs in (slower)."""
    decode_graphs: Literal["auto", "off"] = "auto"
    """Whether decode steps are captured as CUDA graphs: auto = every step that can be captured where Triton's
    kernels compute; off = each step is issued separately (slower at small batches)."""

    speculation: Annotated[str, AfterValidator(_known_drafts)] | None = _default(Engine, "speculation")
    """Drafts of tokens that a step checks together: off = none; ngram = what followed the last tokens earlier
    in the text; mtp = what the checkpoint's own head foresees (Nemotron 3, Qwen3-Next, Qwen3.5); auto =
    whichever of none, ngram and, on a CPU, mtp is measured to save the most time in a step (mtp only if the
    configuration names a head, and without adapters and pools); draft=URI = what a second, smaller model
    with the same tokenizer writes, whose directory or URI has the forms of model; default: auto on a CPU,
    unless batch_invariant or a number of state_replay is set, and off on a GPU."""
    speculative_tokens: int = Field(_default(Engine, "speculative_tokens"), ge=1, le=32)
    """Maximum number of drafted tokens of an answer in one step."""

    state_replay: StateReplay = "auto"
    """Tokens after which a decoded state is written, while the inputs since are replayed in each step: less
    memory traffic at many sequences. off = each step writes all states; auto = where that is measured to save
    time, so far on no device; a number must divide page_size."""

    @property
    def ring_tokens(self) -> int:
        """Tokens after which a state is written; 0 = each step writes it, or the engine decides."""
        return int(self.state_replay) if self.state_replay.isdigit() else 0

    @property
    def draft_model(self) -> str | None:
        """Directory or URI of the second model that drafts; None = none does."""
        if self.speculation is None or not self.speculation.startswith(DRAFT_MODEL):
            return None
        return self.speculation.removeprefix(DRAFT_MODEL)

    @property
    def draft_tokens(self) -> int:
        """Drafted tokens of an answer in one step; 0 = speculation is off or is left to the device."""
        return 0 if self.speculation in (None, "off") else self.speculative_tokens

    @property
    def step_time_asked(self) -> float | None:
        """Effective value of `step_time` in seconds; 0 = no limit, None = the device's default.

        It is 0 if chunked_prefill_tokens is set and step_time is not.
        """
        if self.step_time is None and self.chunked_prefill_tokens is not None:
            return 0.0
        return self.step_time


class MemorySettings(SettingsGroup):
    """Memory."""

    utilization: float = Field(_default(Memory, "utilization"), gt=0, le=1)
    """Share of the device memory that the engine may take."""
    device_memory: Bytes | None = None
    """Device memory to plan for; default: what the device reports."""
    arena_bytes: Bytes | None = None
    """Size of the arena for states and KV; default: what the planner computes from the memory."""


class TrafficSettings(SettingsGroup):
    """Expected traffic."""

    workload_prompt_tokens: int | None = Field(None, ge=1, le=16_777_216)
    """Mean prompt length to plan for; default: the planner's assumption, as for the other three options of
    the workload."""
    workload_output_tokens: int | None = Field(None, ge=1, le=16_777_216)
    """Mean output length to plan for."""
    workload_shared_prefix_ratio: float | None = Field(None, ge=0, le=1)
    """Share of prompt tokens that an earlier request also had."""
    workload_concurrency: int | None = Field(None, ge=1, le=65_536)
    """Number of sequences that should run at once; the plan prefers a choice that reaches it."""

    @property
    def workload(self) -> Workload | None:
        """Declared traffic, with a MambaDeployment's defaults for missing values; None if not declared."""
        declared = {
            name: value
            for name in Workload.model_fields
            if (value := getattr(self, f"workload_{name}")) is not None
        }
        return Workload(**declared) if declared else None


class PrefixIndexSettings(SettingsGroup):
    """Prefix index."""

    redis_url: str | None = None
    """Redis to which the engine publishes its cached prefixes for gateways; pass a URL with a password
    through the variable or a file. Default: gateways ask the engine itself."""
    redis_url_file: str | None = None
    """File with that URL, such as a mounted Secret."""
    prefix_index_scope: str | None = Field(None, min_length=1, max_length=512)
    """Name shared by the engines and gateways of one index; default: the served model's name."""


class TransferSettings(SettingsGroup):
    """Transfers between engines."""

    role: Literal["unified", "prefill", "decode"] = "unified"
    """Work that gateways give the engine: unified = whole requests; prefill = prompts whose states it hands
    over; decode = answers, whose prompts other engines computed. prefill and decode need transfer_port."""
    transfer_host: str = "127.0.0.1"
    """Address that the transfer server binds and that other engines connect to."""
    transfer_port: int | None = Field(None, ge=0, le=65535)
    """Port of the transfer server, from which other engines fetch cached states; 0 = a free one; default: no
    transfer server. Anybody who reaches the port can read states, so it belongs into a private network."""
    transfer_lease: float = Field(30.0, gt=0, le=3600)
    """Seconds for which a state is kept for the engine that is to fetch it, and for which a request waits for
    a state that it fetches."""
    transfer_transport: Literal["sockets", "nixl"] = "sockets"
    """Carrier of the bytes of states that this engine fetches: sockets = the connection; nixl = an RDMA
    network card, with the package `nixl`, from engines that have nixl, too; on a CPU only. Needs
    transfer_port."""


class WarmSettings(SettingsGroup):
    """Warm start and end of an engine."""

    warm_peers: str | None = Field(None, pattern=r"^[^,\s]+:[0-9]{1,5}(,[^,\s]+:[0-9]{1,5})*$")
    """Transfer servers, HOST:PORT and separated by commas, whose most valuable prefixes the engine fetches
    before it is ready; a name stands for all its addresses; needs transfer_port; default: none."""
    warm_seconds: float = Field(10.0, gt=0, le=600)
    """Longest time in seconds that the engine takes to fetch prefixes before it is ready; it computes any
    others when a request needs them."""
    leave_seconds: float = Field(10.0, ge=0, le=600)
    """Longest time in seconds in which other engines of the same role fetch the engine's most valuable
    prefixes before it ends, once its last request has ended; within drain_timeout; 0 = none."""


class PinSettings(SettingsGroup):
    """Pinned prefixes."""

    pin_share: float = Field(0.125, ge=0, le=1)
    """Largest share of the arena that the pinned prefixes of one client take; beyond it, the client's oldest
    pin ends first; 0 = nothing is pinned. A client is an API key, or everybody without one."""


class TierSettings(SettingsGroup):
    """Cache tiers."""

    disk_cache: str | None = None
    """Directory to which evicted states are written, and from which prompts resume, also after a restart;
    default: evicted states are lost."""
    disk_cache_bytes: Bytes | None = None
    """Size of the disk cache; required with disk_cache."""
    disk_cache_shared: bool = False
    """Whether engines share the directory of disk_cache: each takes a numbered folder in it that no other
    engine uses, and resumes from what an earlier engine left there. The size is that of one folder."""
    host_memory: Bytes | None = None
    """Host memory for evicted states, besides the arena; default: none."""


class ProcessSettings(SettingsGroup):
    """Process."""

    drain_timeout: float = Field(_default(Rollout, "drain_timeout").seconds, ge=0)
    """Seconds that running requests have to finish after SIGTERM."""
    engine_silence: float = Field(120.0, gt=0)
    """Seconds without a heartbeat after which a ready engine process counts as hung and is replaced."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""


class EngineSettings(
    ModelSettings, AdapterSettings, ServerSettings, BrowserOrigins, HttpLimits, HistorySettings,
    SchedulerSettings, StateCache, MemorySettings, TrafficSettings, PrefixIndexSettings, PinSettings,
    WarmSettings, TransferSettings, TierSettings, TraceSettings, ProcessSettings,
):  # fmt: skip
    """Settings of one engine. Sizes are bytes, lengths are tokens, times are seconds.

    Fields of `spec.stateCache` are inherited unchanged: a new one needs no line in this file.
    """

    # Only under their own names and also read from text: the API's spelling and strictness do not apply here.
    model_config = ConfigDict(
        alias_generator=None, validate_by_alias=False, validate_by_name=True, serialize_by_alias=False,
        loc_by_alias=False, strict=False, frozen=True, extra="forbid", use_attribute_docstrings=True,
        protected_namespaces=(),
    )  # fmt: skip

    state_dtype: Literal["auto", "float32", "float16"] = "auto"  # type: ignore[assignment]
    """Type of the stored SSM state; auto lets the planner choose."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        """Refuse ways of computing a step that exclude each other."""
        if self.speculation not in (None, "off") and self.batch_invariant:
            raise ValueError(
                "speculation and batch_invariant exclude each other in this version: switch one of them off"
            )
        if self.quantization == "fp8" and self.batch_invariant:
            raise ValueError(
                "quantization fp8 and batch_invariant exclude each other in this version: switch "
                "one of them off"
            )
        if self.lora_places and self.batch_invariant:
            raise ValueError(
                "lora and batch_invariant exclude each other in this version: switch one of them off"
            )
        if len(self.lora) > self.lora_places:
            raise ValueError(
                f"lora names {len(self.lora)} adapters, and max_loras is {self.lora_places}: raise max_loras"
            )
        if self.speculation == "mtp" and self.lora_places:
            raise ValueError(
                "speculation mtp and lora exclude each other in this version, as the head has no adapters: "
                "use speculation ngram or auto"
            )
        if why := self._why_not_replay():
            raise ValueError(f"state_replay {self.state_replay} is refused {why}; set it to auto or off")
        return self

    @model_validator(mode="after")
    def _check_transfers_and_tiers(self) -> Self:
        """Refuse combinations of settings that cannot act together, such as tiers without a size."""
        if self.role != "unified" and self.transfer_port is None:
            raise ValueError(
                f"role {self.role} moves states between engines: set transfer_port (0 = a free port)"
            )
        if self.warm_peers is not None and self.transfer_port is None:
            raise ValueError(
                "warm_peers fetches states from other engines: set transfer_port (0 = a free port)"
            )
        if self.transfer_transport != "sockets" and (why := self._why_not_nixl()):
            raise ValueError(f"transfer_transport {self.transfer_transport} {why}")
        if (self.disk_cache is None) != (self.disk_cache_bytes is None):
            raise ValueError("disk_cache and disk_cache_bytes belong together: set both or neither")
        if self.disk_cache_shared and self.disk_cache is None:
            raise ValueError("disk_cache_shared is about the directory of disk_cache: set disk_cache")
        moving = {"transfer_port": self.transfer_port, "disk_cache": self.disk_cache,
                  "host_memory": self.host_memory}  # fmt: skip
        if not self.prefix_caching and (names := [name for name in moving if moving[name] is not None]):
            raise ValueError(f"{names[0]} moves cached states, and prefix_caching is off: switch it on")
        return self

    def _why_not_nixl(self) -> str:
        """Return why states cannot travel by NIXL, as the rest of a sentence; "" if they can."""
        if self.transfer_port is None:
            return "moves states between engines: set transfer_port (0 = a free port)"
        if self.device == "cuda":
            return (
                "is refused on a GPU by this version, whose states pass through host memory that NIXL does "
                "not know: use sockets, or device cpu"
            )
        return ""

    def _why_not_replay(self) -> str:
        """Return why `state_replay` cannot act, as the rest of a sentence; "" if nothing prevents it."""
        tokens = self.ring_tokens
        if tokens and self.page_size % tokens:
            # States are kept at ends of pages, and are complete there.
            return f"with pages of {self.page_size} tokens, which {tokens} does not divide: choose a divisor"
        if tokens and self.speculation not in (None, "off"):
            return f"with speculation {self.speculation}, whose drafts need states that each step writes"
        if tokens and self.batch_invariant:
            return "with batch_invariant, whose kernels write all states"
        return ""

    def for_device(self, device: Literal["cuda", "cpu"]) -> Self:
        """Return the settings with a value of `speculation`; None is replaced by the default of the device.

        The default on a CPU is auto, which costs next to nothing where drafts fail; with batch_invariant or a
        number of state_replay it is off. The default on a GPU is off, as the steps of captured graphs have no
        drafts.
        """
        if self.speculation is not None:
            return self
        drafts = device == "cpu" and not self.batch_invariant and not self.ring_tokens
        return self.model_copy(update={"speculation": "auto" if drafts else "off"})

    def document(self) -> dict[str, Any]:
        """Return the values that were set, as the JSON object for `mambaserve serve --config FILE`."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
