"""From the bytes of a request to a validated model, or to the error that says which field is wrong.

Used by every endpoint that takes a body. The size is checked while the body arrives; parsing refuses NaN,
broken UTF-8 and endless nesting.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request
from starlette.types import Receive

from mamba_server.api.errors import BodyTimeout, BodyTooLarge, InvalidRequest, UnsupportedMediaType
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

Model = TypeVar("Model", bound=BaseModel)
BODY_SECONDS = 60.0


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def read_body(request: Request, receive: Receive, limit: int, seconds: float = BODY_SECONDS) -> bytes:
    """The whole body. Raises BodyTooLarge, BodyTimeout, UnsupportedMediaType or ClientGone."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(f"the body must be application/json, not {kind[:80]!r}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:18]) > limit:
        raise BodyTooLarge(f"the body has {length[:18]} bytes; at most {limit} are accepted")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > limit:
                    raise BodyTooLarge(f"the body has more than {limit} bytes; no more are accepted")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive within {seconds:g} s") from error


def parse_json_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest saying where the JSON breaks."""
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return raw


def validate(model: type[Model], raw: dict[str, Any]) -> Model:
    """The request. Unknown fields are ignored and logged. Raises InvalidRequest with `param`."""
    unknown = [name for name in raw if name not in model.model_fields]
    if unknown:
        log.warning("unknown_fields_ignored", fields=[name[:64] for name in unknown[:16]], count=len(unknown))
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from error


def invalid(errors: Sequence[ErrorDetails]) -> InvalidRequest:
    """One clear error out of pydantic's list: of the first field, the most specific complaint."""
    field = errors[0]["loc"][:1]
    worst = max((item for item in errors if item["loc"][:1] == field), key=_depth)
    param = param_of(worst["loc"])
    message = worst["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if worst["type"] == "missing":
        message, code = "is required", "missing_required_parameter"
    else:
        code = "invalid_type" if worst["type"].endswith("_type") else "invalid_value"
    named, separator, _ = message.partition(":")
    if param is None and separator and named.isidentifier():
        return InvalidRequest(message, param=named, code=code)
    if param is None:
        return InvalidRequest(message, code=code)
    if separator and named.isidentifier() and "." not in param:
        param = f"{param}.{named}" if param.endswith("]") else param
        return InvalidRequest(f"{param}:{message.partition(':')[2]}", param=param, code=code)
    return InvalidRequest(f"{param}: {message}", param=param, code=code)


def _depth(error: ErrorDetails) -> tuple[int, bool, int]:
    """How far validation of a union's branch came: the one that came furthest is the one that was meant."""
    places = [part for part in error["loc"] if isinstance(part, int)]
    return len(error["loc"]), not error["type"].endswith("_type"), places[-1] if places else -1


_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "constrained"})


def param_of(loc: tuple[int | str, ...]) -> str | None:
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
