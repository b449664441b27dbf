"""Writes the CustomResourceDefinition of MambaDeployment from the pydantic models.

Built on pydantic's own hook for JSON Schema; what a structural schema refuses (`$ref`, `anyOf` with null,
`const`, numeric `exclusiveMinimum`, closed objects, titles) is rewritten here, and each model's rules become
CEL. `mambaserve crd` prints it and the drift test compares it with `crds/`. Pure: no file, no cluster.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.base import ApiModel, ChangeRule, Rule

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
VALIDATIONS = "x-kubernetes-validations"

HEADER = "# Written by `make crds` from the models of mamba_api; edit those.\n"

CHART_METADATA = """\
  labels:
    {{- include "mambaserve.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""

COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Strategy", "string", ".status.strategy", 0),
    ("Replicas", "string", ".status.engines", 0),
    ("Model", "string", ".spec.model.uri", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 0),
    ("URL", "string", ".status.url", 1),
    ("Slots", "integer", ".status.plan.slots", 1),
    ("Max running", "integer", ".status.plan.maxRunningRequests", 1),
    ("Headroom", "string", ".status.plan.headroom", 1),
)
"""Name, type, JSON path and priority of what `kubectl get` shows; priority 1 is `-o wide`."""


class StructuralSchema(GenerateJsonSchema):
    """JSON Schema as the API server accepts it, one self-contained tree."""

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """The schema of a model, every reference put in place of itself."""
        raw = super().generate(schema, mode)
        definitions = raw.pop("$defs", {})
        structural = _structural(raw, definitions)
        assert isinstance(structural, dict)
        return structural

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A model's fields and, as CEL, its rules."""
        produced = super().model_schema(schema)
        model = schema["cls"]
        rules: tuple[Rule | ChangeRule, ...] = ()
        if issubclass(model, ApiModel):
            rules = (*model.rules, *model.change_rules)
        if rules:
            produced[VALIDATIONS] = [{"rule": rule.cel, "message": rule.message} for rule in rules]
        return produced

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """`X | None` is an optional X: the API server drops nulls instead of storing them."""
        return self.generate_inner(schema["schema"])


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural OpenAPI v3 schema of `model`."""
    return model.model_json_schema(
        by_alias=True,
        ref_template=DEFAULT_REF_TEMPLATE,
        schema_generator=StructuralSchema,
    )


def custom_resource_definition() -> dict[str, Any]:
    """The CRD as plain data."""
    root = structural_schema(MambaDeployment)
    properties = root["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    # The API server owns metadata; of its schema only restrictions of the name may be given.
    name_schema = properties["metadata"]["properties"]["name"]
    properties["metadata"] = {
        "type": "object",
        "properties": {
            "name": {
                "type": "string",
                "maxLength": name_schema["maxLength"],
                "pattern": name_schema["pattern"],
            }
        },
    }
    root["required"] = ["spec"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": names.LIST_KIND,
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path}
                        | ({"priority": priority} if priority else {})
                        for name, type_, path, priority in COLUMNS
                    ],
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD as the text of `crds/mambadeployments.serving.mambaserve.io.yaml`."""
    # Through JSON once: shared sub-trees would become YAML aliases, which people cannot read.
    plain = json.loads(json.dumps(custom_resource_definition()))
    return HEADER + yaml.safe_dump(plain, sort_keys=False, width=100, allow_unicode=True)


def chart_template() -> str:
    """The CRD as a template of the Helm chart, behind `crds.enabled` and `crds.keep`; left out where the
    cluster has it from somebody else, since Helm would refuse the whole release.

    A chart's `crds/` folder is never upgraded by Helm, a template is.
    """
    head, tail = crd_yaml().removeprefix(HEADER).split("metadata:\n", 1)
    assert "{{" not in head + tail, "a description would be read as a template action"
    ours = '{{- if and .Values.crds.enabled (not (include "mambaserve.crdOfOthers" .)) }}'
    return f"{ours}\n{HEADER}{head}metadata:\n{CHART_METADATA}{tail}{{{{- end }}}}\n"


def _structural(node: Any, definitions: Mapping[str, Any]) -> Any:
    """`node` with everything rewritten that a structural schema refuses."""
    if isinstance(node, list):
        return [_structural(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if reference := node.get("$ref"):
        target = definitions[reference.rsplit("/", 1)[-1]]
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _structural({**target, **beside}, definitions)
    if "allOf" in node and len(node["allOf"]) == 1:
        beside = {key: value for key, value in node.items() if key != "allOf"}
        return _structural({**node["allOf"][0], **beside}, definitions)
    result: dict[str, Any] = {}
    for key, value in node.items():
        match key:
            case "title" | "propertyNames":
                continue
            case "properties":
                result[key] = {name: _structural(child, definitions) for name, child in value.items()}
            case "default":
                if value is not None:
                    result[key] = _without_nulls(value)
            case "const":
                result["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum":
                result[key.replace("exclusiveM", "m")] = value
                result[key] = True
            case "additionalProperties":
                if isinstance(value, dict):
                    result[key] = _structural(value, definitions)
                elif value and "properties" not in node:
                    result[PRESERVE] = True
            case "description":
                result[key] = " ".join(value.split())
            case "anyOf" if not node.get(INT_OR_STRING):
                raise AssertionError(f"a union is no structural schema: {node}")
            case "items":
                result[key] = _structural(value, definitions)
            case _:
                result[key] = value
    return _finished(result)


def _without_nulls(default: Any) -> Any:
    # Written out in full and not as {}: the API server checks an object's default against its CEL rules
    # before it fills in the defaults of the fields.
    if isinstance(default, dict):
        return {key: _without_nulls(value) for key, value in default.items() if value is not None}
    return default


def _finished(node: dict[str, Any]) -> dict[str, Any]:
    """`node` with sizes and bounds in the API server's manner."""
    if node.get("type") == "object" and "maxLength" in node:
        node["maxProperties"] = node.pop("maxLength")
    for key in ("minimum", "maximum"):
        if node.get("type") == "integer" and isinstance(node.get(key), float):
            node[key] = int(node[key])
    if node.get(PRESERVE):
        node.pop("additionalProperties", None)
    order = ("description", "type", "default", "enum")
    return {key: node[key] for key in (*order, *(key for key in node if key not in order)) if key in node}
