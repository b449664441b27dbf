"""No promise without a keeper: each field of the spec has tests that show its effect, or a refusal."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from mamba_api.v1alpha1 import Spec
from mamba_api.v1alpha1.mamba_gateway import MambaGatewaySpec
from mamba_cli.local.cluster_only import CLUSTER_ONLY
from parsed_yaml import load_yaml

TESTS = Path(__file__).parents[2]
TABLE: dict[str, dict[str, Any]] = load_yaml((TESTS / "data/field_effects.yaml").read_text())
GATEWAY_TABLE: dict[str, dict[str, Any]] = load_yaml((TESTS / "data/gateway_field_effects.yaml").read_text())
BROKEN_GATEWAYS = {
    one["name"]: one["spec"] for one in load_yaml((TESTS / "data/broken_gateway_specs.yaml").read_text())
}
BROKEN = {one["name"]: one["spec"] for one in load_yaml((TESTS / "data/broken_specs.yaml").read_text())}
NAMED = re.compile(r"(test_\w+\.py)::(test_\w+)(?:\[(.+)\])?")


def fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield every field that holds a value, in YAML spelling; `[]` marks the items of a list."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        found = _model_in(field.annotation)
        if found is None:
            yield here
        else:
            inner, of_list = found
            yield from fields(inner, f"{here}{'[]' if of_list else ''}.")


def _model_in(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        if (found := _model_in(inner)) is not None:
            return found[0], found[1] or getattr(annotation, "__origin__", None) is list
    return None


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of the tests in a file of that name, wherever below tests/ it is."""
    return frozenset(
        node.name
        for path in TESTS.rglob(file)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def literals(file: str) -> frozenset[str]:
    """Return all texts in the files of that name: the ids of parametrized tests are among them."""
    return frozenset(
        node.value
        for path in TESTS.rglob(file)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_every_field_has_an_entry_and_every_entry_a_field() -> None:
    assert sorted(TABLE) == sorted(fields(Spec))


def test_the_walk_finds_fields_at_every_depth() -> None:
    assert {"replicas", "gateway.limits.maxQueued", "engine.env[].value"} <= set(fields(Spec))


def test_a_field_acts_or_is_refused() -> None:
    for field, entry in TABLE.items():
        assert entry.keys() <= {"effect", "refused", "local"}, field
        assert entry.get("effect") or entry.get("refused"), field
        assert entry["local"] in ("acts", "note", "refused"), field
        assert (entry["local"] == "refused") == ("effect" not in entry), field


def test_the_tests_of_an_effect_exist() -> None:
    for entry in TABLE.values():
        these_exist(entry.get("effect", []))


def these_exist(tests: list[str]) -> None:
    for named in tests:
        match = NAMED.fullmatch(named)
        assert match, named
        file, function, case = match.groups()
        assert function in functions(file), f"{named} does not exist"
        assert case is None or case in literals(file), f"{named} has no such case"


def test_a_refusal_is_one_of_the_field_itself() -> None:
    for field, entry in TABLE.items():
        top, *_ = field.split(".")
        for name in entry.get("refused", ()):
            assert top in BROKEN[name], f"{name!r} does not set {field}"


def test_every_field_of_a_gateway_has_an_entry_with_tests_of_its_effect_and_its_refusals() -> None:
    assert sorted(GATEWAY_TABLE) == sorted(fields(MambaGatewaySpec))
    for field, entry in GATEWAY_TABLE.items():
        assert entry.keys() <= {"effect", "refused"}
        assert entry["effect"]
        these_exist(entry["effect"])
        top = field.partition(".")[0].removesuffix("[]")
        assert all(top in BROKEN_GATEWAYS[name] for name in entry.get("refused", ())), field


def test_local_mode_notes_exactly_the_fields_that_the_table_says() -> None:
    noted = {field for field in TABLE if TABLE[field]["local"] == "note"}

    def covered(field: str) -> bool:
        return field in CLUSTER_ONLY or any(field.startswith(f"{path}.") for path in CLUSTER_ONLY)

    assert {field for field in TABLE if covered(field)} == noted
    assert all(any(field == path or field.startswith(f"{path}.") for field in TABLE) for path in CLUSTER_ONLY)
