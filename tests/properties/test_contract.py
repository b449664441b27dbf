"""Any legal MambaDeployment survives every trip that it makes: Python, JSON, YAML, documents."""

import json
import string
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api.errors import InvalidDocument
from mamba_api.quantity import SUFFIXES, UNITS, Duration, Quantity
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.documents import load_documents

budget = settings(max_examples=25)

name = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
quantity = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(sorted(SUFFIXES)))
duration = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
words = st.text(string.ascii_letters + string.digits + " -_=/:#'\"{}[]&*!|>%@`,.?\n\té世", max_size=30)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
free_form = st.dictionaries(words, json_value, max_size=3)
keys = st.sampled_from(["metadata", "spec", "name", "model", "uri", "engine", "env", "memory", "arena"])
odd_documents = st.recursive(
    json_value, lambda inner: st.dictionaries(keys, inner) | st.lists(inner, max_size=3), max_leaves=20
)
uri = st.one_of(
    st.builds("hf://{}/{}".format, name, name),
    st.builds("hf://{}/{}@{}".format, name, name, name),
    st.builds("pvc://{}/{}".format, name, name),
    st.builds("s3://{}/{}".format, st.from_regex(r"[a-z0-9][a-z0-9-]{1,20}[a-z0-9]", fullmatch=True), name),
    st.builds("https://example.test/{}".format, name),
    st.builds("file:///{}".format, name),
    st.builds("builtin://{}".format, st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)),
)


def part(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    page = draw(st.sampled_from([1, 8, 16, 64]))
    low = draw(st.integers(0, 5))
    return {
        "model": {
            "uri": draw(uri),
            **draw(part(servedName=name, maxModelLen=st.integers(1, 10**6), config=free_form)),
        },
        "engine": {
            "pageSize": page,
            **draw(part(extraArgs=st.lists(words, max_size=4), overlapSchedule=st.booleans())),
        },
        "stateCache": {"trackInterval": page * draw(st.integers(1, 64))},
        "resources": {"gpus": draw(st.integers(0, 1)), **draw(part(cpu=quantity, memory=quantity))},
        "replicas": low,
        "scaling": {
            "minReplicas": low,
            "maxReplicas": low + draw(st.integers(1, 5)),
            "scaleDownDelay": draw(duration),
        },
        **draw(
            part(
                memory=part(deviceMemory=quantity, arena=quantity, utilization=st.floats(0.01, 1)),
                workload=part(promptTokens=st.integers(1, 10**6), sharedPrefixRatio=st.floats(0, 1)),
                podTemplate=free_form,
                scheduling=part(
                    tolerations=st.lists(free_form, max_size=2), nodeSelector=st.just({"a/b": "c"})
                ),
            )
        ),
    }


def data(spec: dict[str, Any], called: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": called},
        "spec": spec,
    }


def problems(text: str) -> list[str]:
    try:
        load_documents(text, "x")
    except InvalidDocument as error:
        return error.problems
    return []


def contains(whole: Any, part_: Any) -> bool:
    """Return whether nothing of `part_` was lost or changed in `whole`."""
    if isinstance(part_, dict):
        return isinstance(whole, dict) and all(
            key in whole and contains(whole[key], part_[key]) for key in part_
        )
    return bool(whole == part_)


@budget
@given(specs(), name)
def test_what_the_user_wrote_is_kept_to_the_letter(spec: dict[str, Any], called: str) -> None:
    manifest = MambaDeployment.model_validate(data(spec, called)).manifest()
    assert contains(manifest["spec"], spec)


@budget
@given(specs(), name)
def test_a_manifest_is_its_own_manifest_through_json_and_yaml(spec: dict[str, Any], called: str) -> None:
    once = MambaDeployment.model_validate(data(spec, called)).manifest()
    assert MambaDeployment.model_validate(json.loads(json.dumps(once))).manifest() == once
    (read,) = load_documents(yaml.safe_dump(once, allow_unicode=True), "x")
    assert read.manifest() == once


@budget
@given(odd_documents)
def test_no_document_whatever_raises_anything_but_a_clear_error(value: Any) -> None:
    if isinstance(value, dict):
        value = {**value, "apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaDeployment"}
    assert all(line.startswith("x") for line in problems(yaml.safe_dump(value)))


@budget
@given(st.text(max_size=200))
def test_no_text_whatever_raises_anything_but_a_clear_error(text: str) -> None:
    assert all(line.startswith("x") for line in problems(text))


@budget
@given(st.integers(0, 10**9), st.sampled_from(sorted(SUFFIXES)))
def test_a_quantity_is_its_number_times_its_unit(number: int, suffix: str) -> None:
    assert Quantity(f"{number}{suffix}").value == number * SUFFIXES[suffix]


@budget
@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert abs(Duration(text).seconds - float(sum(number * UNITS[unit] for number, unit in parts))) < 1e-6
