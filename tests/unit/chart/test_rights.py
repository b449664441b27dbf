"""The chart's rules name every kind the operator's code names, and no other."""

import re
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from mamba_operator.external_metrics import front_proxy
from mamba_operator.external_metrics.registration import API_SERVICE_NAME
from mamba_operator.objects import kinds
from mamba_operator.objects.kinds import Kind
from parsed_yaml import load_yaml

TEMPLATES = Path(__file__).parents[3] / "charts/mambaserve/templates"
LEASE = "RELEASE-operator"
CHILDREN = {"list", "watch", "create", "patch", "delete"}


def rules() -> list[dict[str, Any]]:
    """Return the namespaced rules, those of the ClusterRole and of the lease's Role."""
    text = (TEMPLATES / "_helpers.tpl").read_text()
    text = text[text.index('{{- define "mambaserve.rules" -}}') :].split("\n", 1)[1].split("{{- end -}}")[0]
    found: list[dict[str, Any]] = load_yaml(text)
    cluster = (TEMPLATES / "rbac.yaml").read_text().replace('{{ printf "%s-operator" $name }}', LEASE)
    block = r"^  - apiGroups: .*\n    resources: .*\n(?:    resourceNames: .*\n)?    verbs: .*$"
    for one in re.findall(block, cluster, re.MULTILINE):
        found += load_yaml(one)
    return found


def verbs() -> dict[tuple[str, str], set[str]]:
    """Return the verbs by (group, resource), those for single names included."""
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in rules():
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


RULES = verbs()


def test_no_lease_but_its_own_is_read_or_written() -> None:
    """Guard other leases: a writer of any Lease takes the scheduler's leadership and silences nodes."""
    of_leases = [rule for rule in rules() if "leases" in rule["resources"]]
    bound = [rule.get("resourceNames", ["*"]) for rule in of_leases if set(rule["verbs"]) != {"create"}]
    assert bound == [[names.CLAIM_NAME], [LEASE]]


def of_external_metrics() -> dict[tuple[str, str], list[tuple[tuple[str, ...], set[str]]]]:
    """Return (names, verbs) by (group, resource) of `externalMetrics.enabled`; no names = all."""
    text = (TEMPLATES / "external-metrics.yaml").read_text()
    text = text.replace("{{ $name }}", "SERVICE")
    found: dict[tuple[str, str], list[tuple[tuple[str, ...], set[str]]]] = {}
    block = r"^  - apiGroups: .*\n    resources: .*\n(?:    resourceNames: .*\n)?    verbs: .*$"
    for one in re.findall(block, text, re.MULTILINE):
        (rule,) = load_yaml(one)
        ((group,), (resource,)) = rule["apiGroups"], rule["resources"]
        only = tuple(rule.get("resourceNames", ()))
        found.setdefault((group, resource), []).append((only, set(rule["verbs"])))
    return found


@pytest.mark.parametrize("kind", kinds.OWNED, ids=lambda kind: kind.plural)
def test_a_child_may_be_made_mended_and_removed(kind: Kind) -> None:
    # The volume with downloaded weights is never removed.
    never = {"delete"} if kind is kinds.CLAIM else set()
    assert RULES[kind.group, kind.plural] == CHILDREN - never


@pytest.mark.parametrize("kind", [*kinds.OPTIONAL, kinds.HTTP_ROUTE], ids=lambda kind: kind.plural)
def test_a_child_of_a_kind_that_may_be_lacking_is_not_watched(kind: Kind) -> None:
    assert RULES[kind.group, kind.plural] == CHILDREN - {"watch"}


@pytest.mark.parametrize("kind", kinds.WATCHED, ids=lambda kind: kind.plural)
def test_whatever_wakes_may_be_watched(kind: Kind) -> None:
    assert RULES[kind.group, kind.plural] >= {"list", "watch"}


@pytest.mark.parametrize("kind", kinds.OWNERS, ids=lambda kind: kind.plural)
def test_of_its_own_objects_nothing_is_written_but_the_status(kind: Kind) -> None:
    assert RULES[kind.group, kind.plural] == {"get", "list", "watch"}
    assert RULES[kind.group, f"{kind.plural}/status"] == {"patch"}


def test_nothing_is_granted_that_the_code_does_not_name() -> None:
    named = {(kind.group, kind.plural) for kind in vars(kinds).values() if isinstance(kind, Kind)}
    own = kinds.OWNERS
    named |= {(kind.group, f"{kind.plural}/{part}") for kind in own for part in ("status", "finalizers")}
    # A cluster-wide watch follows resource types as they come and go.
    named |= {("apiextensions.k8s.io", "customresourcedefinitions")}
    granted = RULES.keys() | of_external_metrics().keys()
    assert granted - named == set()
    assert named - granted == set()


def test_the_external_metrics_api_takes_rights_to_single_objects_and_to_ask_and_register_itself() -> None:
    assert of_external_metrics() == {
        (kinds.SUBJECT_ACCESS_REVIEW.group, "subjectaccessreviews"): [((), {"create"})],
        (kinds.API_SERVICE.group, "apiservices"): [((API_SERVICE_NAME,), {"patch"})],
        ("", "configmaps"): [((front_proxy.NAME,), {"get"})],
        (kinds.ENDPOINT_SLICE.group, "endpointslices"): [((), {"create"}), (("SERVICE",), {"patch"})],
    }
