"""Client libraries of other projects, unmodified, against a live server of the shipped model.

They have environments of their own, which `make clients` makes. MAMBASERVE_CLIENTS names the interpreter of
most, MAMBASERVE_LLAMA_INDEX that of LlamaIndex, which needs another version of the same packages, and
MAMBASERVE_NODE_CLIENTS the folder with the packages of the Vercel AI SDK.
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
LLAMA_INDEX = os.environ.get("MAMBASERVE_LLAMA_INDEX", "")
NODE_CLIENTS = os.environ.get("MAMBASERVE_NODE_CLIENTS", "")
PROGRAM = Path(__file__).parents[1] / "support" / "other_clients.py"
MODEL = "tiny-recall"
TEXTS = ("text", "streamed", "claude", "responses")
pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(not PYTHON, reason="the client libraries are not installed: make clients"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server(f"builtin://{MODEL}") as running:
        yield running.url


def said(*command: str) -> dict[str, Any]:
    """Run a program of clients, and return what it understood."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answers


def assert_understood(answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        if name.partition("_")[0] in TEXTS:
            assert answer == "OK.", name
        elif name == "vectors":
            assert answer == 2
        elif name == "ranked":
            assert answer == [[1, 1.0]]
        else:
            assert set(answer) == {"name", "shade"}, name


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_library_understands_every_answer(url: str, library: str) -> None:
    interpreter = LLAMA_INDEX if library == "llama_index" else PYTHON
    if not interpreter:
        pytest.skip("LlamaIndex is not installed: make clients")
    assert_understood(said(interpreter, str(PROGRAM), library, url, MODEL))


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not NODE_CLIENTS, reason="there is no node for the Vercel AI SDK: make clients")
def test_the_vercel_ai_sdk_understands_every_answer_of_its_four_providers(url: str) -> None:
    answers = said("node", str(PROGRAM.with_suffix(".mjs")), NODE_CLIENTS, url, MODEL)
    assert_understood(answers)
    assert len(answers) == 17
