"""The page of symptoms: what it quotes is what the product says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/howto/troubleshoot.md").read_text()
SAID_ELSEWHERE = {"mambaserve", "kernels=torch"}
"""The name of a command, and a word of the ready line, which a logger joins."""


def test_each_message_that_the_page_quotes_is_one_of_the_product() -> None:
    symptoms = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    quoted = {text for symptom in symptoms for text in re.findall(r"`([^`]+)`", symptom)} - SAID_ELSEWHERE
    assert len(quoted) > 10
    folders = ("libs", "operator", "server", "cli")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [text for text in sorted(quoted) if not any(text in source for source in sources)] == []
