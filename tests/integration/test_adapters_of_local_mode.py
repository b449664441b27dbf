"""Adapters of a YAML file under `mambaserve up`: one of a folder, one of a web server, chosen by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import mamba_server
from file_server import file_server
from servers import Command, call
from testmodels.adapters import shapes_in, write_adapter

pytestmark = pytest.mark.slow
assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Start `up` with two adapters, and return the address of its gateway."""
    shapes = shapes_in(TINY, "in_proj", "q_proj", "up_proj")
    for seed, name in enumerate(("sql", "french")):
        write_adapter(tmp_path / name, shapes, seed=seed, size=0.25)
    remote = {f"adapters/french/{path.name}": path.read_bytes() for path in (tmp_path / "french").iterdir()}
    with file_server(remote) as files:
        adapters = [
            {"name": "sql", "uri": "file://./sql"},
            {"name": "french", "uri": f"{files.url}/adapters/french/"},
        ]
        document = {
            "apiVersion": "serving.mambaserve.io/v1alpha1",
            "kind": "MambaDeployment",
            "metadata": {"name": "base"},
            "spec": {
                "model": {"uri": "builtin://tiny-recall", "adapters": adapters},
                "resources": {"gpus": 0},
                "memory": {"arena": "16Mi"},
            },
        }
        file = tmp_path / "base.yaml"
        file.write_text(yaml.safe_dump(document))
        env = {"XDG_RUNTIME_DIR": str(tmp_path), "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
        arguments = ("up", str(file), "--port", "0", "--logs", str(tmp_path), "--no-color")
        with Command(*arguments, env=env) as command:
            command.wait_for("base is ready")
            yield command.wait_for(r"curl (http://[^/]+)/v1")[1]


def test_adapters_of_a_file_and_of_a_web_server_answer_by_their_names(url: str) -> None:
    def ask(model: str) -> tuple[int, Any]:
        body = {
            "model": model, "prompt": WORDS, "max_tokens": 6, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True,
        }  # fmt: skip
        return call(f"{url}/v1/completions", body)

    listed = {card["id"]: card["parent"] for card in call(f"{url}/v1/models")[1]["data"]}
    assert listed == {"base": None, "sql": "base", "french": "base"}
    answers = {model: ask(model) for model in listed}
    assert [status for status, _ in answers.values()] == [200] * 3
    assert [answer["model"] for _, answer in answers.values()] == [*listed]
    assert len({tuple(answer["choices"][0]["token_ids"]) for _, answer in answers.values()}) == 3
    assert ask("nobody")[0] == 404
