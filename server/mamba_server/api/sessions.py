"""The admin calls by which conversations leave an engine as files and come back.

The bytes go through a temporary file without a name, which the engine process opens by the descriptor of this
process: so a file of any size passes in small pieces, and nothing is left behind, whoever dies.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import BodyTooLarge, InvalidRequest, RequestTimeout, TooManyRequests
from mamba_edge.exchange.request_body import BODY_SECONDS, ClientGone, find_header
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.conversation import fields_of, read_conversation_bytes, tokenized
from mamba_server.api.prompt_state import kept_state
from mamba_server.api.requests.errors import AdminRefused, NoRoomForSession
from mamba_server.api.serving import Serving
from mamba_server.wire import AddRequest

FORM = "application/vnd.mambaserve.session"
"""Content type of a session file."""
SECONDS = 300.0
"""Longest time that the engine has for a session."""
PIECE = 1 << 20
"""Bytes that are read from or written to the temporary file at once."""
EXTRA_BYTES = 512 << 20
"""Most bytes of a session file beyond the size of the arena, for its header and its notes."""


class SessionEndpoints:
    """Answers the requests to save and load sessions, of which an engine moves one at a time."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._is_busy = False

    async def save(self, request: Request) -> Response:
        """Answer with the conversation of the body (`messages`, or one `prompt`) as a session file.

        The part that is not cached is computed first.
        """
        body = await read_conversation_bytes(self._serving, request)
        with self._turn():
            add = await self._prompt(await fields_of(body), len(body), context_of(request.scope))
            file = await self._saved(add, body)
        size = os.fstat(file.fileno()).st_size
        return StreamingResponse(_pieces(file), media_type=FORM, headers={"content-length": str(size)})

    async def depth(self, request: Request) -> Response:
        """Answer how much of the conversation of the body this engine has cached, in tokens."""
        body = await read_conversation_bytes(self._serving, request)
        add = await self._prompt(await fields_of(body), len(body), context_of(request.scope))
        reply = await self._serving.engine.admin(
            "cached_depth", {"salt": add.salt, "token_ids": add.token_ids.tobytes()}
        )
        if reply.status >= 400:
            raise AdminRefused(reply)
        return JsonResponse({**reply.body, "tokens": len(add.token_ids)})

    async def load(self, request: Request) -> Response:
        """Install a session file, so that the next request that begins with its text resumes there."""
        with self._turn(), _temporary_file() as file:
            size = await self._receive(request, file)
            return await self._call("session_load", file, {}, {"bytes": size})

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Occupy the engine's one place for a session. Raises TooManyRequests."""
        if self._is_busy:
            raise TooManyRequests("another session is being saved or loaded: try again later")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    # --- save ----------------------------------------------------------------------------------------

    async def _prompt(self, fields: dict[str, Any], size: int, context: RequestContext) -> AddRequest:
        """Return the prompt that the next turn of the conversation begins with.

        Raises InvalidRequest, RequestValidationError, NotReady, TooManyRequests.
        """
        conversation = await tokenized(self._serving, fields, size, "a session")
        prompt = conversation.prompt
        # The generation prompt is not a part of the next turn.
        token_ids = prompt.token_ids[: prompt.turn_boundary or None]
        page_size = self._serving.engine.require_ready().page_size
        if len(token_ids) <= page_size:
            raise InvalidRequest(
                f"the conversation has {len(token_ids)} tokens, and a session needs more than one page of "
                f"{page_size} tokens: there is nothing worth saving yet"
            )
        return conversation.add_request(
            "session", token_ids, client=context.client, arrival=context.arrival, hand_over=True
        )

    async def _saved(self, add: AddRequest, conversation: bytes) -> IO[bytes]:
        """Return the file of a prompt's state. Raises ApiError."""
        serving = self._serving
        assert serving.text is not None
        hand_over, _ = await kept_state(serving, serving.text.tokenizer, add)
        if not hand_over.depth:
            raise NoRoomForSession(
                "the state of the conversation was not kept: the engine caches no prefixes, the conversation "
                "is shorter than --min-checkpoint-depth, or memory is short; try again"
            )
        body = {
            "export": hand_over.export,
            "depth": hand_over.depth,
            "salt": add.salt,
            "token_ids": add.token_ids.tobytes(),
            "conversation": conversation,
            "model": serving.model_name,
        }
        file = _temporary_file()
        try:
            await self._call("session_save", file, body, {})
        except BaseException:
            file.close()
            raise
        return file

    # --- load ----------------------------------------------------------------------------------------

    async def _receive(self, request: Request, file: IO[bytes]) -> int:
        """Write the body to the file, and return its size.

        Raises BodyTooLarge, RequestTimeout, ClientGone.
        """
        limit = int(self._serving.engine.require_ready().plan.get("arenaBytes", 0)) + EXTRA_BYTES
        declared = find_header(request.scope["headers"], b"content-length") or b""
        too_large = BodyTooLarge(f"the session is larger than the engine's arena: at most {limit} bytes fit")
        too_large.close = True
        if declared.isdigit() and int(declared[:18]) > limit:
            raise too_large
        size = 0
        async for piece in _body(request.receive):
            size += len(piece)
            if size > limit:
                raise too_large
            await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(file.flush)
        return size

    async def _call(
        self, verb: str, file: IO[bytes], body: dict[str, Any], facts: dict[str, Any]
    ) -> Response:
        """Let the engine write or read the file; return its reply with `facts`. Raises AdminRefused."""
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        reply = await self._serving.engine.admin(verb, {**body, "path": path}, SECONDS)
        if reply.status >= 400:
            raise AdminRefused(reply)
        return JsonResponse({**reply.body, **facts}, reply.status)


def _temporary_file() -> IO[bytes]:
    """Return an empty file without a name. Raises NoRoomForSession."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise NoRoomForSession(
            f"there is no folder for temporary files ({error.strerror}): let TMPDIR name one that the engine "
            "can write to"
        ) from error


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Raises RequestTimeout if nothing comes for a while, ClientGone."""
    more, pieces = True, bytearray()
    while more:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await receive()
        except TimeoutError as error:
            raise RequestTimeout(f"no byte of the body arrived for {BODY_SECONDS:g} s") from error
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        pieces += message.get("body", b"")
        if len(pieces) >= PIECE or not more:
            yield bytes(pieces)
            pieces.clear()


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes of the file, and close it."""
    with file:
        while piece := await asyncio.to_thread(os.pread, file.fileno(), PIECE, file.tell()):
            file.seek(len(piece), os.SEEK_CUR)
            yield piece
