"""Commands of kubectl and helm on the pages: a real API server takes each, with its objects and paths.

Commands that need a kubelet (`exec`, `logs`, `port-forward`), a card's node or another project's API are left
out. Nobody reconciles here, so of `wait` the object and the condition are what is compared.
"""

from collections.abc import Sequence

import pytest

from documented_commands import ROOT, DocumentedCommand, documented_commands
from mamba_api.v1alpha1.conditions import ConditionType
from mamba_api.v1alpha1.gateway_status import GatewayConditionType
from testcluster.control_plane import ControlPlane

pytestmark = [pytest.mark.kube, pytest.mark.slow]
NEEDS_MORE = {"exec", "logs", "port-forward", "label"}
"""Verbs that need a node with a kubelet."""
ABSENT = {
    "POD",
    "NODE",
    "v1beta1.external.metrics.k8s.io",
    "horizontalpodautoscaler",
    "persistentvolumeclaim",
}
"""Words of commands about objects that somebody else makes."""
OF_A_CLUSTER = {"--create-namespace", "--wait", "--reuse-values", "--reset-then-reuse-values"}
"""Options of helm that only a release in a cluster can follow."""
TURNS = {"apply": 0, "wait": 2, "delete": 3}
"""Verbs that come before, or after, all others; these have the turn 1."""
PLACES = {"NAME": "nano", "X": "nano", "mdep/NAME": "mdep/nano"}
"""What stands for a placeholder."""


def commands() -> list[DocumentedCommand]:
    """Return the commands that an API server alone can answer, each once."""
    every = {
        command.words: command
        for command in documented_commands()
        if command.program == "kubectl"
        and command.words[1] not in NEEDS_MORE
        and not ABSENT & set(command.words)
        and "--raw" not in command.words
        and not {"nano.yaml", "--for=delete"} & set(command.words)
    }
    return sorted(every.values(), key=lambda command: TURNS.get(command.words[1], 1))


def filled(words: Sequence[str], namespace: str) -> list[str]:
    """Return the arguments of a command with names for its placeholders, without its namespace."""
    arguments = [PLACES.get(word, word).replace("instance=NAME", "instance=nano") for word in words[1:]]
    for option in ("-n", "--namespace"):
        if option in arguments:
            at = arguments.index(option)
            del arguments[at : at + 2]
    return [*arguments, "-n", namespace] if "-A" not in arguments else arguments


def waited_for(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the object and the condition of a `kubectl wait`."""
    (thing,) = (word for word in arguments if "/" in word)
    (condition,) = (word.partition("=condition=")[2] for word in arguments if word.startswith("--for="))
    return thing, condition


def test_an_api_server_takes_every_documented_command(plane: ControlPlane, namespace: str) -> None:
    for name in ("mambaserve-redis", "nano"):
        plane.kubectl(
            "create", "secret", "generic", name, "--from-literal=url=redis://there", "-n", namespace
        )
    conditions = {"mdep": set(ConditionType), "mgw": set(GatewayConditionType)}
    waits = 0
    for command in commands():
        arguments = filled(command.words, namespace)
        if arguments[0] == "wait":
            thing, condition = waited_for(arguments)
            # What else can be waited for is a path, which test_documented_commands in tests/unit follows.
            assert not condition or condition in conditions[thing.partition("/")[0]], thing
            arguments = ["get", thing, "-n", namespace]
            waits += 1
        if arguments[:2] == ["create", "secret"] and arguments[3] == "mambaserve-redis":
            continue
        plane.kubectl(*arguments, stdin="web: secret-of-somebody\n")
    assert waits > 15


def test_helm_renders_the_chart_with_the_options_of_every_documented_command(plane: ControlPlane) -> None:
    rendered = 0
    for words in {command.words for command in documented_commands() if command.program == "helm"}:
        if words[1] in ("install", "upgrade"):
            options = [word for word in words[4:] if word not in OF_A_CLUSTER]
            assert "kind: Deployment" in plane.helm("template", "any", str(ROOT / words[3]), *options)
            rendered += 1
    assert rendered > 4
