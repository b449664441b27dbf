"""The part of a JSON schema that an answer is made to follow. Pure."""

from typing import Any

KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keys whose values are no schemas."""


def followed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without formats that are not known: by the specification a `format` is an annotation, and
    generators write many of their own. Raises ValueError where it is nested too deeply."""
    try:
        made: dict[str, Any] = _without_formats(schema, named=False)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    return made


def _without_formats(value: Any, *, named: bool) -> Any:
    """`named`: the keys are names of properties or definitions."""
    if isinstance(value, list):
        return [_without_formats(each, named=False) for each in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, inner in value.items():
        if not named and key == "format" and isinstance(inner, str) and inner not in KNOWN_FORMATS:
            continue
        if not named and key in _VALUES:
            made[key] = inner
        else:
            names = not named and key in ("properties", "patternProperties", "$defs", "definitions")
            made[key] = _without_formats(inner, named=names)
    return made
