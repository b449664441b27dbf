"""Messages between the API process (1) and the engine process (2): msgspec structs over ZeroMQ.

Both directions are one-way PUSH/PULL sockets over `ipc://`; a frame is one msgpack-encoded struct of
`ToEngine` or `FromEngine`, made by `encoder` and read by `decoder`. Times are `time.monotonic()` seconds (one
clock for all processes of a machine). No text crosses this seam but grammars: the API process owns
tokenizer, chat template and stop strings.
"""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]
if TYPE_CHECKING:
    _Int32s = array[int]
else:
    _Int32s = array


class TokenIds(_Int32s):
    """A prompt's token ids as int32 in one piece of memory: on the wire its bytes, in the engine an array.

    A list of 32,000 ids takes 2.1 ms to pack, unpack and turn into an array; this takes 0.7 ms, of which the
    engine pays a hundredth. Raises OverflowError for an id beyond 32 bits.
    """

    def __new__(cls, token_ids: Iterable[int] = ()) -> "TokenIds":  # noqa: PYI034 - what array returns is not typed as Self
        return super().__new__(cls, "i", token_ids)  # type: ignore[return-value]


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one sequence is sampled. Ranges are checked by the API process; the engine trusts them."""

    max_tokens: int
    """Most tokens to generate; 0 = none: the prompt is computed for its log-probabilities alone."""
    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """0 = all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """None: the engine derives one from its own seed; sequence i of a request uses seed + i."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    """-1 = none, 0 = of the sampled token alone, k = also of the k most likely (at most 20)."""
    prompt_logprobs: int = -1
    grammar: str = ""
    """llguidance's, which the answer follows from its first token to its end; "" = none."""


class AddRequest(msgspec.Struct, tag="add", frozen=True, omit_defaults=True):
    """One prompt with `n` sequences (outputs)."""

    request_id: str
    token_ids: TokenIds
    """The prompt."""
    params: SamplingParams
    n: int = 1
    priority: int = 0
    """Lower runs first, as in vLLM; among the requests of one client."""
    client: str = ""
    """Whose request it is: clients take turns. "" = nobody knows."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of one salt."""
    turn_boundary: int = 0
    """Depth just before the chat template's generation prompt; 0 = not a chat."""
    arrival: float = 0.0
    traceparent: str = ""
    """Of the span that waits for it, where one is recorded: then the deltas tell how time was spent."""


class StopSequence(msgspec.Struct, tag="stop", frozen=True):
    """The API process saw a stop string: the sequence ends with its first `keep` output tokens."""

    request_id: str
    index: int
    keep: int


class AbortRequest(msgspec.Struct, tag="abort", frozen=True):
    """The client is gone: free everything; nothing more is sent for this request."""

    request_id: str


class AdminCall(msgspec.Struct, tag="admin", frozen=True):
    """One admin operation: flush_cache, plan, ledger, strategy, requests. Answered by `AdminReply`."""

    call_id: int
    verb: str
    body: dict[str, Any] = {}


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """End the engine process now (after a drain, if one was wanted)."""


ToEngine = AddRequest | StopSequence | AbortRequest | AdminCall | Shutdown


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Loading goes on: `done` of `total` units (bytes for weights) of `stage`."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine serves. `plan` is the JSON form of the memory plan in force."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    plan: dict[str, Any]
    fingerprint: str = ""
    """Of model, tokenizer and number types: whose states cannot stand for each other differ in it."""
    page_size: int = 0
    """Tokens of a page; 0 = the engine does not say."""


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log-probabilities at one position: of the token, and of the most likely ones (best first).

    Nothing of them is looked at by the garbage collector, which would stop everything for a tenth of a second
    when there are some 100,000.
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    rank: int = 0
    """Of a prompt's token: 1 = the most likely one; 0 = not counted."""


class PrefillTiming(msgspec.Struct, array_like=True, frozen=True):
    """One piece of a prompt: when a step computed it, and in what company."""

    began: float
    ended: float
    start: int
    """Tokens [start, stop)."""
    stop: int
    step: int
    sequences: int
    """In the step."""
    tokens: int
    """In the step."""
    checkpoints: tuple[int, ...] = ()
    """Depths of those that it wrote."""
    beside: tuple[str, ...] = ()
    """`traceparent` of sampled requests with pieces in the same step."""
    preemptions: int = 0
    """Of the sequence, so far."""
    steps: int = 1
    """More than one where several pieces are told as one."""


class SequenceTimeline(msgspec.Struct, array_like=True, frozen=True):
    """How a traced sequence spent its time since it was last told."""

    pieces: tuple[PrefillTiming, ...] = ()
    checkpoints: tuple[int, ...] = ()
    """Depths of those that decode steps wrote."""


class SequenceDelta(msgspec.Struct, omit_defaults=True, frozen=True):
    """New tokens of one sequence, or its end, or both."""

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """Which stop token ended it: the last of `token_ids`, not to be shown as text."""
    cached_tokens: int = 0
    """Prompt tokens resumed from a checkpoint (with the first delta)."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """With the first delta of the first sequence when asked for, before any of the others; None at position
    0. Long ones come in pieces before it, each a delta with nothing else."""
    error: str = ""
    """What went wrong, for the client, where `finish_reason` is "error"."""
    form_failed: bool = False
    """Where it is: `error` says why the form of the answer could not be followed to its end."""
    at: float = 0.0
    """When its step was over; 0 = the engine does not say."""
    started: float = 0.0
    """When the engine began with the prompt (with the first delta)."""
    first_at: float = 0.0
    """`at` of the sequence's first token (with the first delta)."""
    timeline: SequenceTimeline | None = None
    """Of a traced request, where there is something to tell."""


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """The engine has read these requests off the wire."""

    request_ids: list[str]


class Outputs(msgspec.Struct, tag="out", frozen=True):
    """What one committed step produced."""

    deltas: list[SequenceDelta]


class RequestRejected(msgspec.Struct, tag="rejected", frozen=True):
    """The engine cannot run this request at all (too long, over capacity) or failed while running it."""

    request_id: str
    status: int
    kind: str
    code: str
    message: str
    retry_after: float | None = None


class EngineStats(msgspec.Struct, tag="stats", frozen=True):
    """Numbers for `/metrics`, sent about twice a second and after each idle transition.

    `counters` only grow; `gauges` are current values; keys are metric names without the prefix, with labels
    as `name{label=value}`.
    """

    counters: dict[str, float]
    gauges: dict[str, float]
    step_seconds: list[tuple[float, float, float]]
    """(schedule, run, commit) of the steps since the last message."""
    batch_sizes: list[int]


class PrefixChanges(msgspec.Struct, tag="prefix", frozen=True):
    """What of the cache can be asked for and was gained or lost since the last such message; at most one
    every 50 ms."""

    epoch: int
    cleared: bool
    """All that was said before is void."""
    gained: bytes
    """Checkpoints, as entries that `mamba_prefix.messages` packs."""
    lost: bytes
    """Their hashes, likewise."""
    pages_gained: bytes = b""
    """Hashes of prefixes whose attention is there, with or without a checkpoint, at the rungs of prompts."""
    pages_lost: bytes = b""


class AdminReply(msgspec.Struct, tag="reply", frozen=True):
    """Answer to an `AdminCall`: an HTTP status and a JSON body."""

    call_id: int
    status: int
    body: dict[str, Any]


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The engine cannot start or go on; `exit_code`: 2 invalid input, 3 does not fit, 1 anything else."""

    message: str
    exit_code: int


FromEngine = (
    Progress | Ready | Taken | Outputs | RequestRejected | EngineStats | PrefixChanges | AdminReply | Fatal
)


def encoder() -> msgspec.msgpack.Encoder:
    """Packs messages of either direction."""
    return msgspec.msgpack.Encoder(enc_hook=_bytes_of)


def decoder(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    """Unpacks `messages`: `ToEngine` or `FromEngine`. Raises msgspec.DecodeError for anything else."""
    return msgspec.msgpack.Decoder(messages, dec_hook=_token_ids_of)


def _bytes_of(value: object) -> memoryview:
    if not isinstance(value, TokenIds):
        raise NotImplementedError(f"{type(value).__name__} does not go over the wire")
    return memoryview(value).cast("B")


def _token_ids_of(_: type, value: object) -> TokenIds:
    if not isinstance(value, bytes):
        raise TypeError("token ids are the bytes of int32 numbers")
    token_ids = TokenIds()
    token_ids.frombytes(value)
    return token_ids
