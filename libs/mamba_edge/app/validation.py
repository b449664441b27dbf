"""Turns pydantic's errors about a request into the one error that names the wrong field. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from mamba_edge.errors import InvalidRequest

Loc = tuple[int | str, ...]
Body = TypeVar("Body")
Chat = TypeVar("Chat")
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "constrained"})


def invalid(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the one error that a client gets for all that pydantic reports about its request.

    `errors` are pydantic's, with `loc` as in the body. The result is about the field of the first of them,
    and is the most specific one for that field.
    """
    field = errors[0]["loc"][:1]
    worst = max((item for item in errors if item["loc"][:1] == field), key=_depth)
    param = param_of(worst["loc"])
    same_place = [item for item in errors if param_of(item["loc"]) == param]
    message = _union_message(same_place) or _message_of(worst)
    code = "invalid_type" if worst["type"].endswith("_type") else "invalid_value"
    if worst["type"] in ("missing", "missing_part"):
        code = "missing_required_parameter"
    name, separator, _ = message.partition(":")
    if param is None and separator and name.isidentifier():
        return InvalidRequest(message, param=name, code=code)
    if param is None:
        return InvalidRequest(message, code=code)
    if separator and name.isidentifier() and "." not in param:
        param = f"{param}.{name}" if param.endswith("]") else param
        return InvalidRequest(f"{param}:{message.partition(':')[2]}", param=param, code=code)
    return InvalidRequest(f"{param}: {message}", param=param, code=code)


def translated(translate: Callable[[Body], Chat], body: Body) -> Chat:
    """Return what `translate` returns for a validated body.

    Raises InvalidRequest where `translate` refuses it.
    """
    try:
        return translate(body)
    except ValidationError as error:
        raise invalid(error.errors()) from None


def _message_of(error: Mapping[str, Any]) -> str:
    """Return pydantic's message, or another where pydantic's speaks of Python."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "there is no such field"
        case "too_short" | "string_too_short" if limits["min_length"] == 1:
            return "must not be empty"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be an object"
        case "too_long":
            return f"must have at most {limits['max_length']} items"
        case "string_too_long":
            return f"must have at most {limits['max_length']} characters"
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _union_message(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a message that lists all types that one field may have.

    Each branch of a union reports its own type. The result is None if an error of `errors` is not about the
    type.
    """
    begin = "Input should be a valid "
    kinds = [
        error["msg"].removeprefix(begin)
        for error in errors
        if error["type"].endswith("_type") and error["msg"].startswith(begin)
    ]
    *others, last = dict.fromkeys(kinds or [""])
    if len(kinds) < len(errors) or not others:
        return None
    return f"must be a valid {', '.join(others)} or {last}"


def _depth(error: Mapping[str, Any]) -> tuple[int, bool, int]:
    """Return a sort key, which is largest for the error of the union's branch that was read furthest.

    That branch is taken for the one that the client intended.
    """
    places = [part for part in error["loc"] if isinstance(part, int)]
    return len(error["loc"]), not error["type"].endswith("_type"), places[-1] if places else -1


def param_of(loc: Loc) -> str | None:
    """Return a path such as `messages[0].content` for pydantic's location; None for the whole body.

    Branches of unions, which pydantic names too, are left out.
    """
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not path:
            path = part
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}"
    return path or None
