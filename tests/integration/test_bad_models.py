"""`mambaserve serve` on damaged or foreign model directories: one clear message, exit code 2, no server."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prefork import FORK_SERVER
from testmodels.checkpoints import random_nemotron_h


def serve(directory: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = ["serve", "--model", str(directory), "--port", "0", *arguments]
    return FORK_SERVER.run("-m", "mamba_cli", *given, env=os.environ, warm=True)


def change_config(**fields: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def remove_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def truncate_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def add_tokens_beyond_the_embeddings(directory: Path) -> None:
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    last = content["added_tokens"][-1]
    content["added_tokens"] += [
        {**last, "id": last["id"] + extra, "content": f"<|extra {extra}|>"} for extra in range(1, 11)
    ]
    path.write_text(json.dumps(content))


CASES = [
    (remove_weights, ["safetensors"]),
    (truncate_weights, ["model.safetensors", "truncated"]),
    (
        change_config(model_type="gpt2", architectures=["GPT2LMHeadModel"]),
        ["config.json", "gpt2", "nemotron_h"],
    ),
    (change_config(hidden_size=52), ["embeddings.weight", "52"]),
    (add_tokens_beyond_the_embeddings, ["tokenizer.json", "264"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "named"), CASES, ids=lambda each: getattr(each, "__name__", "-"))
def test_a_damaged_model_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], None], named: list[str]
) -> None:
    directory = random_nemotron_h(tmp_path / "model")
    damage(directory)
    ended = serve(directory)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, ended.stderr
    message = " ".join(ended.stderr[ended.stderr.index("error:") :].split())
    for word in named:
        assert word in message, message


@pytest.mark.slow
def test_a_directory_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    ended = serve(tmp_path / "nowhere")
    assert ended.returncode == 2
    assert "nowhere" in ended.stderr


@pytest.mark.slow
def test_an_arena_too_small_for_one_sequence_is_refused_with_the_numbers(tmp_path: Path) -> None:
    ended = serve(random_nemotron_h(tmp_path / "model"), "--arena-bytes", "64Ki")
    assert ended.returncode == 3, ended.stderr
    assert "64.0Ki" in ended.stderr or "Ki" in ended.stderr
