"""Blocks of pages: YAML and JSON are what their readers take, and each command is tried or says why not."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from documented_commands import documented_commands, pages
from mamba_api.v1alpha1.documents import load_documents
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_api.v1alpha1.status import Status
from parsed_yaml import load_all_yaml, load_yaml

ROOT = Path(__file__).parents[3]
DEPLOYMENT = (ROOT / "examples/01-quick-start/mamba.yaml").read_text()
GATEWAY = (ROOT / "examples/16-one-address/gateway/team.yaml").read_text()
OF_OTHERS = {"grpc_service", "http_filters", "backendRefs", "load", "name"}
"""First keys of the YAML of other projects: Envoy, Gateway API, inference-perf, Continue."""
TRIED = {
    "mambaserve": "parsed by the command line itself",
    "make": "compared with the Makefile",
    "python": "its module is looked up",
    "python3": "its module is looked up",
    "helm": "rendered by helm, its values compared with the chart's",
    "kubectl": "run against a real API server, but for what needs a kubelet",
    "curl": "sent to a server of the shipped model",
}
"""What the tests of the documented commands do with a program."""
NOT_TRIED = {
    "pip": "it needs a network", "uv": "it needs a network",
    "docker": "it needs a daemon", "kind": "it needs Docker",
    "skopeo": "it needs a registry", "ctr": "it needs a node of a cluster", "git": "it publishes a release",
    "twine": "it publishes a release", "$EDITOR": "a person writes", "sha256sum": "the test of releases does",
    "open-webui": "`make open-webui` runs it", "guidellm": "it needs a network",
    "vllm": "another project's", "genai-perf": "another project's",
}  # fmt: skip
"""Programs that no test runs, with the reason."""
SHELL = {
    ".", "(", "base64", "cat", "cp", "cut", "echo", "grep", "ls", "mkdir", "printf", "tail", "tr",
}  # fmt: skip
"""What a shell or every system has."""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a language, each with its page."""
    pattern = re.compile(rf"^( *)```{language}\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    for page in pages():
        for indent, text in pattern.findall(page.read_text()):
            yield str(page.relative_to(ROOT)), re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def merged(whole: Any, part: Any) -> Any:
    """Return an object in which a part of it has taken the place of what was there."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return {**whole, **{key: merged(whole.get(key), value) for key, value in part.items()}}
    return part


def complaint(document: Any, values: dict[str, Any]) -> str | None:
    """Return what is wrong with a document of a page; None = it is what somebody takes."""
    first = next(iter(document))
    kind = document.get("kind", "")
    if first in OF_OTHERS or kind not in ("", "MambaDeployment", "MambaGateway"):
        return None
    if first in values:
        unknown = set(document) - set(values)
        return f"values {unknown} are not the chart's" if unknown else None
    if first == "status":
        return of_status(document["status"])
    part = document if {"spec", "kind"} & set(document) else {"spec": document}
    told = None
    if kind != "MambaGateway":
        told = of_deployment(part)
    if kind == "MambaGateway" or (told and not kind):
        told = of_gateway(part)
    return told


def of_status(status: Any) -> str | None:
    """Return what is wrong with a status that a page may show in part."""
    try:
        Status.model_validate(status)
    except ValidationError as error:
        return str([each for each in error.errors() if each["type"] != "missing"] or "") or None
    return None


def of_deployment(part: Any) -> str | None:
    """Return what is wrong with a MambaDeployment of which a page may show a part."""
    try:
        load_documents(json.dumps(merged(load_yaml(DEPLOYMENT), part)), "page")
    except ValueError as error:
        return str(error)
    return None


def of_gateway(part: Any) -> str | None:
    """Return what is wrong with a MambaGateway of which a page may show a part."""
    try:
        MambaGateway.model_validate(merged(load_yaml(GATEWAY), part))
    except ValidationError as error:
        return str(error)
    return None


def chart_values() -> dict[str, Any]:
    values: dict[str, Any] = load_yaml((ROOT / "charts/mambaserve/values.yaml").read_text())
    return values


def test_each_yaml_of_a_page_is_taken_by_whom_it_is_for() -> None:
    values = chart_values()
    found = [(page, document) for page, text in blocks("yaml") for document in load_all_yaml(text)]
    assert len(found) > 25
    wrong = [(page, told) for page, document in found if (told := complaint(document, values)) is not None]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    ["spec: {stateCache: {strategie: NoBuffer}}", "spec: {httpRoutes: {}}", "monitoring: {}\nmonitor: {}"],
)
def test_yaml_that_nobody_takes_would_be_noticed(text: str) -> None:
    assert complaint(load_yaml(text), chart_values())


def test_each_json_of_a_page_is_json_but_for_dots() -> None:
    texts = [text for _, text in blocks("json")]
    assert len(texts) > 4
    for text in texts:
        json.loads(re.sub(r",?\s*…", "", text))


def test_each_command_of_a_page_is_tried_or_says_why_not() -> None:
    programs = {command.program for command in documented_commands()}
    assert programs - {*TRIED, *NOT_TRIED, *SHELL} == set()
    assert {*TRIED, *NOT_TRIED} - programs == set()
