"""The OpenAPI document of the public server, made from the request and answer models. Pure."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, ErrorEnvelope
from mamba_api.openai_answers import (
    ChatCompletionChunk,
    ChatCompletionResponse,
    CompletionResponse,
    ModelCard,
    ModelList,
    Readiness,
)

_REQUESTS: tuple[type[BaseModel], ...] = (CompletionRequest, ChatCompletionRequest)
_ANSWERS: tuple[type[BaseModel], ...] = (
    CompletionResponse,
    ChatCompletionResponse,
    ChatCompletionChunk,
    ModelList,
    ModelCard,
    Readiness,
    ErrorEnvelope,
)
_GENERATION_ERRORS = {
    400: "The request is wrong; `param` names the field",
    401: "No or a wrong API key",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests wait; see Retry-After",
    500: "A defect of the server",
    503: "Not ready, draining, or the engine was lost; see Retry-After",
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(name)}}}


def _errors(codes: dict[int, str]) -> dict[str, Any]:
    return {str(code): _json("ErrorEnvelope", text) for code, text in codes.items()}


def _generation(summary: str, request: str, answer: str, chunk: str) -> dict[str, Any]:
    told = _json(answer, "The answer, or with `stream` events whose data are chunks, then [DONE]")
    told["content"]["text/event-stream"] = {"schema": {"type": "string"}, "x-event-schema": _ref(chunk)}
    return {
        "post": {
            "summary": summary,
            "operationId": request,
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
            "responses": {"200": told, **_errors(_GENERATION_ERRORS)},
            "security": [{"bearer": []}, {}],
        }
    }


def _get(summary: str, operation: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"get": {"summary": summary, "operationId": operation, "responses": responses, **more}}


def _probe(summary: str, operation: str) -> dict[str, Any]:
    ready, not_ready = _json("Readiness", "Ready"), _json("Readiness", "Loading, restarting or draining")
    return _get(summary, operation, {"200": ready, "503": not_ready})


def document(version: str) -> dict[str, Any]:
    """The document, as plain data."""
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in _REQUESTS]
    modes += [(model, "serialization") for model in _ANSWERS]
    _, schemas = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    plain = {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    anything = {"description": "An object", "content": {"application/json": {"schema": {"type": "object"}}}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    who = _errors({401: "No or a wrong API key"})
    return {
        "openapi": "3.1.0",
        "info": {"title": "mambaserve", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/v1/completions": _generation(
                "Complete a prompt", "CompletionRequest", "CompletionResponse", "CompletionResponse"
            ),
            "/v1/chat/completions": _generation(
                "Answer a conversation",
                "ChatCompletionRequest",
                "ChatCompletionResponse",
                "ChatCompletionChunk",
            ),
            "/v1/models": _get("Served models", "models", {"200": _json("ModelList", "Models"), **who}),
            "/v1/models/{name}": _get(
                "One model",
                "model",
                {"200": _json("ModelCard", "The model"), **_errors({404: "No such model"}), **who},
                parameters=[name],
            ),
            "/health": _probe("Same as /readyz", "health"),
            "/readyz": _probe("Whether requests are welcome", "readyz"),
            "/livez": _get("Whether the process lives", "livez", {"200": anything}),
            "/metrics": _get("Prometheus metrics", "metrics", {"200": plain}),
            "/version": _get("Version of mambaserve", "version", {"200": anything}),
            "/openapi.json": _get("This document", "openapi", {"200": anything}),
        },
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
