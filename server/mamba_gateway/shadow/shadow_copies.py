"""`ShadowCopies`: sends copies of requests to the candidate of a canary, and compares both answers.

The relay begins a copy with the first attempt of a request, and tells what the client got. A copy holds no
permit and no connection of the client, no request waits for one, and none is made if too many are under way:
so a candidate that is slow, or fails, costs clients nothing. Its answer is compared and dropped, is stored
nowhere, and is counted under the name `CLIENT` in place of the client's key.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from mamba_api import names
from mamba_api.dialects.paths import GENERATING
from mamba_edge.exchange.explain_header import EXPLAIN_HEADER
from mamba_edge.exchange.request_context import CLIENT_HEADER
from mamba_edge.history.kept_answer import HISTORY_HEADER, NOT_KEPT
from mamba_gateway.body_fields import CLIENTS_MISTAKE, UsageMeter, has_error_event
from mamba_gateway.conversation import in_share
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.headers import is_event_stream
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.shadow.answer_record import AnswerRecord, kind_of, outcomes
from mamba_gateway.shadow.answer_text import common_length, is_reproducible, written_text
from mamba_gateway.upstream.connection import ConnectionLost, EngineUnreachable, IdleTimeout, Pair
from mamba_gateway.upstream.connector import UpstreamConnector, UpstreamRequest

log = structlog.get_logger("mambaserve.gateway")

CLIENT = b"_shadow"
"""Name under which engines count copies. No API key can have it, because names of keys begin otherwise."""
MAX_COPIED_BYTES = 1024 * 1024
"""Size in bytes from which a request is not copied, so that memory is bounded."""
MAX_COUNTED_CHARS = 64 * 1024
"""Number of characters up to which the tokens before the first difference are counted."""
_NOT_COPIED = frozenset((b"x-request-id", b"x-mambaserve-pin", CLIENT_HEADER, EXPLAIN_HEADER, HISTORY_HEADER))


class ShadowCopy:
    """A copy of one request for the candidate of a canary, with what is compared of both answers."""

    def __init__(self, request: UpstreamRequest, endpoint: Endpoint, end: asyncio.Future[None]) -> None:
        self.endpoint = endpoint
        self.path, self.query, self.model = request.path, request.query, request.model
        self.request_id, self.body = request.request_id, request.body
        self.headers = copied_headers(request.headers, request.request_id)
        self.reproducible = is_reproducible(request.body)
        self.original = AnswerRecord()
        """Answer that the client gets."""
        self.original_ended = end
        """Completed when the client's answer has ended."""
        self.task: asyncio.Task[Any] | None = None

    def compare(self, status: int, headers: list[Pair], *, failed: bool | None) -> None:
        """Record how the client's own answer ended, so that it can be compared with the copy's."""
        self.original.kind = kind_of(status, headers, failed=failed)
        self.original.streamed = is_event_stream(headers)
        if not self.original_ended.done():
            self.original_ended.set_result(None)

    def leave(self) -> None:
        """End the copy of a request that has ended without an answer, as when its client has left."""
        if not self.original_ended.done() and self.task is not None:
            self.task.cancel()


def copied_headers(headers: list[Pair], request_id: str) -> list[Pair]:
    """Return the headers of the copy of a request: nothing of it is kept, pinned or charged to its client."""
    copied = [pair for pair in headers if pair[0] not in _NOT_COPIED]
    copied += [(b"x-request-id", b"shadow-" + request_id.encode()), (CLIENT_HEADER, CLIENT)]
    if any(name == HISTORY_HEADER for name, _ in headers):
        copied.append((HISTORY_HEADER, NOT_KEPT))
    return copied


class ShadowCopies:
    """Copies of one gateway's requests for one model.

    Args:
        connector: connections to engines.
        pool: the engines, with the share of conversations that are copied.
        metrics: counts pairs of answers.
        deployment: MambaDeployment of the engines, a label of the counts.
        seconds: longest time that a copy may take.
        texts: tokenizers of the models; None = tokens before the first difference are not counted.
    """

    def __init__(
        self,
        connector: UpstreamConnector,
        pool: Pool,
        metrics: GatewayMetrics,
        deployment: str,
        seconds: float,
        texts: TextProcessors | None,
    ) -> None:
        self._connector, self._pool, self._metrics = connector, pool, metrics
        self._deployment, self._seconds, self._texts = deployment, seconds, texts
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.begin_shadow(deployment)

    def begin(self, request: UpstreamRequest) -> ShadowCopy | None:
        """Begin to send a copy of a request that is about to be sent.

        The result is None if the request is not copied: there is no shadow, the request generates nothing or
        is outside the share of conversations, no candidate is ready, or the copy would exceed a limit.
        """
        shadow = self._pool.shadow
        if shadow is None or request.path not in GENERATING:
            return None
        # A conversation is copied whole, as later steps send it: the candidate has its prefixes cached.
        if request.conversation is None or not in_share(request.conversation, shadow.share):
            return None
        endpoint = self._endpoint_for(request)
        refusal = (
            "no_engine" if endpoint is None
            else "too_large" if len(request.body) > MAX_COPIED_BYTES
            else "no_room" if len(self._tasks) >= shadow.max_in_flight
            else ""
        )  # fmt: skip
        if endpoint is None or refusal:
            self._metrics.shadow_copy(self._deployment, refusal).inc()
            return None
        loop = self._connector.loop
        copy = ShadowCopy(request, endpoint, loop.create_future())
        copy.task = task = loop.create_task(self._run(copy), name="shadow copy")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return copy

    async def close(self) -> None:
        """End all copies that are still being sent or answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _endpoint_for(self, request: UpstreamRequest) -> Endpoint | None:
        """Return the candidate engine of the conversation; None = no candidate is ready."""
        candidates = [
            endpoint
            for endpoint in self._pool.snapshot()
            if endpoint.candidate
            and endpoint.ready
            and not endpoint.draining
            and endpoint.serves(request.model)
        ]
        if not candidates:
            return None
        return candidates[(request.conversation or 0) % len(candidates)]

    async def _run(self, copy: ShadowCopy) -> None:
        outcome = "given_up"
        try:
            answer = await self._answer(copy)
            copy.body = b""
            await copy.original_ended
            if await self._compare(copy, answer):
                outcome = "compared"
            else:
                outcome = "no_room"
        except Exception as error:
            # A copy that cannot be compared is no reason to end anything else.
            log.warning("copy not compared", request_id=copy.request_id, error=repr(error))
        finally:
            self._metrics.shadow_copy(self._deployment, outcome).inc()

    async def _answer(self, copy: ShadowCopy) -> AnswerRecord:
        """Send the copy, and return the whole answer of the candidate."""
        answer = AnswerRecord()
        try:
            async with asyncio.timeout(self._seconds):
                await self._read(copy, answer)
        except (EngineUnreachable, ConnectionLost, IdleTimeout, TimeoutError) as error:
            answer.kind = "failed"
            detail = str(error) or f"it took longer than {self._seconds:g} s"
            log.info("copy failed", request_id=copy.request_id, endpoint=copy.endpoint.name, detail=detail)
        return answer

    async def _read(self, copy: ShadowCopy, answer: AnswerRecord) -> None:
        loop, meter = self._connector.loop, UsageMeter()
        start = f"POST {copy.path}?{copy.query}" if copy.query else f"POST {copy.path}"
        sent_at = loop.time()
        response, part = await self._connector.send(copy.endpoint.url, start, copy.headers, copy.body)
        try:
            begun = loop.time()
            answer.streamed = is_event_stream(response.headers)
            failed: bool | None = False
            while part:
                meter.feed(part)
                answer.feed(part)
                if has_error_event(part):
                    failed = None if CLIENTS_MISTAKE in part else True
                part = b"" if response.complete else await response.read()
        finally:
            response.close()
        answer.kind = kind_of(response.status, response.headers, failed=failed)
        if answer.kind == "answered" and answer.streamed:
            self._metrics.time_answer(
                self._deployment,
                candidate=True,
                first=begun - sent_at,
                rest=loop.time() - begun,
                tokens=meter.answer_tokens,
            )

    async def _compare(self, copy: ShadowCopy, answer: AnswerRecord) -> bool:
        """Count how both revisions answered; return False if the pair says nothing about them."""
        original = copy.original
        assert original.kind is not None
        assert answer.kind is not None
        if (pair := outcomes(original.kind, answer.kind)) is None:
            return False
        for track, outcome in zip((names.STABLE, names.CANDIDATE), pair, strict=True):
            self._metrics.shadow_answer(self._deployment, track, outcome).inc()
        if pair[1] == "failed":
            log.info("copy differs", request_id=copy.request_id, endpoint=copy.endpoint.name,
                     client_got=original.kind, candidate=answer.kind)  # fmt: skip
        elif copy.reproducible and original.kind == answer.kind == "answered":
            await self._compare_texts(copy, answer)
        return True

    async def _compare_texts(self, copy: ShadowCopy, answer: AnswerRecord) -> None:
        original = copy.original
        if original.too_long or answer.too_long:
            return
        text = self._texts.for_model(copy.model) if self._texts is not None else None
        count = text.processor.tokenizer.encode if text is not None else None
        # Parsing takes milliseconds, for which no other request shall wait.
        difference = await asyncio.to_thread(first_difference, original, answer, count)
        if difference is None:
            return
        self._metrics.shadow_text(self._deployment, "different" if difference else "equal").inc()
        if difference:
            log.info("copy differs", request_id=copy.request_id, endpoint=copy.endpoint.name,
                     first_token=difference if difference > 0 else None)  # fmt: skip
        if difference > 0:
            self._metrics.shadow_difference(self._deployment).observe(difference)


def first_difference(
    original: AnswerRecord, answer: AnswerRecord, encode: Callable[[str], list[int]] | None
) -> int | None:
    """Return the number of the first token in which two answers differ, from 1.

    0 = they are equal, -1 = they differ at an unknown token, None = one of them cannot be read.
    """
    one = written_text(bytes(original.body), streamed=original.streamed)
    other = written_text(bytes(answer.body), streamed=answer.streamed)
    if one is None or other is None:
        return None
    if one == other:
        return 0
    common = common_length(one, other)
    if encode is None or common > MAX_COUNTED_CHARS:
        return -1
    return len(encode(one[:common])) + 1
