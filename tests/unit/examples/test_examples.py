"""Every example is valid, explained, and says how to run it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mamba_api.v1alpha1 import pool_deployments
from mamba_api.v1alpha1.documents import load_documents
from mamba_text.chat_template import ChatTemplate
from mamba_text.prompt import encoded_chat
from mamba_text.tokenizer import Tokenizer
from prefork import FORK_SERVER

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "server/mamba_server/builtin/tiny-recall"
FILES = sorted((ROOT / "examples").glob("*/*.yaml"))


def test_there_are_examples() -> None:
    assert len(FILES) >= 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_example_is_a_valid_deployment(file: Path) -> None:
    assert load_documents(file.read_text(), str(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_plan_finds_that_an_example_fits(file: Path) -> None:
    done = FORK_SERVER.run("-m", "mamba_cli", "plan", str(file), "--output", "json", env=dict(os.environ))

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    plans = answer if isinstance(answer, list) else [answer]
    documents = load_documents(file.read_text(), str(file))
    assert len(plans) == sum(len(pool_deployments(document)) for document in documents)
    assert all(one["fits"] for one in plans)


def test_the_index_names_each_example_in_order() -> None:
    index = (ROOT / "examples/README.md").read_text()
    rows = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)/README\.md\) \|", index, re.MULTILINE)
    assert rows == [(name, name) for name in sorted(file.parent.name for file in FILES)]


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda folder: folder.name)
def test_an_example_has_a_readme_that_shows_its_file(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    for file in folder.glob("*.yaml"):
        assert f"kubectl apply -f {file.relative_to(ROOT)}" in readme


def test_folders_are_numbered_without_gaps() -> None:
    folders = sorted({file.parent.name for file in FILES})
    assert [name[:2] for name in folders] == [f"{number:02}" for number in range(1, len(folders) + 1)]


def test_the_quick_start_needs_no_gpu_and_little_memory() -> None:
    (quick,) = load_documents((ROOT / "examples/01-quick-start/mamba.yaml").read_text(), "quick start")
    assert quick.spec.resources.gpus == 0
    assert quick.spec.memory.arena is not None
    assert quick.spec.memory.arena.bytes <= 2**29
    assert quick.spec.model.location.scheme == "builtin"


def test_the_tutorial_quotes_the_quick_start_as_it_is() -> None:
    quoted = (
        (ROOT / "docs/tutorial/first-deployment.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    )
    assert quoted == (ROOT / "examples/01-quick-start/mamba.yaml").read_text()


@pytest.mark.parametrize("page", ["examples/01-quick-start/README.md", "docs/tutorial/first-deployment.md"])
def test_a_prompt_that_is_to_be_sent_twice_is_longer_than_a_page(page: str) -> None:
    """Otherwise nothing of it is resumed, whatever the page says of `cached_tokens`."""
    said = re.search(r"-d '(\{.*?\n\})'", (ROOT / page).read_text(), re.DOTALL)
    assert said is not None
    body = json.loads(said[1])
    (quick,) = load_documents((ROOT / "examples/01-quick-start/mamba.yaml").read_text(), "quick start")
    assert body["model"] == quick.served_name
    tokenizer = Tokenizer.load(MODEL)
    template = ChatTemplate.load(MODEL, tokenizer)
    assert template is not None
    assert (
        len(encoded_chat(template, tokenizer, body["messages"]).token_ids) > 2 * quick.spec.engine.page_size
    )


def test_the_gpu_example_leaves_the_strategy_to_the_planner() -> None:
    (nano,) = load_documents((ROOT / "examples/02-nemotron-nano-9b/mamba.yaml").read_text(), "nano")
    assert nano.spec.state_cache.strategy == "Auto"
    assert nano.spec.workload is not None
    assert nano.spec.memory.device_memory is not None


def test_the_gpu_example_is_planned_without_network_and_fits() -> None:
    arguments = ["plan", "examples/02-nemotron-nano-9b/mamba.yaml", "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "mamba_cli", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["fits"] is True
    assert (answer["model"]["recurrentLayers"], answer["model"]["attentionLayers"]) == (27, 4)
    assert answer["plan"]["maxRunningRequests"] >= 64
