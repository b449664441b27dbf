"""Writes the CustomResourceDefinitions of MambaDeployment and MambaGateway from the pydantic models.

It extends pydantic's own hook for JSON Schema: what a structural schema refuses (`$ref`, `anyOf` with null,
`const`, numeric `exclusiveMinimum`, closed objects, titles) is rewritten here, and each model's rules become
CEL. `mambaserve crd` prints the result and the drift test compares it with `crds/`. Pure: no file, no
cluster.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.base import ApiModel, ChangeRule, Rule
from mamba_api.v1alpha1.mamba_gateway import MambaGateway

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

Columns = tuple[tuple[str, str, str, int], ...]
COLUMNS: Columns = (
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
"""Name, type, JSON path and priority of the columns of `kubectl get`; priority 1 is shown with `-o wide`."""
GATEWAY_COLUMNS: Columns = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Models", "string", ".status.readyModels", 0),
    ("Resolved", "string", '.status.conditions[?(@.type=="ModelsResolved")].reason', 0),
    ("URL", "string", ".status.url", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Replicas", "integer", ".status.readyReplicas", 1),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
)


@dataclass(frozen=True, slots=True)
class CustomKind:
    """One kind of this API group."""

    model: type[ApiModel]
    kind: str
    plural: str
    singular: str
    short_name: str
    columns: Columns

    @property
    def name(self) -> str:
        """Name of the CRD."""
        return f"{self.plural}.{names.GROUP}"


DEPLOYMENTS = CustomKind(MambaDeployment, names.KIND, names.PLURAL, names.SINGULAR, names.SHORT_NAME, COLUMNS)
GATEWAYS = CustomKind(
    MambaGateway,
    names.GATEWAY_KIND,
    names.GATEWAY_PLURAL,
    names.GATEWAY_SINGULAR,
    names.GATEWAY_SHORT_NAME,
    GATEWAY_COLUMNS,
)
CUSTOM_KINDS = (DEPLOYMENTS, GATEWAYS)


class StructuralSchema(GenerateJsonSchema):
    """JSON Schema in the form the API server accepts: one self-contained tree."""

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """Return the schema of a model with every reference replaced by its target."""
        flat = super().generate(schema, mode)
        definitions = flat.pop("$defs", {})
        structural = _structural(flat, definitions)
        assert isinstance(structural, dict)
        return structural

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model's fields, with its rules as CEL."""
        json_schema = super().model_schema(schema)
        model = schema["cls"]
        rules: tuple[Rule | ChangeRule, ...] = ()
        if issubclass(model, ApiModel):
            rules = (*model.rules, *model.change_rules)
        if rules:
            json_schema[VALIDATIONS] = [{"rule": rule.cel, "message": rule.message} for rule in rules]
        return json_schema

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Treat `X | None` as an optional X: the API server drops nulls instead of storing them."""
        return self.generate_inner(schema["schema"])


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the structural OpenAPI v3 schema of `model`."""
    return model.model_json_schema(
        by_alias=True,
        ref_template=DEFAULT_REF_TEMPLATE,
        schema_generator=StructuralSchema,
    )


def custom_resource_definition(kind: CustomKind = DEPLOYMENTS) -> dict[str, Any]:
    """Return the CRD of a kind as plain data."""
    root = structural_schema(kind.model)
    properties = root["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    # The API server owns metadata; a CRD may only restrict the name.
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
        "metadata": {"name": kind.name},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
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
                        for name, type_, path, priority in kind.columns
                    ],
                }
            ],
        },
    }


def crd_yaml(kind: CustomKind = DEPLOYMENTS) -> str:
    """Return the text of the file `crds/NAME.yaml` of a kind, where NAME is the name of its CRD."""
    # A round trip through JSON: shared sub-trees would become YAML aliases, which people cannot read.
    plain = json.loads(json.dumps(custom_resource_definition(kind)))
    return HEADER + yaml.safe_dump(plain, sort_keys=False, width=100, allow_unicode=True)


def all_crds_yaml() -> str:
    """Return the CRDs of all kinds as one text."""
    return "---\n".join(map(crd_yaml, CUSTOM_KINDS))


def chart_template(kind: CustomKind = DEPLOYMENTS) -> str:
    """Return the CRD as a template of the Helm chart, enabled by `crds.enabled` and kept by `crds.keep`.

    Helm never upgrades a chart's `crds/` folder, but it upgrades templates. The template renders nothing
    where the cluster has the CRD from another owner, because Helm would refuse the whole release.
    """
    head, tail = crd_yaml(kind).removeprefix(HEADER).split("metadata:\n", 1)
    assert "{{" not in head + tail, "a description would be read as a template action"
    owned = f'(include "mambaserve.crdOfOthers" (dict "root" . "crd" "{kind.name}"))'
    condition = f"{{{{- if and .Values.crds.enabled (not {owned}) }}}}"
    return f"{condition}\n{HEADER}{head}metadata:\n{CHART_METADATA}{tail}{{{{- end }}}}\n"


def _structural(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Rewrite everything in `node` that a structural schema refuses."""
    if isinstance(node, list):
        return [_structural(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    resolved = _resolve(node, definitions)
    if resolved is not None:
        return _structural(resolved, definitions)
    assert "anyOf" not in node or node.get(INT_OR_STRING), f"a union is no structural schema: {node}"
    result: dict[str, Any] = {}
    for key, value in node.items():
        result |= _keyword(key, value, definitions, has_properties="properties" in node)
    return _finish(result)


def _resolve(node: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any] | None:
    """Replace a reference, or an `allOf` of one schema, by its target; None if `node` has neither.

    Keywords next to it win over the keywords of the target.
    """
    if reference := node.get("$ref"):
        target = definitions[reference.rsplit("/", 1)[-1]]
        return {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "allOf" in node and len(node["allOf"]) == 1:
        return {**node["allOf"][0], **{key: value for key, value in node.items() if key != "allOf"}}
    return None


def _keyword(key: str, value: Any, definitions: Mapping[str, Any], *, has_properties: bool) -> dict[str, Any]:
    """Return the keywords of a structural schema that replace one keyword of JSON Schema."""
    match key:
        case "title" | "propertyNames":
            return {}
        case "properties":
            return {key: {name: _structural(child, definitions) for name, child in value.items()}}
        case "default":
            return {} if value is None else {key: _without_nulls(value)}
        case "const":
            return {"enum": [value]}
        case "exclusiveMinimum" | "exclusiveMaximum":
            return {key.replace("exclusiveM", "m"): value, key: True}
        case "additionalProperties" if not isinstance(value, dict):
            return {PRESERVE: True} if value and not has_properties else {}
        case "items" | "additionalProperties":
            return {key: _structural(value, definitions)}
        case "description":
            return {key: " ".join(value.split())}
        case _:
            return {key: value}


def _without_nulls(default: Any) -> Any:
    # Defaults of objects are written out in full and not as {}: the API server checks them against its CEL
    # rules before it fills in the defaults of their fields.
    if isinstance(default, dict):
        return {key: _without_nulls(value) for key, value in default.items() if value is not None}
    return default


def _finish(node: dict[str, Any]) -> dict[str, Any]:
    """Convert sizes and bounds of `node` to the API server's form and order its keys."""
    if node.get("type") == "object" and "maxLength" in node:
        node["maxProperties"] = node.pop("maxLength")
    for key in ("minimum", "maximum"):
        if node.get("type") == "integer" and isinstance(node.get(key), float):
            node[key] = int(node[key])
    if node.get(PRESERVE):
        node.pop("additionalProperties", None)
    order = ("description", "type", "default", "enum")
    return {key: node[key] for key in (*order, *(key for key in node if key not in order)) if key in node}
