"""The page on agents: its programs run as they stand, by the official clients, with the shipped model."""

import re
from pathlib import Path
from typing import Any

from servers import Server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/agents.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
URL = "http://127.0.0.1:8000"


def test_each_program_of_the_page_runs_after_those_before_it(capsys: Any) -> None:
    names: dict[str, Any] = {}
    with Server("builtin://tiny-recall") as running:
        for program in PROGRAMS:
            exec(program.replace(URL, running.url), names)
        names["client"].close()
        names["agent"].close()
    assert URL in PROGRAMS[0]
    assert len(PROGRAMS) == 5
    assert "product=" in capsys.readouterr().out
    assert isinstance(names["answer"].choices[0].message.parsed, names["Ticket"])
    roles = [message["role"] for message in names["messages"]]
    assert roles[:3] == ["user", "assistant", "tool"]
    assert names["reply"].usage.output_tokens > 0
    assert "degrees" in names["messages"][2]["content"]
