"""The models of v1alpha1: defaults, strictness, rules, round trips."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from mamba_api.v1alpha1 import MambaDeployment, Spec, StateCache, Status
from mamba_api.v1alpha1.base import ApiModel
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_api.v1alpha1.schema import VALIDATIONS, custom_resource_definition, structural_schema
from parsed_yaml import load_yaml
from wrong_specs import WRONG_CHANGES, WRONG_SPECS

DATA = Path(__file__).parents[2] / "data"
BROKEN = load_yaml((DATA / "broken_specs.yaml").read_text())
BROKEN_GATEWAYS = load_yaml((DATA / "broken_gateway_specs.yaml").read_text())


def deployment(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": "nano"},
        "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec},
    }


def all_models(root: type[BaseModel] = ApiModel) -> list[type[BaseModel]]:
    return [root, *(model for child in root.__subclasses__() for model in all_models(child))]


def test_a_model_uri_is_all_that_a_deployment_needs() -> None:
    parsed = MambaDeployment.model_validate(deployment())
    assert parsed.spec.replicas == 1
    assert parsed.spec.state_cache.track_interval == 256
    assert parsed.spec.workload is None
    assert parsed.served_name == "nano"
    assert parsed.namespace == "default"


def test_the_served_name_can_be_chosen() -> None:
    parsed = MambaDeployment.model_validate(
        deployment(model={"uri": "builtin://tiny-recall", "servedName": "x"})
    )
    assert parsed.served_name == "x"


def test_a_manifest_round_trips_through_yaml_unchanged() -> None:
    manifest = MambaDeployment.model_validate(
        deployment(
            memory={"deviceMemory": "80Gi", "arena": 4096},
            scheduling={
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"podAffinity": {}},
            },
            podTemplate={"spec": {"hostUsers": False, "containers": [{"name": "engine", "tty": None}]}},
            workload={"promptTokens": 4000},
        )
    ).manifest()
    again = MambaDeployment.model_validate(load_yaml(yaml.safe_dump(manifest))).manifest()
    assert again == manifest
    assert manifest["spec"]["workload"] == {
        "promptTokens": 4000,
        "outputTokens": 256,
        "sharedPrefixRatio": 0.5,
    }


def test_metadata_that_only_kubernetes_reads_is_kept() -> None:
    data = deployment()
    data["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    assert MambaDeployment.model_validate(data).manifest()["metadata"]["managedFields"] == [
        {"manager": "kubectl"}
    ]


def test_an_empty_section_is_an_absent_one() -> None:
    parsed = MambaDeployment.model_validate(deployment(engine=None, workload=None))
    assert parsed.spec.engine.page_size == 16
    assert parsed.spec.workload is None


def test_a_field_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"spec\.stateCache\.interval"):
        MambaDeployment.model_validate(deployment(stateCache={"interval": 3}))


def test_a_status_field_of_a_newer_operator_is_dropped_instead_of_refused() -> None:
    status = Status.model_validate({"replicas": 2, "fromTheFuture": True, "plan": None})
    assert status.replicas == 2
    assert "fromTheFuture" not in status.manifest()


def test_objects_are_frozen() -> None:
    parsed = MambaDeployment.model_validate(deployment())
    with pytest.raises(ValidationError, match="frozen"):
        parsed.spec.state_cache.track_interval = 512  # type: ignore[misc]


def test_two_objects_never_share_a_mutable_default() -> None:
    first, second = (MambaDeployment.model_validate(deployment()) for _ in range(2))
    first.spec.engine.extra_args.append("--x")
    assert second.spec.engine.extra_args == []


def test_a_status_can_be_put_on_a_copy() -> None:
    parsed = MambaDeployment.model_validate(deployment())
    with_status = parsed.with_status(Status(replicas=3))
    assert with_status.status is not None
    assert with_status.status.replicas == 3
    assert parsed.status is None


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["name"])
def test_what_can_never_work_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        MambaDeployment.model_validate(deployment(**case["spec"]))
    assert case["says"] in str(caught.value)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("case", BROKEN_GATEWAYS, ids=lambda case: case["name"])
def test_a_gateway_that_can_never_work_is_refused(case: dict[str, Any]) -> None:
    document = {**deployment(), "kind": "MambaGateway", "spec": {"selector": {}, **case["spec"]}}
    with pytest.raises(ValidationError) as caught:
        MambaGateway.model_validate(document)
    assert case["says"] in str(caught.value)
    assert caught.value.error_count() == 1


def test_every_rule_has_a_spec_that_breaks_it() -> None:
    said = [case["says"] for case in (*BROKEN, *BROKEN_GATEWAYS) if case.get("rule", case in BROKEN_GATEWAYS)]
    rules = [rule for model in all_models() for rule in model.__dict__.get("rules", ())]
    assert len(rules) >= 9
    assert [rule.message for rule in rules if not any(text in rule.message for text in said)] == []


def validations(schema: Any) -> Iterator[dict[str, str]]:
    """Yield every CEL rule of a schema."""
    if isinstance(schema, dict):
        rules = schema.get(VALIDATIONS)
        yield from rules if isinstance(rules, list) else ()
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from validations(each)


def test_every_rule_of_the_crd_has_specs_that_break_it() -> None:
    broken = [says for says, wrong in (WRONG_SPECS | WRONG_CHANGES).items() if wrong]
    rules = {rule["message"] for rule in validations(custom_resource_definition())}
    assert [rule for rule in sorted(rules) if not any(says in rule for says in broken)] == []
    assert [says for says in broken if not any(says in rule for rule in rules)] == []


@pytest.mark.parametrize("says", WRONG_SPECS)
def test_wrong_specs_of_each_rule_are_refused(says: str) -> None:
    for spec in WRONG_SPECS[says]:
        with pytest.raises(ValidationError):
            MambaDeployment.model_validate(deployment(**spec))


def test_all_broken_rules_of_a_model_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate(
            {
                "model": {"uri": "builtin://tiny-recall"},
                "replicas": 3,
                "scaling": {"maxReplicas": 2},
                "stateCache": {"trackInterval": 3},
            }
        )
    assert "trackInterval must be" in str(caught.value)
    assert "spec.replicas is above" in str(caught.value)


def test_serving_on_the_cpu_is_allowed() -> None:
    parsed = MambaDeployment.model_validate(deployment(resources={"gpus": 0}, memory={"arena": "256Mi"}))
    assert parsed.spec.memory.arena is not None
    assert parsed.spec.memory.arena.bytes == 256 * 2**20


def test_scaling_to_zero_is_allowed() -> None:
    assert (
        MambaDeployment.model_validate(deployment(scaling={"minReplicas": 0})).spec.scaling.min_replicas == 0
    )


@pytest.mark.parametrize("name", ["Nano", "1nano", "nano.x", "-nano", "nano-", "n" * 53, ""])
def test_a_name_that_could_not_name_a_service_is_refused(name: str) -> None:
    data = deployment()
    data["metadata"]["name"] = name
    with pytest.raises(ValidationError, match=r"metadata\.name"):
        MambaDeployment.model_validate(data)


def test_python_spells_fields_in_snake_case() -> None:
    assert StateCache(track_interval=512).manifest()["trackInterval"] == 512


def test_every_field_has_a_description_that_ends_as_a_sentence() -> None:
    wrong = [
        f"{model.__name__}.{name}"
        for model in all_models()
        for name, field in model.model_fields.items()
        if not field.description or not field.description.rstrip().endswith((".", ")"))
    ]
    assert wrong == []


def unbounded(node: Any, path: str) -> list[str]:
    """Return the paths of lists, maps and strings without a bound, which CEL's worst case needs."""
    kind = node.get("type", "string" if "anyOf" in node else "")
    bounds = {"array": {"maxItems"}, "string": {"maxLength", "enum"}}.get(kind, set())
    if "additionalProperties" in node:
        bounds = {"maxProperties"}
    found = [path] if bounds and not bounds & node.keys() else []
    for name, child in node.get("properties", {}).items():
        found += unbounded(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            found += unbounded(node[key], f"{path}[]")
    return found


def test_every_list_map_and_string_is_bounded() -> None:
    assert unbounded(structural_schema(Spec), "spec") == []
    assert unbounded(structural_schema(Status), "status") == []


def test_a_missing_bound_would_be_seen() -> None:
    assert unbounded({"type": "object", "properties": {"a": {"type": "string"}}}, "x") == ["x.a"]
    assert unbounded({"type": "array", "items": {"type": "string", "maxLength": 1}}, "x") == ["x"]
