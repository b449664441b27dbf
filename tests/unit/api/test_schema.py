"""The CRD: structural, complete, and the same as the models and as the files in the tree."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.schema import (
    COLUMNS,
    CUSTOM_KINDS,
    GATEWAYS,
    CustomKind,
    chart_template,
    crd_yaml,
    custom_resource_definition,
    structural_schema,
)
from parsed_yaml import load_yaml

ROOT = Path(__file__).parents[3]
CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
ALLOWED = {
    "additionalProperties", "anyOf", "default", "description", "enum", "exclusiveMaximum", "exclusiveMinimum",
    "format", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "pattern", "properties", "required", "type", "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """Return the stored form of `value`: the defaulting of structural schemas, spelled out."""
    if isinstance(value, dict):
        filled = dict(value)
        for name, child in schema.get("properties", {}).items():
            if name not in filled and "default" in child:
                filled[name] = copy.deepcopy(child["default"])
            if name in filled:
                filled[name] = with_defaults(filled[name], child)
        return filled
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    return value


GATEWAY_SCHEMA = custom_resource_definition(GATEWAYS)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
NODES = [*nodes(SCHEMA), *nodes(GATEWAY_SCHEMA, "gateway")]


def test_each_part_is_structural() -> None:
    for path, part in NODES:
        _check_structure(path, part)


def _check_structure(path: str, part: dict[str, Any]) -> None:
    assert part.keys() <= ALLOWED, path
    int_or_string = part.get("x-kubernetes-int-or-string", False)
    assert ("type" in part) != int_or_string, path
    assert ("anyOf" in part) == int_or_string, path
    assert not ("properties" in part and "additionalProperties" in part), path
    assert isinstance(part.get("exclusiveMinimum", False), bool), path
    if part.get("type") == "object":
        assert {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & part.keys(), (
            path
        )
    if part.get("type") == "array":
        assert "items" in part, path
        assert "maxItems" in part, path
    if part.get("x-kubernetes-list-type") == "map":
        assert set(part["x-kubernetes-list-map-keys"]) <= set(part["items"]["required"]), path
    assert set(part.get("required", ())) <= part.get("properties", {}).keys(), path
    assert part.get("default", 0) is not None, path


def test_each_field_is_described_on_one_line() -> None:
    for path, part in NODES:
        bare = path.endswith("[]") or path.removeprefix("gateway").startswith(".metadata")
        assert bare or part.get("description", "").endswith((".", ")")), path
        assert "\n" not in part.get("description", ""), path


def test_the_defaults_of_the_schema_are_those_of_the_models() -> None:
    minimal = {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": "builtin://tiny-recall"}},
    }
    served = with_defaults(minimal, SCHEMA)["spec"]
    assert served == MambaDeployment.model_validate(minimal).manifest()["spec"]


def test_the_defaults_of_optional_parts_are_those_of_the_models() -> None:
    spec = {
        "model": {"uri": "hf://a/b", "cache": {"size": "40Gi"}, "tokenSecretRef": {"name": "hf"}},
        "workload": {},
        "gateway": {"auth": {"secretRef": {"name": "keys"}}},
        "engine": {"env": [{"name": "A"}]},
    }
    data = {"metadata": {"name": "a"}, "spec": spec}
    assert with_defaults(data, SCHEMA)["spec"] == MambaDeployment.model_validate(data).manifest()["spec"]


def test_the_defaults_of_the_status_are_those_of_the_models() -> None:
    time = "2026-01-01T00:00:00Z"
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "X", "lastTransitionTime": time}],
    }
    data = {"metadata": {"name": "a"}, "spec": {"model": {"uri": "builtin://x"}}, "status": status}
    assert with_defaults(data, SCHEMA)["status"] == MambaDeployment.model_validate(data).manifest()["status"]


def test_the_scale_subresource_has_all_three_paths() -> None:
    scale = VERSION["subresources"]["scale"]
    assert len(scale) == 3
    for path in scale.values():
        node = SCHEMA
        for part in path.strip(".").split("."):
            node = node["properties"][part]
        assert node["type"] in {"integer", "string"}


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=lambda kind: kind.plural)
def test_every_column_reads_a_field_that_exists(kind: CustomKind) -> None:
    schema = SCHEMA if kind is not GATEWAYS else GATEWAY_SCHEMA
    for _, _, path, _ in kind.columns:
        node = schema
        for part in re.sub(r"\[.*?\)\]", "", path).strip(".").split("."):
            if part == "creationTimestamp":
                break
            node = node.get("items", node)["properties"].get(part, {"properties": {}})
            assert node != {"properties": {}} or part == "metadata", path


def test_the_default_columns_are_few_and_the_rest_is_wide() -> None:
    assert [name for name, *_, priority in COLUMNS if not priority] == [
        "Ready", "Reason", "Strategy", "Replicas", "Model", "Age", "Message",
    ]  # fmt: skip
    assert [name for name, *_, priority in COLUMNS if priority] == ["URL", "Slots", "Max running", "Headroom"]


def test_kubectl_finds_it_by_short_name_and_category() -> None:
    assert CRD["spec"]["names"]["shortNames"] == ["mdep"]
    assert CRD["spec"]["names"]["categories"] == ["mambaserve"]


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=lambda kind: kind.plural)
def test_the_crd_in_the_tree_is_the_one_of_the_models(kind: CustomKind) -> None:
    kept = (ROOT / f"crds/{kind.name}.yaml").read_text()
    assert kept == crd_yaml(kind), "run `make crds`"


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=lambda kind: kind.plural)
def test_the_crd_in_the_chart_is_the_one_of_the_models(kind: CustomKind) -> None:
    kept = (ROOT / f"charts/mambaserve/templates/crd-{kind.plural}.yaml").read_text()
    assert kept == chart_template(kind), "run `make crds`"


def test_the_template_without_its_actions_is_the_crd() -> None:
    lines = [line for line in chart_template().splitlines() if "{{" not in line]
    lines = [
        line
        for line in lines
        if line not in {"  labels:", "  annotations:", "    helm.sh/resource-policy: keep"}
    ]
    assert load_yaml("\n".join(lines)) == CRD


def test_the_text_has_no_yaml_aliases() -> None:
    assert not re.search(r"[:-] [*&]id\d", crd_yaml())


def test_a_union_that_is_not_int_or_string_cannot_slip_in() -> None:
    class Bad(BaseModel):
        value: int | bool

    with pytest.raises(AssertionError, match="no structural schema"):
        structural_schema(Bad)


def test_bounds_are_written_in_the_form_of_the_api() -> None:
    class Bounds(BaseModel):
        """Words
        on two lines."""  # noqa: D205

        above: Annotated[float, Field(gt=0, lt=1)]
        names: Annotated[dict[str, str], Field(max_length=3)]
        maybe: int | None = None

    schema = structural_schema(Bounds)
    assert schema["description"] == "Words on two lines."
    assert schema["properties"] == {
        "above": {
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": True,
            "maximum": 1,
            "exclusiveMaximum": True,
        },
        "names": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
        "maybe": {"type": "integer"},
    }
    assert schema["required"] == ["above", "names"]
