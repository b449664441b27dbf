"""Commands that the pages tell a reader to type, taken out of the pages' shell blocks."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "charts", "observability", "manifests")
LEFT_OUT = ("docs/notes/", "docs/adr/", "docs/reference/command-line.md")
"""Records of what was, and the page that is generated from the commands themselves."""
BLOCK = re.compile(r"^( *)```(sh|bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = {"|", "&&", ";", "&", "||"}


class DocumentedCommand(NamedTuple):
    """One program with its arguments, as a page tells a reader to type it."""

    page: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Return the name of the program, without its folder."""
        return self.words[0].rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def pages() -> list[Path]:
    """Return every page that describes the project as it is."""
    every = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    return sorted(page for page in every if not str(page.relative_to(ROOT)).startswith(LEFT_OUT))


def documented_commands() -> list[DocumentedCommand]:
    """Return the commands of all pages, in their order."""
    return [command for page in pages() for command in commands_of(page)]


def commands_of(page: Path) -> Iterator[DocumentedCommand]:
    """Yield the commands of one page; both sides of a pipe and of `&&` are commands of their own."""
    name = str(page.relative_to(ROOT))
    for indent, language, text in BLOCK.findall(page.read_text()):
        block = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        for line in _lines(block, prompts=language == "console"):
            for words in _simple(line):
                yield DocumentedCommand(name, tuple(words))


def _lines(block: str, *, prompts: bool) -> Iterator[str]:
    """Yield whole command lines: continued ones joined, and of a screen only what stands behind a prompt."""
    waiting = ""
    for line in block.splitlines():
        if not waiting and prompts:
            if not re.match(r"[$#] ", line):
                continue
            line = line[2:]
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
            continue
        try:
            shlex.split(waiting, comments=True)
        except ValueError:  # a quotation or a pipe goes on in the next line
            waiting += "\n"
            continue
        if waiting.rstrip().endswith("|"):
            continue
        yield waiting
        waiting = ""
    assert not waiting, waiting


def _simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in ENDS:
            if words:
                yield words
            words = []
        elif words or not re.match(r"[A-Z_]+=", word):
            words.append(word)
    if words:
        yield words
