"""The FastAPI application of our servers: errors as OpenAI envelopes, a document and a docs page.

A server makes an application, adds its routes, and publishes it last. FastAPI's own telemetry is off: it
records the texts of exceptions, and the request middleware records every request already.
"""

import asyncio
import importlib.metadata
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.dialects.routes import ROUTES
from mamba_api.openai import ErrorEnvelope
from mamba_api.openai_examples import Examples
from mamba_edge.api_keys import KeyFile, credential_of
from mamba_edge.app.openapi_document import Document, error_content, openapi_document
from mamba_edge.app.validation import invalid
from mamba_edge.docs_page import add_docs_page
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError, InvalidRequest, as_api_error
from mamba_edge.exchange.request_body import ClientGone
from mamba_edge.exchange.request_context import context_of

Responses = dict[int | str, dict[str, Any]]
Guard = Callable[[HTTPConnection], Awaitable[object]]

UNAUTHORIZED_TEXT = "No or a wrong API key"
NO_MODEL_TEXT = "No such model"


class JsonResponse(Response):
    """A JSON response whose content is encoded already, or is encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else msgspec.json.encode(content)


class _NoAnswer(Response):
    """The response for a client that has left: nothing is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class KeyGuard(HTTPBearer):
    """Lets only requests with an accepted API key into a route, and all of them if there is no key file.

    It is also the security scheme of the OpenAPI document.
    """

    def __init__(self, keys: KeyFile | None, description: str) -> None:
        super().__init__(scheme_name="bearer", description=description, auto_error=False)
        self._keys = keys

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Raise Unauthorized unless the request has an accepted key, and record the name of its key.

        A route that takes a body calls the guard before it reads, and FastAPI calls it again: the key is
        checked once.
        """
        if self._keys is not None and (context := context_of(request.scope)).key_name is None:
            context.key_name = self._keys.check(credential_of(context.header_values))
        return None


def error_response(error: ApiError, scope: Scope | None = None) -> Response:
    """Return the response that reports `error`, in the form that errors have at the path of the request."""
    envelope = error.envelope()
    if scope is not None:
        envelope = form_of(scope["path"]).envelope(error, context_of(scope).request_id)
    return JsonResponse(envelope, error.status, headers=error.headers())


def error_responses(**descriptions: str) -> Responses:
    """Return the error answers of a route, for the OpenAPI document.

    The name of each description is `e` and the status of the answer, such as `e404`.
    """
    return {
        int(name[1:]): {"description": text, "content": error_content(ErrorEnvelope)}
        for name, text in descriptions.items()
    }


def generation_errors(*, e500: str, e503: str, **more: str) -> Responses:
    """Return the error answers of the endpoints that generate, for the OpenAPI document.

    Args:
        e500: description of a defect.
        e503: description of a server that takes no requests now.
        more: descriptions of further answers, each named `e` and the status, as `error_responses` takes them.
    """
    return error_responses(
        e400="The request is wrong; `param` names the field",
        e401=UNAUTHORIZED_TEXT,
        e404=NO_MODEL_TEXT,
        e408="The body did not arrive in time",
        e413="The body is too large",
        e415="The body is not JSON",
        e429="Too many requests wait; see Retry-After",
        e500=e500,
        e503=e503,
        **more,
    )


def in_form_of(path: str, responses: Responses) -> Responses:
    """Return `responses`, error answers of the OpenAPI document, with the body that errors have at `path`."""
    content = error_content(ROUTES[path].error)
    return {status: {**response, "content": content} for status, response in responses.items()}


UNAUTHORIZED = error_responses(e401=UNAUTHORIZED_TEXT)
"""Error answer of routes that need a key."""
BAD_QUERY = error_responses(e400="A parameter is wrong")
"""Error answer of routes with parameters in the query."""
NO_MODEL = error_responses(e404=NO_MODEL_TEXT)
"""Error answer of routes that name a model."""
TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
"""Answer of routes that serve plain text."""


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientGone):
        return _NoAnswer()
    if isinstance(error, RequestValidationError):
        # The frames hold everything that was parsed, and one holds the error: a cycle that only the garbage
        # collector would free.
        error.__traceback__ = None
        # All models are of bodies, whose fields have the names that the client wrote.
        wrong = invalid([{**item, "loc": tuple(item["loc"])[1:]} for item in error.errors()])
        return error_response(wrong, request.scope)
    if isinstance(error, RecursionError):
        deep = InvalidRequest("the body is nested too deeply", code="invalid_json")
        return error_response(deep, request.scope)
    location = f"{request.scope['method']} {request.scope['path']}: "
    return error_response(as_api_error(error, location), request.scope)


def make_application(title: str, *, guard: Guard, guarded: str, **more: Any) -> FastAPI:
    """Return a new application without routes. FastAPI gets the options in `more`.

    `guard` is called for unknown paths below `guarded`, so that a client without a key cannot find out which
    paths exist. Routes call it themselves, as a dependency.
    """

    async def on_http_exception(request: Request, error: Exception) -> Response:
        try:
            if request.scope["path"].startswith(guarded):
                await guard(request)
        except ApiError as refusal:
            return error_response(refusal, request.scope)
        return await _on_error(request, error)

    handled = (ApiError, RequestValidationError, RecursionError, Exception)
    return FastAPI(
        title=title,
        version=importlib.metadata.version("mambaserve"),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_url=None,  # `publish` serves the corrected document
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        exception_handlers={**dict.fromkeys(handled, _on_error), HTTPException: on_http_exception},
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        **more,
    )


def publish(
    app: FastAPI,
    *,
    key_needed: bool = True,
    events: Mapping[str, type[BaseModel]] | None = None,
    bodies: Mapping[str, type[BaseModel]] | None = None,
    examples: Mapping[str, Examples] | None = None,
) -> Callable[[str], str]:
    """Serve `/openapi.json` and `/docs`, and HEAD for every GET. All routes have to be there already.

    The OpenAPI document is created at the first request for it, in a thread: this takes a quarter of a
    second, and few clients need the document.

    Args:
        app: the application with all its routes.
        key_needed: whether the guarded routes refuse clients without a key.
        events: for paths that can answer with server-sent events, the model of an event's data.
        bodies: for paths whose route does not read the body itself, the model of the body.
        examples: for paths that take a body, example bodies.

    Returns:
        A function from a path to its label in counters: its route, or "other" for a path that does not exist.
    """
    encoded: list[bytes] = []
    lock = threading.Lock()

    def document() -> bytes:
        with lock:
            if not encoded:
                described = openapi_document(
                    app, events or {}, bodies or {}, examples or {}, key_needed=key_needed
                )
                encoded.append(msgspec.json.encode(described))
        return encoded[0]

    async def openapi() -> Response:
        return JsonResponse(encoded[0] if encoded else await asyncio.to_thread(document))

    app.add_api_route(
        "/openapi.json", openapi, operation_id="openapi", summary="This document", response_model=Document
    )
    add_docs_page(app)
    for route in app.routes:
        methods: set[str] | None = getattr(route, "methods", None)
        if methods and "GET" in methods:
            methods.add("HEAD")
    return _route_labels(app)


def _route_labels(app: FastAPI) -> Callable[[str], str]:
    formats: list[str] = [getattr(route, "path_format", "") for route in app.routes]
    plain = frozenset(path for path in formats if "{" not in path)
    # Only a last part is ever a parameter here.
    below = [(path.partition("{")[0], path) for path in formats if "{" in path]

    def label(path: str) -> str:
        if path in plain:
            return path
        return next((route for prefix, route in below if path.startswith(prefix)), "other")

    return label
