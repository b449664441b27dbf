"""Where `mambaserve session` looks for an engine's admin server."""

import json
import os
from pathlib import Path

import pytest

from mamba_cli.errors import InvalidInput
from mamba_cli.sessions.admin_calls import admin_urls

UP, ADMIN = "http://127.0.0.1:8000", "http://127.0.0.1:40001"


@pytest.fixture(autouse=True)
def _served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record that this process is an `up` which serves `chat` with one engine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "mambaserve"
    folder.mkdir(mode=0o700)
    born = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    served = {"name": "chat", "file": "/a.yaml", "url": UP, "port": 8000, "admin_urls": [ADMIN]}
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"born": born, "deployments": [served]}))


@pytest.mark.parametrize(
    ("target", "urls"),
    [
        ("chat", [ADMIN]),
        (UP, [ADMIN]),
        (f"{UP}/v1/", [ADMIN]),
        # An engine that somebody serves: its admin server has the next port, or it is the admin URL itself.
        ("http://127.0.0.1:9000", ["http://127.0.0.1:9000", "http://127.0.0.1:9001"]),
        ("http://[::1]:9000", ["http://[::1]:9000", "http://[::1]:9001"]),
        # The next port of another machine is nobody's business.
        ("https://engine.example:9000", ["https://engine.example:9000"]),
    ],
)
def test_a_target_stands_for_the_admin_servers_behind_it(target: str, urls: list[str]) -> None:
    assert admin_urls(target) == urls


def test_a_name_that_nothing_serves_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        admin_urls("nobody")
