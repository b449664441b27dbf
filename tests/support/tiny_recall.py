"""The shipped model with another chat template or context, and the official client of its engine."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

from servers import Server

BUILTIN = Path(__file__).parents[2] / "server/mamba_server/builtin/tiny-recall"


def tiny_recall(folder: Path, template: str) -> Path:
    """Copy the model below `folder`."""
    model = folder / "tiny"
    shutil.copytree(BUILTIN, model)
    (model / "chat_template.jinja").write_text(template)
    return model


def longer_tiny_recall(folder: Path, tokens: int) -> Path:
    """Copy the model below `folder`, with a context of `tokens`: it has no position embeddings."""
    model = folder / "tiny"
    shutil.copytree(BUILTIN, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": tokens}))
    return model


@contextmanager
def client_of(model: Path, *options: str) -> Iterator[openai.OpenAI]:
    """Yield a client that tries once; `options`: of `mambaserve serve`."""
    with (
        Server(str(model), "--served-model-name", "tiny", *options) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
