"""Reduces a JSON schema to the part that a grammar can enforce, and names the keys it leaves out. Pure."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LEFT_OUT_HEADER = "X-Mambaserve-Form-Left-Out"
"""Response header that names the keys of the form which the answer was not made to follow."""
KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
NOT_ENFORCED = frozenset(
    (
        "uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "not", "if", "then", "else",
    )
)  # fmt: skip
"""Keys that a grammar cannot enforce. A schema without them still allows every value that it allowed."""
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keys whose values are not schemas."""
_NAMED_SCHEMAS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keys whose values map names to schemas."""
_NO_CONSTRAINTS = {"uniqueItems": (False,), "propertyNames": (True, {}, {"type": "string"})}
"""Values with which a key of `NOT_ENFORCED` demands nothing."""
_JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space of JSON is fixed: a model that may add white space might add it without end."""
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


class FormLimits:
    """Collects which keys of one form are not followed; says whether `oneOf` branches may overlap."""

    def __init__(self, *, overlaps: bool = False) -> None:
        """Start without keys. `overlaps`: treat `oneOf` as `anyOf`, because its branches overlap."""
        self.left_out: set[str] = {"oneOf"} if overlaps else set()
        self.style: JsonCompileOptions = {**_JSON_STYLE, "coerce_one_of": overlaps}

    def leave_out(self, name: str, *, strict: bool) -> None:
        """Record that a key is not enforced. Raises ValueError if the schema is strict."""
        if strict:
            raise ValueError(
                f"{name!r} cannot be enforced, and the schema is strict; leave it out, or send "
                f"'strict': false to have it ignored and named in the header {LEFT_OUT_HEADER}"
            )
        self.left_out.add(name)


def enforceable_schema(schema: dict[str, Any], limits: FormLimits, *, strict: bool = False) -> dict[str, Any]:
    """Return the schema without keys that cannot be enforced and without unknown formats.

    By the specification a `format` is an annotation, and generators write many of their own. Raises
    ValueError if the schema is nested too deeply, or if it is strict and a key cannot be enforced.
    """

    def follow(value: Any, *, named: bool) -> Any:
        """Reduce a part of the schema. `named`: its keys are names of properties or definitions."""
        if isinstance(value, list):
            return [follow(item, named=False) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, inner in value.items():
            if named:
                kept[key] = follow(inner, named=False)
            elif key in _VALUES:
                kept[key] = inner
            elif not _leave_out(key, inner, limits, strict=strict):
                kept[key] = follow(inner, named=key in _NAMED_SCHEMAS)
        return kept

    try:
        kept: dict[str, Any] = follow(schema, named=False)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    return kept


def _leave_out(key: str, value: Any, limits: FormLimits, *, strict: bool) -> bool:
    """Leave a key of a schema out if it cannot be enforced, and return whether it was left out."""
    if key == "format":
        return isinstance(value, str) and value not in KNOWN_FORMATS
    if key not in NOT_ENFORCED and not (key == "pattern" and _looks_around(value)):
        return False
    if value not in _NO_CONSTRAINTS.get(key, ()):
        limits.leave_out(key, strict=strict)
    return True


def _looks_around(pattern: Any) -> bool:
    """Return whether an expression has lookaround: `(?=`, `(?!`, `(?<=`, `(?<!`, `\\b`, `\\B`."""
    if not isinstance(pattern, str):
        return False
    place, in_class = 0, False
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            if not in_class and pattern[place + 1 : place + 2] in ("b", "B"):
                return True
            place += 1
        elif char == "]":
            in_class = False
        elif char == "[":
            in_class = True
        elif not in_class and pattern.startswith(_LOOKAROUND, place):
            return True
        place += 1
    return False
