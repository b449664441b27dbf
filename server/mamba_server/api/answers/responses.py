"""The JSON of answers and chunks, encoded by msgspec because it is the hot path of streaming. Pure.

The fields are those of `mamba_api.openai_responses`, which documents them; tests compare the two. Optional
fields that a request does not ask for are absent, not null.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mamba_edge.usage.prices import Prices
from mamba_edge.usage.usage_sum import NANOSECONDS, UsageSum
from mamba_server.wire import Cost, FinishReason, TokenLogprobs
from mamba_text.tokenizer import Tokenizer

ChatFinish = FinishReason | Literal["tool_calls"]
PromptLogprobs = list[dict[str, Any] | None]
OptionalTokenIds = list[int] | UnsetType


class PromptTokensDetailsBody(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetailsBody(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class EngineCostBody(msgspec.Struct, frozen=True):
    device_seconds: float
    slot_seconds: float
    page_seconds: float
    saved_device_seconds: float
    cost: float | UnsetType = UNSET
    saved_cost: float | UnsetType = UNSET
    currency: str | UnsetType = UNSET


class UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetailsBody
    completion_tokens_details: CompletionTokensDetailsBody | UnsetType = UNSET
    engine_cost: EngineCostBody | UnsetType = UNSET


class CompletionLogprobsBody(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoiceBody(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobsBody | msgspec.Raw | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | msgspec.Raw | UnsetType = UNSET
    prompt_token_ids: OptionalTokenIds = UNSET
    token_ids: OptionalTokenIds = UNSET


class VendorBody(msgspec.Struct, frozen=True):
    explain: list[dict[str, Any]]


class CompletionBody(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoiceBody]
    object: str = "text_completion"
    usage: UsageBody | UnsetType | None = UNSET
    mambaserve: VendorBody | UnsetType = UNSET


class ChatLogprobsBody(msgspec.Struct):
    content: list[dict[str, Any]]


class FunctionBody(msgspec.Struct):
    name: str
    arguments: str


class ToolCallBody(msgspec.Struct):
    id: str
    function: FunctionBody
    type: str = "function"


class ToolCallDeltaBody(ToolCallBody, kw_only=True):
    index: int


class ArgumentsBody(msgspec.Struct):
    arguments: str


class ArgumentsDeltaBody(msgspec.Struct):
    index: int
    function: ArgumentsBody


class CustomBody(msgspec.Struct):
    name: str
    input: str


class CustomCallBody(msgspec.Struct):
    id: str
    custom: CustomBody
    type: str = "custom"


class CustomCallDeltaBody(CustomCallBody, kw_only=True):
    index: int


class MessageBody(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody | CustomCallBody] | UnsetType = UNSET


class ChatChoiceBody(msgspec.Struct):
    index: int
    message: MessageBody
    logprobs: ChatLogprobsBody | None = None
    finish_reason: ChatFinish | None = None
    token_ids: OptionalTokenIds = UNSET


class ChatBody(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoiceBody]
    usage: UsageBody
    object: str = "chat.completion"
    prompt_logprobs: PromptLogprobs | msgspec.Raw | UnsetType = UNSET
    prompt_token_ids: OptionalTokenIds = UNSET
    mambaserve: VendorBody | UnsetType = UNSET


class DeltaBody(msgspec.Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDeltaBody | ArgumentsDeltaBody | CustomCallDeltaBody] | UnsetType = UNSET


class ChatChunkChoiceBody(msgspec.Struct):
    index: int
    delta: DeltaBody
    logprobs: ChatLogprobsBody | None = None
    finish_reason: ChatFinish | None = None
    token_ids: OptionalTokenIds = UNSET


class ChatChunkBody(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoiceBody]
    object: str = "chat.completion.chunk"
    usage: UsageBody | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | msgspec.Raw | UnsetType = UNSET
    prompt_token_ids: OptionalTokenIds = UNSET
    mambaserve: VendorBody | UnsetType = UNSET


_ENCODER = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"
"""Empty comment of a stream, which clients skip."""


def encode(body: msgspec.Struct | dict[str, Any] | list[Any]) -> bytes:
    """Encode a body as JSON."""
    return _ENCODER.encode(body)


def event(body: msgspec.Struct | dict[str, Any]) -> bytes:
    """Encode one server-sent event; JSON has no bare newline, so one `data` line is enough."""
    return b"data: " + _ENCODER.encode(body) + b"\n\n"


def usage_comment(usage: UsageBody) -> bytes:
    """Encode the usage as a comment of a stream, which clients skip."""
    return b": " + _ENCODER.encode({"usage": usage}) + b"\n\n"


def usage_body(
    prompt: int, completion: int, cached: int, cost: Cost | None = None, prices: Prices | None = None
) -> UsageBody:
    """Build the token counts of one request.

    `cost` is what the request has cost the engine; None if the client does not want to know it. `prices` are
    the gateway's prices of the model; None if it has none.
    """
    details = PromptTokensDetailsBody(cached)
    engine_cost = UNSET if cost is None else cost_body(cost, prompt, completion, cached, prices)
    return UsageBody(prompt, completion, prompt + completion, details, engine_cost=engine_cost)


def cost_body(cost: Cost, prompt: int, completion: int, cached: int, prices: Prices | None) -> EngineCostBody:
    """Build the cost of one request, in seconds, and in money where there are prices."""
    body = EngineCostBody(
        cost.device / NANOSECONDS,
        cost.slots / NANOSECONDS,
        cost.pages / NANOSECONDS,
        cost.saved / NANOSECONDS,
    )
    if prices is None:
        return body
    total = UsageSum(1, prompt, cached, completion, cost.device, cost.slots, cost.pages, cost.saved)
    return msgspec.structs.replace(
        body, cost=prices.cost(total), saved_cost=prices.saved(total), currency=prices.currency
    )


def engine_cost(usage: UsageBody) -> dict[str, Any]:
    """Return the field of a usage object with the cost; {} if the client does not want to know it."""
    return {} if usage.engine_cost is UNSET else {"engine_cost": usage.engine_cost}


def chat_logprobs(tokenizer: Tokenizer, entries: list[TokenLogprobs]) -> ChatLogprobsBody:
    """Return log-probabilities in the format of chat completions, with the exact bytes of each token."""

    def score(token_id: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token_id)
        return {"token": piece.text, "logprob": finite(logprob), "bytes": list(piece.raw)}

    return ChatLogprobsBody(
        [
            {
                **score(entry.token_id, entry.logprob),
                "top_logprobs": [
                    score(*pair) for pair in zip(entry.top_ids, entry.top_logprobs, strict=True)
                ],
            }
            for entry in entries
        ]
    )


def text_length(tokenizer: Tokenizer, token_id: int, *, special: bool = False) -> int:
    """Return the number of characters that a token adds to the text; `special`: with special tokens.

    Of several tokens that form one character, the first one adds it.
    """
    piece = tokenizer.piece(token_id)
    if piece.special and not special:
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in piece.raw)


def token_key(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the text by which a completion's log-probabilities name a token.

    A part of a character is named by its bytes, since all such parts look alike as text.
    """
    piece = tokenizer.piece(token_id)
    if "\ufffd" not in piece.text or piece.raw == piece.text.encode():
        return piece.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece.raw)


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: list[int],
    entries: list[TokenLogprobs | None],
    offset: int,
    *,
    special: bool = False,
) -> CompletionLogprobsBody:
    """Return log-probabilities in the format of completions.

    `offset` is the number of characters of the choice before these tokens. `special` says whether the text of
    the choice has special tokens.
    """
    body = CompletionLogprobsBody([], [], [], [])
    for token_id, entry in zip(token_ids, entries, strict=True):
        text = token_key(tokenizer, token_id)
        raw = tokenizer.piece(token_id).raw
        # A token that continues a character has the offset of that character.
        continues = bool(raw) and raw[0] & 0xC0 == 0x80
        body.text_offset.append(max(0, offset - 1) if continues else offset)
        body.tokens.append(text)
        offset += text_length(tokenizer, token_id, special=special)
        if entry is None:
            body.token_logprobs.append(None)
            body.top_logprobs.append(None)
            continue
        body.token_logprobs.append(finite(entry.logprob))
        # The sampled token is always listed, even if it is not one of the most likely.
        top = {text: finite(entry.logprob)}
        for top_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
            top.setdefault(token_key(tokenizer, top_id), finite(logprob))
        body.top_logprobs.append(top)
    return body


def prompt_logprobs(tokenizer: Tokenizer, entries: list[TokenLogprobs | None]) -> PromptLogprobs:
    """Return an object for each prompt token; null for the first, which has no score.

    An object maps token ids, as strings, to log-probability, rank and text.
    """
    answer: PromptLogprobs = []
    for entry in entries:
        if entry is None:
            answer.append(None)
            continue
        ranked = {
            token_id: {
                "logprob": finite(logprob),
                "rank": rank,
                "decoded_token": tokenizer.piece(token_id).text,
            }
            for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
        }
        own = {
            "logprob": finite(entry.logprob),
            "rank": entry.rank,
            "decoded_token": tokenizer.piece(entry.token_id).text,
        }
        answer.append({str(key): value for key, value in ({entry.token_id: own} | ranked).items()})
    return answer


def finite(logprob: float) -> float:
    """Replace minus infinity, which JSON does not have, by the OpenAI reference's value for such tokens."""
    return max(logprob, -9999.0)
