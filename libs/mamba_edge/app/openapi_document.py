"""The OpenAPI document of an application, as our servers publish it.

FastAPI describes the routes. `openapi_document` corrects what does not hold for our servers and adds the
models of errors, of events and of bodies that FastAPI does not read itself. `publish` in `application` serves
the document.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from mamba_api.dialects.routes import ROUTES
from mamba_api.openai import ErrorEnvelope
from mamba_api.openai_examples import Examples

Document = dict[str, Any]
_GROUPS = (
    (
        "Generation",
        "Answers of the model.",
        ("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/conversations"),
    ),
    (
        "Texts",
        "Vectors, likeness and tokens of texts.",
        ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/tokenize", "/detokenize"),
    ),
    ("Models", "What is served.", ("/v1/models", "/v1/tokenizer")),
    ("State", "What engines and gateways do.", ("/v1/", "/metrics")),
    ("Administration", "For operators of the server.", ("/admin/",)),
    ("Process", "Probes, version and this document.", ("/",)),
)
"""Name, description and path prefixes of each group. A path belongs to the first group with a matching
prefix."""


def openapi_document(
    app: FastAPI,
    events: Mapping[str, type[BaseModel]],
    bodies: Mapping[str, type[BaseModel]],
    examples: Mapping[str, Examples],
    *,
    key_needed: bool,
) -> Document:
    """Return the OpenAPI document of the routes of `app`.

    FastAPI's 422 and its models are removed: invalid requests get 400 here. HEAD is left out, since every GET
    implies it.

    Args:
        app: the application.
        events: model of the data of a server-sent event, by the path that sends the events.
        bodies: model of the request body, by path.
        examples: example bodies, by path.
        key_needed: False leaves the demand for an API key out of the document.
    """
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=[_without_head(route) for route in app.routes],
    )
    # Relative to the document's own address, so that requests keep the path prefix that a proxy strips.
    document["servers"] = [{"url": "."}]
    schemas = _with_errors(document)
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            if not key_needed:
                operation.pop("security", None)
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    if not key_needed:
        # A page that shows the document would ask for a key that does not exist.
        document["components"].pop("securitySchemes", None)
    _tag_operations(document)
    for path, model in events.items():
        _add_schemas(schemas, model, "serialization")
        for operation in document["paths"][path].values():
            operation["responses"]["200"]["content"]["text/event-stream"] = _event_of(path, model)
    for path, model in bodies.items():
        _add_schemas(schemas, model, "validation")
        body = {"schema": _ref_to(model)}
        operation = document["paths"][path]["post"]
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    for path, named in examples.items():
        for operation in document["paths"][path].values():
            operation["requestBody"]["content"]["application/json"]["examples"] = dict(named)
    return document


def error_content(model: type[BaseModel]) -> Document:
    """Return the content of an error answer whose body is a `model`, which is the envelope of a dialect.

    FastAPI would compile a validator for every error answer of every route if the answers named the model:
    that took half of the time in which an application is created.
    """
    return {"application/json": {"schema": _ref_to(model)}}


def _ref_to(model: type[BaseModel]) -> Document:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _with_errors(document: Document) -> Document:
    """Add the envelopes that error answers refer to, and return the schemas of `document`, sorted by name."""
    schemas: Document = document.setdefault("components", {}).setdefault("schemas", {})
    contents = [
        content.get("schema")
        for path in document["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
    ]
    envelopes: list[type[BaseModel]] = [ErrorEnvelope, *(route.error for route in ROUTES.values())]
    for model in dict.fromkeys(envelopes):
        if _ref_to(model) in contents:
            _add_schemas(schemas, model, "serialization")
    schemas = document["components"]["schemas"] = dict(sorted(schemas.items()))
    return schemas


def _without_head(route: BaseRoute) -> BaseRoute:
    if isinstance(route, APIRoute):
        route = copy(route)
        route.methods = (route.methods or set()) - {"HEAD"}
    return route


def _add_schemas(
    schemas: Document, model: type[BaseModel], mode: Literal["validation", "serialization"]
) -> None:
    (_, more) = models_json_schema([(model, mode)], ref_template="#/components/schemas/{model}")
    for name, schema in more.get("$defs", {}).items():
        schemas.setdefault(name, schema)


def _event_of(path: str, model: type[BaseModel]) -> Document:
    ref = _ref_to(model)
    if not ROUTES[path].ends_with_done:
        text = f"JSON of a {model.__name__}"
        data: Document = {"type": "string", "description": text, "contentMediaType": "application/json"}
        properties = {"event": {"type": "string"}, "data": {**data, "contentSchema": ref}}
        return {"itemSchema": {"type": "object", "properties": properties, "required": ["data"]}}
    refs: list[Document] = [ref, {"$ref": "#/components/schemas/ErrorEnvelope"}]
    data = {
        "type": "string",
        "description": f"JSON of a {model.__name__}, or of an ErrorEnvelope; of the last event: `[DONE]`",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [*refs, {"const": "[DONE]"}]},
    }
    return {"itemSchema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}


def _tag_operations(document: Document) -> None:
    """Give each operation of `document` the tag of its group, and list the groups that are used."""
    used: set[str] = set()
    for path, operations in document["paths"].items():
        name = next(name for name, _, prefixes in _GROUPS if path.startswith(prefixes))
        used.add(name)
        for operation in operations.values():
            operation["tags"] = [name]
    document["tags"] = [
        {"name": name, "description": description} for name, description, _ in _GROUPS if name in used
    ]
