"""Help of a command on a narrow terminal: panels become headings, and names are never cut."""

from typing import Any

from typer.core import TyperCommand

NARROW = 130
"""Width in columns of the widest table of the rich help that cuts no name."""
_INDENT = 14
"""Indent of the descriptions, in columns."""


class CommandWithPanels(TyperCommand):
    """A command whose plain help groups the options as the rich help does."""

    def format_options(self, context: Any, formatter: Any) -> None:
        """Write the options by panel; descriptions begin on the line after a long option."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if (row := parameter.get_help_record(context)) is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=_INDENT)
