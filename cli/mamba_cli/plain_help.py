"""The help of a command on a narrow terminal: panels as headings, names and variables never cut."""

from typing import Any

from typer.core import TyperCommand

NARROW = 130
"""Columns that the widest table of the rich help takes without cutting a name."""
_INDENT = 14


class CommandWithPanels(TyperCommand):
    """A command whose plain help has the groups of the rich one."""

    def format_options(self, context: Any, formatter: Any) -> None:
        """Long options have lines of their own, so that what they do has the width."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(context):
            if (row := each.get_help_record(context)) is not None:
                sections.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=_INDENT)
