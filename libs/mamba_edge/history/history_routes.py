"""The paths of kept responses and of conversations, which engine and gateway answer alike."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import FastAPI, Query, Security
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from mamba_api.dialects.history import (
    ConversationAnswer,
    ConversationChange,
    ConversationItems,
    ConversationRequest,
    Deleted,
    ItemList,
)
from mamba_api.dialects.responses_answer import ResponsesResponse
from mamba_edge.app.application import (
    BAD_QUERY,
    UNAUTHORIZED,
    JsonResponse,
    KeyGuard,
    Responses,
    error_responses,
)
from mamba_edge.app.validation import translated
from mamba_edge.errors import InvalidRequest
from mamba_edge.exchange.request_body import read_body, require_plain
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_edge.history.entries import joined_items, with_identifiers
from mamba_edge.history.response_history import ResponseHistory

RESPONSE, INPUT_ITEMS = "/v1/responses/{id}", "/v1/responses/{id}/input_items"
CONVERSATIONS, CONVERSATION = "/v1/conversations", "/v1/conversations/{id}"
ITEMS = "/v1/conversations/{id}/items"
HISTORY_BODIES: dict[str, type[BaseModel]] = {
    CONVERSATIONS: ConversationRequest,
    CONVERSATION: ConversationChange,
    ITEMS: ConversationItems,
}
"""Body of the POST requests of each path."""
LARGEST_BODY = 4 * 1024 * 1024
"""Largest body of these paths, in bytes."""
Body = TypeVar("Body", bound=BaseModel)
_ERRORS = UNAUTHORIZED | error_responses(
    e404="Nothing with this identifier is kept, or it belongs to another key",
    e503="The store does not answer; see Retry-After",
)
_BODY_ERRORS = _ERRORS | error_responses(e400="The body is wrong; `param` names the field")


class HistoryEndpoints:
    """The handlers of the routes of kept responses and conversations, for one server.

    `client_of` returns the name of a request's client. A client sees only what was kept under its name.
    """

    def __init__(self, history: ResponseHistory, client_of: Callable[[RequestContext], str]) -> None:
        self._history, self._client_of = history, client_of

    def _client(self, request: Request) -> str:
        return self._client_of(context_of(request.scope))

    async def response(self, id: str, request: Request, stream: bool = False) -> Response:  # noqa: A002 - the name in the path
        """Return a kept response."""
        if stream:
            raise InvalidRequest("stream: a kept response is not streamed; leave it out", param="stream")
        return JsonResponse(await self._history.response(self._client(request), id))

    async def delete_response(self, id: str, request: Request) -> Response:  # noqa: A002
        """Delete a kept response. No request can then continue it, or a later turn of its chain.

        Its items stay in the conversation that it belongs to, if any.
        """
        await self._history.delete_response(self._client(request), id)
        return JsonResponse({"id": id, "object": "response", "deleted": True})

    async def input_items(
        self,
        id: str,  # noqa: A002
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """Return one page of the items that came with the request of a response.

        The page has at most `limit` items. It begins behind the item with the identifier `after`; without
        `after`, it begins with the first item in `order`.
        """
        items = await self._history.input_items(self._client(request), id)
        return _page(with_identifiers(items, id), limit, order, after)

    async def create(self, request: Request) -> Response:
        """Create a conversation."""
        body, fields = await _read(request, ConversationRequest)
        items = [msgspec.json.encode(item) for item in fields.get("items") or ()]
        created = await self._history.create_conversation(self._client(request), items, body.metadata or {})
        return JsonResponse(msgspec.json.encode(created))

    async def conversation(self, id: str, request: Request) -> Response:  # noqa: A002
        """Return a conversation."""
        conversation = await self._history.conversation(self._client(request), id)
        return JsonResponse(msgspec.json.encode(conversation))

    async def change(self, id: str, request: Request) -> Response:  # noqa: A002
        """Replace the metadata of a conversation."""
        body, _ = await _read(request, ConversationChange)
        changed = await self._history.change_metadata(self._client(request), id, body.metadata or {})
        return JsonResponse(msgspec.json.encode(changed))

    async def delete_conversation(self, id: str, request: Request) -> Response:  # noqa: A002
        """Delete a conversation; the responses in it are kept."""
        await self._history.delete_conversation(self._client(request), id)
        return JsonResponse({"id": id, "object": "conversation.deleted", "deleted": True})

    async def items(
        self,
        id: str,  # noqa: A002
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """Return one page of the items of a conversation.

        The page has at most `limit` items. It begins behind the item with the identifier `after`; without
        `after`, it begins with the first item in `order`.
        """
        items = await self._history.conversation_items(self._client(request), id)
        return _page(with_identifiers(items, id), limit, order, after)

    async def add_items(self, id: str, request: Request) -> Response:  # noqa: A002
        """Add items to a conversation."""
        _, fields = await _read(request, ConversationItems)
        items = [msgspec.json.encode(item) for item in fields["items"]]
        first = await self._history.add_items(self._client(request), id, items)
        added = with_identifiers(joined_items(items), id, first)
        return _page(added, len(added), "asc", None)


async def _read(request: Request, model: type[Body]) -> tuple[Body, dict[str, Any]]:
    """Read the body of a request, and return it as a validated `model` and as decoded JSON.

    The guard of the route has checked the key before. Raises ApiError and ClientGone.
    """
    require_plain(request.headers.get("content-encoding"))
    context = context_of(request.scope)
    raw = await read_body(request.scope["headers"], request.receive, LARGEST_BODY, share=context.body_share)
    context.body_bytes = len(raw)
    try:
        fields = from_json(raw or b"{}", allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return translated(model.model_validate, fields), fields


def _page(items: list[dict[str, Any]], limit: int, order: str, after: str | None) -> Response:
    """Return the page of at most `limit` items that begins behind the item with the identifier `after`.

    `items` are in ascending order, `order` is the order of the page. With `after` None, the page begins with
    the first item. Raises InvalidRequest if no item has that identifier.
    """
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequest(f"after: there is no item {after[:80]!r} in this list", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    body = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
    return JsonResponse(body)


def add_history_routes(app: FastAPI, endpoints: HistoryEndpoints, guard: KeyGuard) -> None:
    """Add the routes of `endpoints` to an application; `guard` checks the key of each request."""
    get, post, delete = (["GET"], _ERRORS), (["POST"], _BODY_ERRORS), (["DELETE"], _ERRORS)
    listed = (["GET"], _ERRORS | BAD_QUERY)
    routes: list[tuple[str, Any, tuple[list[str], Responses], str, str, Any]] = [
        (RESPONSE, endpoints.response, listed, "response", "A kept response", ResponsesResponse),
        (RESPONSE, endpoints.delete_response, delete, "deleteResponse", "Delete a kept response", Deleted),
        (INPUT_ITEMS, endpoints.input_items, listed, "inputItems", "Input of a kept response", ItemList),
        (CONVERSATIONS, endpoints.create, post, "createConversation", "New conversation", ConversationAnswer),
        (CONVERSATION, endpoints.conversation, get, "conversation", "A conversation", ConversationAnswer),
        (CONVERSATION, endpoints.change, post, "changeConversation", "Change metadata", ConversationAnswer),
        (
            CONVERSATION, endpoints.delete_conversation, delete, "deleteConversation",
            "Delete a conversation", Deleted,
        ),
        (ITEMS, endpoints.items, listed, "conversationItems", "Items of a conversation", ItemList),
        (ITEMS, endpoints.add_items, post, "addItems", "Add items to a conversation", ItemList),
    ]  # fmt: skip
    for path, endpoint, (methods, errors), operation, summary, answer in routes:
        app.add_api_route(
            path, endpoint, methods=methods, dependencies=[Security(guard)], responses=errors,
            response_model=answer, operation_id=operation, summary=summary,
        )  # fmt: skip
