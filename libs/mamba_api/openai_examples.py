"""`request_examples`: bodies of requests that can be sent as they are, for the OpenAPI documents. Pure."""

from collections.abc import Mapping
from typing import Any

Examples = Mapping[str, Mapping[str, Any]]
"""OpenAPI example objects, each with a summary and a value, by name."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}


def request_examples(model: str | None = None) -> dict[str, Examples]:
    """Return examples of requests by path. `model` is the model that they name; None = they name none."""
    named = {} if model is None else {"model": model}

    def asks(text: str, **more: Any) -> dict[str, Any]:
        return {**named, "messages": [{"role": "user", "content": text}], "max_tokens": 100, **more}

    question = "What is the capital of Norway?"
    return {
        "/v1/chat/completions": {
            "question": {"summary": "A question", "value": asks(question)},
            "stream": {
                "summary": "The answer as a stream of events",
                "value": asks(question, stream=True, stream_options={"include_usage": True}),
            },
            "schema": {
                "summary": "An answer that follows a JSON schema",
                "value": asks(
                    question,
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "place", "schema": _SCHEMA, "strict": True},
                    },
                ),
            },
            "tools": {
                "summary": "A tool that has to be called; the model's chat template must take tools",
                "value": asks(
                    "Do I need an umbrella in Oslo?", tools=[_TOOL], tool_choice="required", max_tokens=200
                ),
            },
        },
        "/v1/messages": {
            "question": {"summary": "A question", "value": asks(question)},
            "stream": {"summary": "The answer as a stream of events", "value": asks(question, stream=True)},
        },
        "/v1/messages/count_tokens": {
            "question": {"summary": "A question", "value": {**named, "messages": asks(question)["messages"]}},
        },
        "/v1/responses": {
            "question": {
                "summary": "A question",
                "value": {**named, "input": question, "max_output_tokens": 100},
            },
            "stream": {
                "summary": "The answer as a stream of events",
                "value": {**named, "input": question, "max_output_tokens": 100, "stream": True},
            },
        },
        "/v1/completions": {
            "text": {
                "summary": "A text to continue",
                "value": {**named, "prompt": "The capital of Norway is", "max_tokens": 16},
            },
            "stream": {
                "summary": "The continuation as a stream of events",
                "value": {**named, "prompt": "The capital of Norway is", "max_tokens": 16, "stream": True},
            },
        },
        "/v1/embeddings": {
            "texts": {
                "summary": "The vectors of two texts",
                "value": {**named, "input": ["A cup of tea", "A cup of coffee"]},
            },
        },
        **dict.fromkeys(("/v1/rerank", "/v2/rerank"), _ranked(named)),
        "/v1/score": {
            "pairs": {
                "summary": "The likeness of a text to each of two others",
                "value": {**named, "text_1": "A cup of tea", "text_2": ["A pot of tea", "A bicycle"]},
            },
        },
        "/tokenize": {
            "text": {"summary": "The tokens of a text", "value": {**named, "prompt": question}},
            "chat": {
                "summary": "The tokens of a conversation",
                "value": {**named, "messages": asks(question)["messages"]},
            },
        },
        "/detokenize": {
            "tokens": {"summary": "The text of tokens", "value": {**named, "tokens": [1, 2, 3]}},
        },
    }


def _ranked(named: dict[str, str]) -> Examples:
    documents = ["A bicycle", "A pot of tea", "A cup of coffee"]
    return {
        "documents": {
            "summary": "The two documents most like a query",
            "value": {**named, "query": "A cup of tea", "documents": documents, "top_n": 2},
        },
    }
