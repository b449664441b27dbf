"""From pydantic's complaints about a request to the one error that says which field is wrong. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mamba_edge.errors import InvalidRequest

Loc = tuple[int | str, ...]
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "constrained"})


def invalid(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """One clear error out of a list of pydantic's (`loc` as in the body): of the first field, the most
    specific complaint."""
    field = errors[0]["loc"][:1]
    worst = max((item for item in errors if item["loc"][:1] == field), key=_depth)
    param = param_of(worst["loc"])
    message = _of_branches([item for item in errors if param_of(item["loc"]) == param]) or _said(worst)
    code = "invalid_type" if worst["type"].endswith("_type") else "invalid_value"
    if worst["type"] in ("missing", "missing_part"):
        code = "missing_required_parameter"
    named, separator, _ = message.partition(":")
    if param is None and separator and named.isidentifier():
        return InvalidRequest(message, param=named, code=code)
    if param is None:
        return InvalidRequest(message, code=code)
    if separator and named.isidentifier() and "." not in param:
        param = f"{param}.{named}" if param.endswith("]") else param
        return InvalidRequest(f"{param}:{message.partition(':')[2]}", param=param, code=code)
    return InvalidRequest(f"{param}: {message}", param=param, code=code)


def _said(error: Mapping[str, Any]) -> str:
    """Pydantic's words, or ours where those speak of Python."""
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
    said: str = error["msg"]
    return said.removeprefix("Value error, ").replace("Input should be", "must be")


def _of_branches(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """All types that one place may have, where it has none of them: each branch of a union tells its own."""
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
    """How far validation of a union's branch came: the one that came furthest is the one that was meant."""
    places = [part for part in error["loc"] if isinstance(part, int)]
    return len(error["loc"]), not error["type"].endswith("_type"), places[-1] if places else -1


def param_of(loc: Loc) -> str | None:
    """`messages[0].content` out of pydantic's location, which also names branches of unions."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not path:
            path = part
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}"
    return path or None
