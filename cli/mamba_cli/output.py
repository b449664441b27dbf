"""Output formats of the commands: a table for people, or one document for programs."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class OutputFormat(StrEnum):
    """Format in which a command prints its result: a value of the option `--output`."""

    table = "table"
    json = "json"
    yaml = "yaml"


def print_document(document: Mapping[str, Any] | Sequence[Any], output: OutputFormat) -> None:
    """Print `document` as JSON or YAML on standard output; keys keep their order."""
    import typer

    if output is OutputFormat.json:
        import json

        typer.echo(json.dumps(document, indent=2))
    else:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
