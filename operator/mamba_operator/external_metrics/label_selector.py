"""Label selectors as the Kubernetes API writes them in `labelSelector`. Pure."""

import re
from collections.abc import Callable, Mapping

Labels = Mapping[str, str]
Requirement = Callable[[Labels], bool]

_KEY = r"(?P<key>(?:[A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"{_KEY}\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(rf"{_KEY}\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})")
_EXISTS = re.compile(rf"(?P<not>!\s*)?{_KEY}")
_COMMAS = re.compile(r",(?![^(]*\))")
LONGEST = 4096


class SelectorInvalid(ValueError):
    """The text is no label selector; the message says which part."""


def selector(text: str) -> Requirement:
    """Whether labels are selected. Raises SelectorInvalid."""
    if len(text) > LONGEST:
        raise SelectorInvalid(f"a label selector of {len(text)} characters is too long")
    parts = [part.strip() for part in _COMMAS.split(text)] if text.strip() else []
    requirements = [_requirement(part) for part in parts]
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(part: str) -> Requirement:
    if found := _SET.fullmatch(part):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise SelectorInvalid(f"label selector: {part!r}")
        if found["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.fullmatch(part):
        key, value = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.fullmatch(part):
        key, wanted = found["key"], found["not"] is None
        return lambda labels: (key in labels) is wanted
    raise SelectorInvalid(f"label selector: {part!r}")
