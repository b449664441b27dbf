"""Findings as lines for the terminal."""

from rich.text import Text

from mamba_cli.doctor.finding import Finding, Verdict

_WIDTH = 17
_MARKS = {
    Verdict.ok: ("ok", "green"),
    Verdict.note: ("-", "dim"),
    Verdict.warning: ("warning", "yellow"),
    Verdict.broken: ("broken", "bold red"),
}


def finding_line(finding: Finding) -> Text:
    """Return the line of a finding, and below it the cure."""
    word, style = _MARKS[finding.verdict]
    line = Text.assemble((f"{word:8}", style), f"{finding.subject:{_WIDTH}}", finding.text)
    if finding.cure:
        line.append(f"\n{'':8}{'':{_WIDTH}}-> {finding.cure}", style="bold" if style != "dim" else "dim")
    return line
