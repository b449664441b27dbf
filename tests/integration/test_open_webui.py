"""Open WebUI, unmodified, in front of a live server of the shipped model: it lists the model and chats.

It has an environment of its own, which `make open-webui` makes; MAMBASERVE_OPEN_WEBUI names its program.
"""

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import wait_until
from servers import Server
from testcluster.free_ports import free_port

PROGRAM = os.environ.get("MAMBASERVE_OPEN_WEBUI", "")
PATIENCES = 10
"""Number of usual waits for Open WebUI, whose start imports and migrates for a minute of a free processor."""
SETTINGS = {
    "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "test", "ENABLE_OLLAMA_API": "False", "OPENAI_API_KEY": "none",
    "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "True", "ANONYMIZED_TELEMETRY": "False", "DO_NOT_TRACK": "True",
}  # fmt: skip
pytestmark = [
    pytest.mark.tools,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PROGRAM, reason="Open WebUI is not installed: make open-webui"),
]


def call(url: str, body: Any = None, token: str = "") -> bytes:
    """Send a request as the pages of Open WebUI do, and return the answer's body."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=120) as answer:
        content: bytes = answer.read()
    return content


def answers(url: str) -> bool:
    try:
        return bool(call(f"{url}/health"))
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def web_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("open-webui")
    port = free_port()
    with Server("builtin://tiny-recall") as server, (folder / "log").open("wb") as log:
        own = {"DATA_DIR": str(folder), "OPENAI_API_BASE_URL": f"{server.url}/v1"}
        command = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command, env={**os.environ, **SETTINGS, **own}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(PATIENCES):
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: answers(url) or process.poll() is not None, "Open WebUI")
                    break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            yield url
        finally:
            process.terminate()
            process.wait(60)


def test_it_lists_the_model_and_chats_whole_and_streamed(web_ui: str) -> None:
    token = json.loads(call(f"{web_ui}/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
    listed = json.loads(call(f"{web_ui}/api/models", token=token))["data"]
    assert [model["id"] for model in listed] == ["tiny-recall"]
    body = {"model": "tiny-recall", "messages": [{"role": "user", "content": "lamp: red"}]}
    whole = json.loads(call(f"{web_ui}/api/chat/completions", {**body, "stream": False}, token))
    assert whole["choices"][0]["message"]["content"] == "OK."
    events = call(f"{web_ui}/api/chat/completions", {**body, "stream": True}, token).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(parts) == "OK."
