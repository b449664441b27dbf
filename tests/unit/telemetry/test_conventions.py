"""Names that OpenTelemetry has are its own, letter by letter."""

import re
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes, http_attributes

from mamba_telemetry import conventions

OURS = "mambaserve."
ROOT = Path(conventions.__file__).parents[2]


def test_attributes_are_those_of_the_conventions_or_have_our_prefix() -> None:
    standard = {
        value
        for module in (gen_ai, error_attributes, http_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    dotted = {
        value
        for name, value in vars(conventions).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    spans = {value for value in dotted if value.split(".")[0] in ("gateway", "api", "engine")}
    foreign = {value for value in dotted - spans if value not in standard and not value.startswith(OURS)}
    assert foreign == set()
    assert len(dotted & standard) > 10


def test_every_name_is_said_by_somebody() -> None:
    used = {
        name
        for folder in ("libs", "server")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(conventions.__file__)
        for name in re.findall(r"\.([A-Z][A-Z_0-9]*)\b", path.read_text())
    }
    assert [name for name in vars(conventions) if name.isupper() and name not in used] == []


def test_no_name_stands_for_two_things() -> None:
    values = [value for name, value in vars(conventions).items() if name.isupper()]
    assert len(values) == len(set(values))
