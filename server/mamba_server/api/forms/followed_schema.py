"""The part of a JSON schema that an answer is made to follow, and the names of what it leaves out. Pure."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LEFT_OUT_HEADER = "X-Mambaserve-Form-Left-Out"
"""Of an answer: the keys of its form that it was not made to follow."""
KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
NOT_ENFORCED = frozenset(
    (
        "uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "not", "if", "then", "else",
    )
)  # fmt: skip
"""Keys that no grammar follows, and without which a schema allows all that it allowed, and more."""
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keys whose values are no schemas."""
_ASK_FOR_NOTHING = {"uniqueItems": (False,), "propertyNames": (True, {}, {"type": "string"})}
_JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space of JSON has one place: a model that may add more of it might add it for ever."""
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


class FormLimits:
    """What may be left out of one form, and what was."""

    def __init__(self, *, overlaps: bool = False) -> None:
        """`overlaps`: branches of `oneOf` that cannot be told apart are those of `anyOf`."""
        self.left_out: set[str] = {"oneOf"} if overlaps else set()
        self.style: JsonCompileOptions = {**_JSON_STYLE, "coerce_one_of": overlaps}

    def leave_out(self, name: str, *, strict: bool) -> None:
        """Note that a key is not followed. Raises ValueError where the schema is strict."""
        if strict:
            raise ValueError(
                f"{name!r} cannot be enforced, and the schema is strict; leave it out, or send "
                f"'strict': false to have it passed over and named in the header {LEFT_OUT_HEADER}"
            )
        self.left_out.add(name)


def followed(schema: dict[str, Any], limits: FormLimits, *, strict: bool = False) -> dict[str, Any]:
    """The schema without the keys that cannot be enforced, and without formats that are not known: by the
    specification a `format` is an annotation, and generators write many of their own. Raises ValueError where
    the schema is nested too deeply, or strict and something of it cannot be enforced."""

    def of(value: Any, *, named: bool) -> Any:
        """`named`: the keys are names of properties or definitions."""
        if isinstance(value, list):
            return [of(each, named=False) for each in value]
        if not isinstance(value, dict):
            return value
        made = {}
        for key, inner in value.items():
            if not named and key == "format" and isinstance(inner, str) and inner not in KNOWN_FORMATS:
                continue
            if not named and (key in NOT_ENFORCED or (key == "pattern" and _looks_around(inner))):
                if inner not in _ASK_FOR_NOTHING.get(key, ()):
                    limits.leave_out(key, strict=strict)
                continue
            if not named and key in _VALUES:
                made[key] = inner
            else:
                names = not named and key in ("properties", "patternProperties", "$defs", "definitions")
                made[key] = of(inner, named=names)
        return made

    try:
        made: dict[str, Any] = of(schema, named=False)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    return made


def _looks_around(pattern: Any) -> bool:
    """Whether an expression looks around a place: `(?=`, `(?!`, `(?<=`, `(?<!`, `\\b`, `\\B`."""
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
