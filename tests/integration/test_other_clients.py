"""Client libraries of other projects, unmodified, against a live server of the shipped model.

They have an environment of their own, which `make clients` makes and names in MAMBASERVE_CLIENTS.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from other_clients import LIBRARIES
from servers import Server

PYTHON = os.environ.get("MAMBASERVE_CLIENTS", "")
PROGRAM = Path(__file__).parents[1] / "support" / "other_clients.py"
TEXTS = ("text", "streamed", "claude", "responses")
pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(not PYTHON, reason="the client libraries are not installed: make clients"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server("builtin://tiny-recall") as running:
        yield running.url


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_library_understands_every_answer(url: str, library: str) -> None:
    arguments = [PYTHON, str(PROGRAM), library, url, "tiny-recall"]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    for name, answer in answers.items():
        if name in TEXTS:
            assert answer == "OK.", name
        elif name == "vectors":
            assert answer == 2
        else:
            assert set(answer) == {"name", "shade"}, name
