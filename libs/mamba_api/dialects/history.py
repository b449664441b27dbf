"""Bodies and answers of the paths of kept responses and conversations, in OpenAI's format. Pure."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mamba_api.dialects.responses_request import InputItem
from mamba_api.openai_fields import Metadata, Strict

MOST_NEW_ITEMS = 20
"""Largest number of items that one request adds to a conversation."""
NewItems = Annotated[list[InputItem], Field(max_length=MOST_NEW_ITEMS, fail_fast=True)]


class ConversationRequest(Strict):
    """Body of `POST /v1/conversations`."""

    items: NewItems | None = None
    """First items of the conversation."""
    metadata: Metadata | None = None
    """Returned with the conversation."""


class ConversationChange(Strict):
    """Body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None
    """Metadata that replaces the former one."""


class ConversationItems(Strict):
    """Body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[NewItems, Field(min_length=1)]
    """Items that the conversation goes on with."""


class ConversationAnswer(Strict):
    """A kept conversation, without its items."""

    id: str
    """Identifier of the conversation."""
    object: Literal["conversation"]
    """Always `conversation`."""
    created_at: int
    """Unix time in seconds."""
    metadata: dict[str, str]
    """Metadata of the request that created it."""


class ItemList(Strict):
    """A page of items."""

    object: Literal["list"]
    """Always `list`."""
    data: list[dict[str, Any]]
    """The items."""
    first_id: str | None
    """Identifier of the first of them."""
    last_id: str | None
    """Identifier of the last of them, for `after`."""
    has_more: bool
    """Whether more items follow."""


class Deleted(Strict):
    """Answer to a deletion."""

    id: str
    """Identifier of the deleted object."""
    object: Literal["response", "conversation.deleted"]
    """Kind of the deleted object."""
    deleted: Literal[True]
    """Always true."""
