"""Messages between the API process (1) and the engine process (2): msgspec structs over ZeroMQ.

Both directions are one-way PUSH/PULL sockets over `ipc://`; a frame is one msgpack-encoded struct of
`ToEngine` or `FromEngine`, packed by `encoder` and read by `decoder`. Times are `time.monotonic()` seconds
(one clock for all processes of a machine). No text but grammars and markers of thoughts crosses this seam:
the API process owns tokenizer, chat template and stop strings.
"""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mamba_prefix.adapter_salt import adapted_salt

FinishReason = Literal["stop", "length", "abort", "error"]
if TYPE_CHECKING:
    _Int32s = array[int]
else:
    _Int32s = array


class TokenIds(_Int32s):
    """Token ids of a prompt as one block of int32: bytes on the wire, an array in the engine.

    A list of 32,000 ids takes 2.1 ms to pack, unpack and turn into an array; this takes 0.7 ms, of which the
    engine pays a hundredth. Raises OverflowError for an id beyond 32 bits.
    """

    def __new__(cls, token_ids: Iterable[int] = ()) -> "TokenIds":  # noqa: PYI034 - what array returns is not typed as Self
        return super().__new__(cls, "i", token_ids)  # type: ignore[return-value]


class ThoughtBudget(msgspec.Struct, array_like=True, frozen=True):
    """How many tokens of an answer may be thoughts, and how these end."""

    tokens: int
    """Most tokens of the thoughts; then their end is forced."""
    begin: str
    """Marker with which the model begins to think; "" = the prompt has opened the thoughts."""
    ends: tuple[str, ...]
    """Markers at which thoughts end by themselves."""
    closing: tuple[int, ...]
    """Tokens that are forced behind the last one of the budget."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the tokens of one sequence are chosen.

    The API process checks the ranges; the engine trusts them.
    """

    max_tokens: int
    """Most tokens to generate; 0 = none, the prompt is computed for its log-probabilities alone."""
    temperature: float = 1.0
    """Temperature; 0 = greedy."""
    top_k: int = 0
    """Number of most likely tokens to choose from; 0 = all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Seed; None = derived from the engine's own seed. Sequence i of a request uses seed + i."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    """Log-probabilities: -1 = none, 0 = of the sampled token alone, k = also of the k most likely (at most
    20)."""
    prompt_logprobs: int = -1
    grammar: str = ""
    """Grammar in llguidance's notation that the whole answer follows; "" = none."""
    thought_budget: ThoughtBudget | None = None
    allowed_token_ids: tuple[int, ...] = ()
    """Tokens that may come, end tokens included; () = all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that must not come."""
    pooling: Literal["", "mean", "last"] = ""
    """Pooling of the prompt's hidden states behind the last norm, whose result is returned: their mean, or
    the last of them; "" = none. Only with `max_tokens` 0."""


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """Another engine from which the state of a prompt's prefix can be fetched."""

    address: str
    """Address of its transfer server, HOST:PORT."""
    incarnation: str
    """Incarnation of the engine process that was seen at that address."""
    depth: int
    """Tokens of the prefix."""
    export: str = ""
    """Export that was made for this request; "" = none, the other engine looks its cache up."""


class HandOver(msgspec.Struct, array_like=True, frozen=True):
    """Names a state that this engine keeps for another one, which goes on with the prompt."""

    export: str
    """Identifier of the export; "" = there is none."""
    depth: int
    """Tokens of the exported prefix; 0 = nothing to hand over."""
    lease: float
    """Seconds for which the export is kept."""


class AddRequest(msgspec.Struct, tag="add", frozen=True, omit_defaults=True):
    """One prompt with `n` sequences (outputs)."""

    request_id: str
    token_ids: TokenIds
    """The prompt."""
    params: SamplingParams
    n: int = 1
    priority: int = 0
    """Priority among the requests of one client; lower runs first, as in vLLM."""
    client: str = ""
    """Client that sent the request; clients take turns. "" = unknown."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of one salt and one adapter."""
    adapter: str = ""
    """Fingerprint of the adapter to compute with; "" = the base model alone."""
    turn_boundary: int = 0
    """Depth just before the generation prompt of the chat template; 0 = no chat."""
    arrival: float = 0.0
    traceparent: str = ""
    """`traceparent` of the span that waits for the request, if one is recorded: deltas then carry
    timelines."""
    fetch: Fetch | None = None
    """Source of the prompt's state: the request waits for it, and computes the prompt if it does not come."""
    pins: tuple[tuple[int, float], ...] = ()
    """Prefixes of the prompt that are to stay: tokens, and seconds."""
    explain: bool = False
    """Whether the first delta explains what the prompt resumed."""
    hand_over: bool = False
    """Whether the prompt is computed only up to its last page boundary, to be handed over to another
    engine."""
    account: int = 0
    """Number of the account that its cost is added to."""
    reports_cost: bool = False
    """Whether its deltas carry the cost so far."""

    @property
    def salt(self) -> str:
        """Salt of the prompt's prefixes, which names the adapter, too."""
        return adapted_salt(self.adapter, self.cache_salt)


class StopSequence(msgspec.Struct, tag="stop", frozen=True):
    """Message that a stop string was found: the sequence ends with its first `keep` output tokens."""

    request_id: str
    index: int
    keep: int


class AbortRequest(msgspec.Struct, tag="abort", frozen=True):
    """Message that the client is gone: free everything; nothing more is sent for this request."""

    request_id: str


class AdminCall(msgspec.Struct, tag="admin", frozen=True):
    """Admin operation.

    Verbs: flush_cache, plan, ledger, strategy, requests, audits, speculation, release, session_save,
    session_load, cached_depth, explain, leave, adapter_load, adapter_unload. Answered by `AdminReply`.
    """

    call_id: int
    verb: str
    body: dict[str, Any] = {}


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Message that ends the engine process now (after a drain, if one was requested)."""


ToEngine = AddRequest | StopSequence | AbortRequest | AdminCall | Shutdown


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Progress of the start: `done` of `total` units (bytes for weights) of `stage`."""

    stage: str
    done: int
    total: int


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An adapter that the engine can compute with."""

    name: str
    path: str
    """Path or URI of its files."""
    fingerprint: str
    rank: int
    """Largest rank of its matrices."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Message that the engine serves. `plan` is the JSON form of the memory plan in force."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    plan: dict[str, Any]
    fingerprint: str = ""
    """Fingerprint of model, tokenizer and number types: engines with different ones share no states."""
    page_size: int = 0
    """Tokens per page; 0 = not reported."""
    transfer_address: str = ""
    """Address of the transfer server; "" = there is none."""
    incarnation: str = ""
    """Random name of this engine process, which its transfer server checks."""
    adapters: tuple[LoadedAdapter, ...] = ()
    """Adapters that were loaded at the start."""


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log-probabilities at one position: of the token, and of the most likely ones (best first).

    The garbage collector skips them: with some 100,000 of them, its search would stop everything for a tenth
    of a second.
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    rank: int = 0
    """Rank of a prompt's token: 1 = the most likely one; 0 = not counted."""


class PrefillTiming(msgspec.Struct, array_like=True, frozen=True):
    """When one piece of a prompt was computed, and what else the same step computed."""

    began: float
    ended: float
    start: int
    """First token of the piece, which covers tokens [start, stop)."""
    stop: int
    step: int
    """Number of the step."""
    sequences: int
    """Sequences in the step."""
    tokens: int
    """Tokens in the step."""
    checkpoints: tuple[int, ...] = ()
    """Depths of the checkpoints that the piece wrote."""
    beside: tuple[str, ...] = ()
    """`traceparent` of sampled requests with pieces in the same step."""
    preemptions: int = 0
    """Preemptions of the sequence so far."""
    steps: int = 1
    """Steps of the piece; more than 1 where several pieces are reported as one."""


class Arrival(msgspec.Struct, array_like=True, frozen=True):
    """One attempt to get the state of a prompt's prefix from elsewhere, and how it ended."""

    began: float
    ended: float
    source: str
    """`peer`, `disk` or `memory`."""
    outcome: str
    """Outcome of the transfer, as in the metric."""
    depth: int
    """Tokens of the prefix."""
    size: int
    """Bytes that were to be moved."""


class SequenceTimeline(msgspec.Struct, array_like=True, frozen=True):
    """Holds what happened to a traced sequence, and when, since its previous timeline."""

    pieces: tuple[PrefillTiming, ...] = ()
    checkpoints: tuple[int, ...] = ()
    """Depths of the checkpoints that decode steps wrote."""
    arrivals: tuple[Arrival, ...] = ()
    """Attempts to get the state of the prompt from elsewhere."""


ExplainedReason = Literal[
    "resumed_all",
    "too_short",
    "new_text",
    "parted",
    "nothing_cached",
    "caching_off",
    "being_computed",
    "no_checkpoint",
    "checkpoint_too_deep",
    "checkpoint_evicted",
    "flushed",
    "quarantined",
    "pages_evicted",
    "pinning",
    "no_memory",
    "prompt_read_whole",
    "transfer_failed",
]
"""Why a prompt resumed no more tokens, as the engine knows it. The HTTP API describes each of them."""


class PrefixExplanation(msgspec.Struct, array_like=True, frozen=True):
    """How a prompt compares with the cached prompt that has the most tokens in common with it."""

    resumed: int
    """Tokens that the prompt resumed."""
    depth: int
    """Tokens in common; whole pages only, where the next cached tokens are another client's."""
    reason: ExplainedReason
    cached: tuple[int, ...] = ()
    """Next tokens of the cached prompt; () = there are none, or they are hidden."""
    hidden: bool = False
    """Whether the next cached tokens are another client's."""


class Cost(msgspec.Struct, array_like=True, frozen=True):
    """How much of the engine was used. Integers, so that sums are the same in any order."""

    device: int = 0
    """Nanoseconds of the device, out of the time of the steps."""
    slots: int = 0
    """Slot-nanoseconds: one state slot held for one nanosecond."""
    pages: int = 0
    """Page-nanoseconds: one page of attention keys and values used for one nanosecond."""
    saved: int = 0
    """Nanoseconds of the device that the resumed tokens would have taken at the measured speed."""

    def __add__(self, other: "Cost") -> "Cost":
        """Return the sum of two costs."""
        return Cost(
            self.device + other.device,
            self.slots + other.slots,
            self.pages + other.pages,
            self.saved + other.saved,
        )


class SequenceDelta(msgspec.Struct, omit_defaults=True, frozen=True):
    """Holds what one sequence has gained since its last message: new tokens, its end, or both."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """Stop token that ended the sequence: the last of `token_ids`, which is not shown as text."""
    cached_tokens: int = 0
    """Prompt tokens resumed from a checkpoint (with the first delta)."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Log-probabilities of the prompt, if requested: with the first delta of the first sequence, before any
    of the others; None at position 0. Long ones come in pieces before that, each in a delta with nothing
    else."""
    error: str = ""
    """Error message for the client, where `finish_reason` is "error"."""
    form_failed: bool = False
    """Whether `error` explains why the form of the answer could not be followed to its end."""
    at: float = 0.0
    """Time at which its step ended; 0 = not reported."""
    started: float = 0.0
    """Time at which the engine began with the prompt (with the first delta)."""
    first_at: float = 0.0
    """Time of the sequence's first token (with the first delta)."""
    timeline: SequenceTimeline | None = None
    """Timeline of a traced sequence, if anything was recorded."""
    hand_over: HandOver | None = None
    """State that the request was to hand over, with its last delta."""
    embedding: bytes = b""
    """Pooled hidden states as float32 numbers, if requested, with the last delta."""
    explanation: PrefixExplanation | None = None
    """Explanation of what the prompt resumed, if requested: with the first delta of the first sequence."""
    cost: Cost | None = None
    """Cost of the sequence so far, if requested."""


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """Message that the engine has read these requests off the wire."""

    request_ids: list[str]


class Outputs(msgspec.Struct, tag="out", frozen=True):
    """Message with the results of one committed step, for all its sequences."""

    deltas: list[SequenceDelta]


class RequestRejected(msgspec.Struct, tag="rejected", frozen=True):
    """Message that the engine cannot run this request (too long, over capacity) or failed at it."""

    request_id: str
    status: int
    """HTTP status."""
    kind: str
    """OpenAI's `type` of the error."""
    code: str
    """OpenAI's `code` of the error."""
    message: str
    retry_after: float | None = None
    """Seconds until a retry is useful; None = it is not."""


class AuditSpan(msgspec.Struct, array_like=True, frozen=True):
    """When an answer whose request was traced was audited, and what that found."""

    traceparent: str
    """Span of the request's prompt."""
    began: float
    ended: float
    sequence: int
    """Index among the sequences of the prompt."""
    outcome: str
    """`ok`, `diverged`, or `abandoned`, if it could not be compared."""
    reason: str
    """Part that diverged, or why nothing was compared; "" = there is no reason."""
    tokens: int
    """Tokens of the prompt and the answer."""
    distance: float | None
    """Distance of the scores; None = they were not compared."""


class EngineStats(msgspec.Struct, tag="stats", frozen=True):
    """Numbers for `/metrics`, sent about twice a second and when the engine becomes idle.

    `counters` only grow; `gauges` are current values; keys are metric names without the prefix, with labels
    as `name{label=value}`.
    """

    counters: dict[str, float]
    gauges: dict[str, float]
    step_seconds: list[tuple[float, float, float]]
    """Seconds of (schedule, run, commit) of each step since the last message."""
    batch_sizes: list[int]
    transfer_seconds: list[tuple[str, float]] = []
    """Direction and seconds of each transfer that ended since the last message."""
    audit_distances: list[tuple[str, float]] = []
    """Kind, `scores` or `states`, and distance of each comparison of audits since the last message."""
    audit_spans: list[AuditSpan] = []
    """Audits of traced requests that ended since the last message."""
    costs: list[tuple[int, Cost]] = []
    """Accounts, and the costs that were added to each since the last message."""


class PrefixChanges(msgspec.Struct, tag="prefix", frozen=True):
    """Changes of the prefixes that the cache can resume; at most one message every 50 ms.

    An entry that was gained and lost again since the last message is not in it.
    """

    epoch: int
    cleared: bool
    """Whether all earlier messages are void."""
    gained: bytes
    """Checkpoints gained, as entries that `mamba_prefix.messages` packs."""
    lost: bytes
    """Hashes of checkpoints lost, packed likewise."""
    pages_gained: bytes = b""
    """Hashes of prefixes whose attention pages are cached, with or without a checkpoint, at the rungs of
    prompts."""
    pages_lost: bytes = b""


class AdminReply(msgspec.Struct, tag="reply", frozen=True):
    """Answer to an `AdminCall`: an HTTP status and a JSON body."""

    call_id: int
    status: int
    body: dict[str, Any]


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """Message that the engine cannot start or continue.

    `exit_code`: 2 invalid input, 3 does not fit, 1 anything else.
    """

    message: str
    exit_code: int


FromEngine = (
    Progress | Ready | Taken | Outputs | RequestRejected | EngineStats | PrefixChanges | AdminReply | Fatal
)


def encoder() -> msgspec.msgpack.Encoder:
    """Return an encoder for messages of either direction."""
    return msgspec.msgpack.Encoder(enc_hook=_bytes_of)


def decoder(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder for `messages`: `ToEngine` or `FromEngine`.

    The decoder raises msgspec.DecodeError for anything else.
    """
    return msgspec.msgpack.Decoder(messages, dec_hook=_token_ids_of)


def _bytes_of(value: object) -> memoryview:
    if not isinstance(value, TokenIds):
        raise NotImplementedError(f"{type(value).__name__} cannot be sent over the wire")
    return memoryview(value).cast("B")


def _token_ids_of(_: type, value: object) -> TokenIds:
    if not isinstance(value, bytes):
        raise TypeError("token ids are the bytes of int32 numbers")
    token_ids = TokenIds()
    token_ids.frombytes(value)
    return token_ids
