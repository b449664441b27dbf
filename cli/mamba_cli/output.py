"""The forms in which commands show what they found: a table for people, one document for programs."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class OutputFormat(StrEnum):
    """What `--output` may be."""

    table = "table"
    json = "json"
    yaml = "yaml"


def print_document(document: Mapping[str, Any] | Sequence[Any], output: OutputFormat) -> None:
    """`document` alone on standard output, as JSON or YAML; keys keep their order."""
    import typer

    if output is OutputFormat.json:
        import json

        typer.echo(json.dumps(document, indent=2))
    else:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
