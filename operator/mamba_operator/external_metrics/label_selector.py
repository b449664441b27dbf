"""Parser of label selectors in the syntax of the Kubernetes API's `labelSelector`. Pure."""

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
MAX_CHARACTERS = 4096
"""Largest length of a label selector."""


class SelectorInvalid(ValueError):
    """A text that is no label selector; the message names the invalid part."""


def selector(text: str) -> Requirement:
    """Return a predicate of labels for the selector. Raises SelectorInvalid."""
    if len(text) > MAX_CHARACTERS:
        raise SelectorInvalid(f"a label selector of {len(text)} characters is too long")
    parts = [part.strip() for part in _COMMAS.split(text)] if text.strip() else []
    requirements = [_requirement(part) for part in parts]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _requirement(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise SelectorInvalid(f"the label selector has an invalid part: {part!r}")
        if match["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.fullmatch(part):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.fullmatch(part):
        key, must_exist = match["key"], match["not"] is None
        return lambda labels: (key in labels) is must_exist
    raise SelectorInvalid(f"the label selector has an invalid part: {part!r}")
