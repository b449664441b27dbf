"""`PromptReader`: converts the prompt of a request to the token ids that the engine will compute.

It works in threads, with limits on size and time. Messages that the gateway has encoded before cost almost
nothing. If the others take longer than the request may wait, it is routed by the beginning of its prompt, and
the rest is encoded for the next turn. A request of whose prompt nothing is ready in time is routed by load
alone. Without a tokenizer the bytes of the text replace the token ids, so that requests with the same
text still go to the same engine. An invalid request is passed on, and the engine reports the error.
"""

import asyncio
import math
import time
from collections.abc import Callable

import msgspec
import numpy as np
from pydantic import ValidationError

from mamba_api.dialects.paths import COMPLETIONS, TEXT_FIELDS, chat_request
from mamba_api.openai import CompletionRequest
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.prompts.text_processors import ModelText, TextProcessors
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_prefix.adapter_salt import adapted_salt
from mamba_text.encoder_pool import LONG_FROM_CHARS, EncoderPool, GivenUp
from mamba_text.errors import TemplateRefused
from mamba_text.prompt import chat_text, completion_token_ids
from mamba_text.segment_cache import EncodedText, TokenIds

MAX_BODY_BYTES = 512 * 1024
"""Maximum size in bytes of a body that is read. Parsing blocks everything else, and computing such a prompt
takes so long that any engine will do."""
MAX_PENDING = 64
"""Maximum number of prompts that are read at the same time; further requests are routed without their
prompt."""
READERS = 1
"""Number of threads that read prompts. Most of a reading holds the interpreter, so two threads read no faster
than one, and the event loop, which relays the prompts that are read, would wait for both of them."""
READ_SECONDS = 0.25
"""Longest time, in seconds, that a request waits for its prompt to be read."""
NEW_TEXT_SECONDS = 0.04
"""Seconds after the arrival of a request from which it waits for no further messages to be encoded."""
ALWAYS_READ_CHARS = 16 * 1024
"""Number of characters at the end of a prompt that are encoded even then: it is late because others were read
before it, and its last message takes less time than another reading of the whole."""
MAX_RESTS = 32
"""Maximum number of prompts whose rest waits to be encoded; the rest of others is left to a later turn."""
ASSUMED_CHARS_PER_TOKEN = 4.0
"""Characters per token of a text of which nothing is encoded yet."""


class _Texts(msgspec.Struct, frozen=True):
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | None = None


class PromptReader:
    """Turns the prompts of requests into token ids, in threads, within limits on size and time."""

    def __init__(
        self,
        texts: TextProcessors,
        metrics: GatewayMetrics,
        adapter_of: Callable[[str | None], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the reader. `adapter_of` returns the fingerprint of the adapter of a name; "" = none."""
        self._texts, self._metrics, self._adapter_of, self._clock = texts, metrics, adapter_of, clock
        self._encoders = EncoderPool(READERS)
        self._turn = asyncio.Lock()
        self._pending = 0
        self.rests = 0
        """Number of prompts whose rest is not encoded yet."""

    async def read(self, request: UpstreamRequest) -> PromptPrefix | None:
        """Return the (first) prompt of the request; None if it cannot be read, or not in time."""
        prompt, outcome = await self._read(request)
        self._metrics.prompt(outcome).inc()
        return prompt

    async def _read(self, request: UpstreamRequest) -> tuple[PromptPrefix | None, str]:
        text, adapter = self._texts.for_model(request.model), self._adapter_of(request.model)
        if len(request.body) > MAX_BODY_BYTES:
            return None, "too_large"
        if text is None:
            return text_of(request.path, request.body, adapter), "no_tokenizer"
        if self._pending >= MAX_PENDING:
            return None, "busy"
        path, body, deadline = request.path, request.body, self._clock() + NEW_TEXT_SECONDS

        def work(given_up: GivenUp) -> PromptPrefix | None:
            def stop(left: int) -> bool:
                return given_up() or (left > ALWAYS_READ_CHARS and self._clock() > deadline)

            return prompt_of(path, body, text, stop, adapter, self._encode_later)

        self._pending += 1
        try:
            async with asyncio.timeout(READ_SECONDS):
                # Only the rests of prompts go to the thread of long texts: no request waits behind them.
                # The loop relays a prompt that was read before the thread reads the next one. If both worked
                # at once, each would wait for the other, and all answers would begin at the end.
                async with self._turn:
                    prompt = await self._encoders.run(min(len(body), LONG_FROM_CHARS - 1), work)
        except TimeoutError:
            return None, "late"
        finally:
            self._pending -= 1
        if prompt is None:
            return None, "unusable"
        return prompt, "part" if prompt.unread_tokens else "read"

    def _encode_later(self, text: ModelText, prompt: str) -> None:
        """Encode a prompt that no request waits for, so that its pieces are cached for the next turn."""
        if self.rests >= MAX_RESTS:
            return

        def work() -> None:
            try:
                text.segments.encode(prompt)
            finally:
                self.rests -= 1

        self.rests += 1
        self._encoders.hand_over(work)


Later = Callable[[ModelText, str], None]
"""Function that takes the text of a prompt that was not encoded to its end."""


def prompt_of(
    path: str,
    body: bytes,
    text: ModelText,
    stop: Callable[[int], bool] = lambda _: False,
    adapter: str = "",
    later: Later = lambda _text, _prompt: None,
) -> PromptPrefix | None:
    """Return the (first) prompt in `body`, as an engine with the files of `text` reads it.

    The result is None if the body is invalid, or if it is a chat and the model has no chat template.
    `adapter` is the fingerprint of the adapter that computes the prompt, with which alone the prompt shares
    prefixes. `stop` gets the number of characters that are left before each message that was not encoded
    before; if it returns true, the ids of a chat end there, and `later` gets the chat's text.
    """
    unread, terms = 0, None
    try:
        fields = msgspec.json.decode(body)
        if path != COMPLETIONS:
            chat = chat_request(path, fields)
            if text.processor.template is None:
                return None
            prompt = chat_text(text.processor.template, chat)
            encoded = text.segments.encode(prompt, stop)
            token_ids: TokenIds = encoded.token_ids
            terms = text.terms_of(encoded)
            unread = _unread_tokens(encoded, prompt)
            if unread:
                later(text, prompt)
            cut, salt = chat.truncate_prompt_tokens, chat.cache_salt
            whole = chat.prompt_logprobs is not None
        else:
            completion = CompletionRequest.model_validate(fields)
            first = completion.model_copy(update={"prompt": completion.prompts[0]})
            token_ids = np.array(completion_token_ids(text.processor.tokenizer, first)[0], np.int32)
            cut, salt = completion.truncate_prompt_tokens, completion.cache_salt
            echoed = completion.echo and completion.logprobs is not None
            whole = completion.prompt_logprobs is not None or bool(echoed)
    except (
        ValidationError, msgspec.DecodeError, ValueError, RecursionError, OverflowError, TemplateRefused
    ):  # fmt: skip
        return None
    if cut is not None:
        # The ids that are left are the last ones, so those of the beginning say nothing.
        token_ids, unread, terms = (token_ids[:0] if unread else token_ids[-cut:]), 0, None
    salt = adapted_salt(adapter, salt or "")
    if not len(token_ids) and not unread:
        return None
    return PromptPrefix.of(token_ids, salt, computed_whole=whole, unread_tokens=unread, terms=terms)


def _unread_tokens(encoded: EncodedText, prompt: str) -> int:
    """Return the number of tokens in the rest of a prompt, estimated from the tokens of its beginning."""
    tokens = len(encoded.token_ids)
    chars_per_token = encoded.chars / tokens if tokens else ASSUMED_CHARS_PER_TOKEN
    return math.ceil((len(prompt) - encoded.chars) / chars_per_token)


def text_of(path: str, body: bytes, adapter: str = "") -> PromptPrefix | None:
    """Return the messages or prompts in a body as bytes; None if the body is invalid.

    The next turn of a conversation then begins with the same bytes as the previous one.
    """
    try:
        fields = msgspec.json.decode(body, type=_Texts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    text = b"".join(bytes(getattr(fields, name)) for name in TEXT_FIELDS.get(path, ()))
    return PromptPrefix.of_text(text, adapted_salt(adapter, fields.cache_salt or "")) if text else None
