"""Each rule is written twice, in CEL for the API server and in Python: both say the same of any object.

CEL is evaluated by a reading of the few constructs that the rules use; what it cannot read fails the test.
"""

import ast
import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mamba_api.errors import ContractError
from mamba_api.model_uri import parse_model_uri
from mamba_api.quantity import MAX_LENGTH, Duration, Quantity
from mamba_api.v1alpha1 import (
    Canary,
    DiskCache,
    Engine,
    EnvVar,
    Gateway,
    Limits,
    MambaDeployment,
    Model,
    ModelCache,
    Pool,
    Redis,
    Resources,
    Rollout,
    Scaling,
    Spec,
    TieredStateCache,
)
from mamba_api.v1alpha1.base import ApiModel
from mamba_api.v1alpha1.gateway_usage import ModelPrices, Prices, PricesByModel
from mamba_api.v1alpha1.mamba_gateway import (
    LabelRequirement,
    MambaGatewaySpec,
    ModelAliases,
    ModelFallbacks,
)
from mamba_api.v1alpha1.model_source import Adapter
from mamba_api.v1alpha1.pools import Disaggregation, PoolScaling, PoolStateCache
from mamba_api.v1alpha1.schema import custom_resource_definition

SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


TERNARY = re.compile(r"^(.*\()?([^()?]*(?:\([^()]*\))?[^()?]*) \? (.*) : (.*?)(\)?)$")


class Absent(Exception):
    """CEL's error for a field that is not there."""


def cel(expression: str, value: Any) -> Any:
    """Evaluate a CEL expression over `self`."""
    text = TERNARY.sub(r"\1\3 if \2 else \4\5", expression)
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    return _value(ast.parse(text.strip(), mode="eval").body, value)


class _Bound(ast.NodeTransformer):
    """Puts an item in the place of the variable of a macro."""

    def __init__(self, variable: str, item: Any) -> None:
        self._variable, self._item = variable, item

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._item) if node.id == self._variable else node


def _value(node: ast.expr, value: Any) -> Any:
    match node:
        case ast.Constant(constant):
            return constant
        case ast.Name("self"):
            return value
        case ast.List(items):
            return [_value(item, value) for item in items]
        case ast.Attribute(of, name):
            inner = _value(of, value)
            if name not in inner:
                raise Absent(name)
            return inner[name]
        case ast.Call(ast.Name("has"), [ast.Attribute(of, name)]):
            return name in _value(of, value)
        case ast.Call(ast.Attribute(of, "matches"), [ast.Constant(pattern)]):
            return re.search(pattern, _value(of, value)) is not None
        case ast.Compare(ast.Call(ast.Name("type"), [of]), [ast.Eq()], [ast.Name("string")]):
            return isinstance(_value(of, value), str)
        case ast.Call(
            ast.Attribute(
                ast.Call(ast.Attribute(of, "map"), [ast.Name(item), ast.Attribute(ast.Name(same), name)]),
                "isSorted",
            ),
            [],
        ) if item == same:
            numbers = [one[name] for one in _value(of, value)]
            return numbers == sorted(numbers)
        case ast.Call(ast.Attribute(of, ("exists" | "all") as macro), [ast.Name(item), body]):
            holds = (_value(_Bound(item, one).visit(copy.deepcopy(body)), value) for one in _value(of, value))
            return any(holds) if macro == "exists" else all(holds)
        case ast.Call(ast.Name("duration"), [of]):
            return Duration(_value(of, value)).seconds
        case ast.Call(ast.Name("size"), [of]):
            return len(_value(of, value))
        case ast.BoolOp(ast.And(), parts):
            return all(_value(part, value) for part in parts)
        case ast.BoolOp(ast.Or(), parts):
            return any(_value(part, value) for part in parts)
        case ast.UnaryOp(ast.Not(), inner_node):
            return not _value(inner_node, value)
        case ast.IfExp(test, body, orelse):
            return _value(body if _value(test, value) else orelse, value)
        case ast.BinOp(left, ast.Mod(), right):
            return _value(left, value) % _value(right, value)
        case ast.Compare(left, [operator], [right]):
            return _compare(operator, _value(left, value), _value(right, value))
    raise AssertionError(f"no reading of {ast.dump(node)}")


def _compare(operator: ast.cmpop, left: Any, right: Any) -> bool:
    match operator:
        case ast.Eq():
            return bool(left == right)
        case ast.NotEq():
            return bool(left != right)
        case ast.LtE():
            return bool(left <= right)
        case ast.GtE():
            return bool(left >= right)
        case ast.Lt():
            return bool(left < right)
        case ast.Gt():
            return bool(left > right)
        case ast.In():
            return left in right
    raise AssertionError(f"no reading of {operator}")


@pytest.mark.parametrize(
    ("expression", "value", "says"),
    [
        ("self.a % self.b == 0", {"a": 4, "b": 2}, True),
        ("!has(self.a) || self.a >= 1", {}, True),
        ("!(has(self.a) && has(self.b))", {"a": 1, "b": 1}, False),
        ("has(self.a) != has(self.b)", {"a": 1}, True),
        ("self.a <= (self.b > 1 ? self.b : 1)", {"a": 2, "b": 0}, False),
        ("self.a <= (self.b > 1 ? self.b : 1)", {"a": 3, "b": 3}, True),
        ("type(self.a) == string ? self.a.matches('[1-9]') : self.a > 0", {"a": "0.0Gi"}, False),
        ("type(self.a) == string ? self.a.matches('[1-9]') : self.a > 0", {"a": 5}, True),
        ("duration(self.a) <= duration('1h')", {"a": "59m60.1s"}, False),
        ("!has(self.a) || size(self.a) == 0", {"a": ["x"]}, False),
        ("self.a.map(one, one.b).isSorted()", {"a": [{"b": 1}, {"b": 1}, {"b": 2}]}, True),
        ("self.a.map(one, one.b).isSorted()", {"a": [{"b": 2}, {"b": 1}]}, False),
        ("(self.a in ['x', 'y']) == has(self.b)", {"a": "x", "b": 1}, True),
        ("!(self.a in self.b)", {"a": 1, "b": [1]}, False),
        ("self.a.exists(one, one.b == self.b)", {"a": [{"b": 1}, {"b": 2}], "b": 2}, True),
        ("self.a.all(one, one.b == self.b)", {"a": [{"b": 1}, {"b": 2}], "b": 2}, False),
        ("self.m != 'External' || (!has(self.x) && !has(self.y))", {"m": "External", "y": 1}, False),
    ],
)
def test_the_reading_of_cel_is_that_of_its_specification(expression: str, value: Any, says: bool) -> None:
    assert cel(expression, value) is says


def stored(model: type[ApiModel], data: dict[str, Any]) -> ApiModel:
    """Return the object with its defaults, as it is before any rule is applied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "rules", ())
        return model.model_validate(data)


def refused(model: type[ApiModel], data: dict[str, Any]) -> str:
    """Return the text with which Python refuses the object; empty if the object is valid."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return str(error)
    return ""


COUNT, SMALL = st.integers(0, 4), st.integers(1, 6)
TIMES = st.sampled_from(["0s", "0h0.0ms", "0.001ms", "1h", "0h1s", "10m"])
DEADLINES = st.sampled_from(["30m", "596523h", "596523h0.001ms", "999999h", "99999999999s"])
SIZES = st.sampled_from(["0", "0.0Gi", "1n", "0.1m", "16Mi", 0, 1, 4096])
DURATIONS = st.sampled_from(["1s", "50ms"])
NAMES = st.sampled_from(["a", "b"])


def some(
    required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional)


COMMIT = "0123456789" * 4
POOL = some(
    {}, replicas=SMALL, resources=some({}, gpus=st.integers(0, 1), profile=st.just("a")),
    stateCache=some({}, trackInterval=st.integers(1, 64), strategy=st.just("NoBuffer")),
)  # fmt: skip
SCALING = some(
    {}, mode=st.sampled_from(["Internal", "External"]), minReplicas=COUNT, maxReplicas=SMALL,
    ttftTarget=DURATIONS, tpotTarget=DURATIONS,
)  # fmt: skip
TARGET_SCALING = some(
    {"minReplicas": st.just(1), "maxReplicas": st.just(3)}, ttftTarget=DURATIONS, tpotTarget=DURATIONS
)
ADAPTERS = st.lists(
    some(
        {
            "name": NAMES,
            "uri": st.sampled_from(
                ["hf://a/c", f"hf://a/c@{COMMIT}", "s3://bucket/c", "gs://bucket/c", "pvc://claim/c"]
            ),
        }
    ),
    max_size=2,
    unique_by=lambda adapter: adapter["name"],
)
PRICED = dict.fromkeys(("deviceHour", "promptTokens", "resumedTokens", "outputTokens"), st.just(0))
OBJECTS: dict[type[ApiModel], st.SearchStrategy[dict[str, Any]]] = {
    Scaling: SCALING,
    Limits: some({}, queueTimeout=TIMES, requestTimeout=TIMES, maxBodySize=SIZES),
    Gateway: some(
        {}, auth=st.just({"secretRef": {"name": "k"}}),
        limits=some({}, keys=st.sampled_from([[], [{"name": "a"}]])),
        usage=some({}, readers=st.sampled_from([[], ["finance"]])),
    ),
    Engine: some({}, tensorParallel=SMALL),
    Resources: some({}, gpus=COUNT, profile=st.just("a")),
    Model: some(
        {"uri": st.sampled_from(["hf://a/b", f"hf://a/b@{COMMIT}", "pvc://claim/hf://a/b", "builtin://x", "file:///hf://a/b",
            "s3://bucket/a", f"s3://bucket/a?revision={COMMIT}", "gs://bucket/a", f"gs://bucket/a?revision={COMMIT}",
            "oci://registry/a:v1"])},
        cache=st.sampled_from([{"size": "1Gi"}, {"claimName": "c"}]), tokenSecretRef=st.just({"name": "hub"}),
        secretRef=st.just({"name": "bucket"}), servedName=NAMES, adapters=ADAPTERS, maxAdapters=SMALL,
        maxAdapterRank=SMALL, maxAdapterExpertRank=SMALL,
    ),
    Adapter: some({"name": NAMES, "uri": st.sampled_from(["hf://a/b", "builtin://a", "file:///builtin://a"])}),
    MambaDeployment: some(
        {
            "metadata": some({"name": NAMES}),
            "spec": some(
                {"model": some({"uri": st.just("hf://a/b")}, servedName=st.just("c"), adapters=ADAPTERS)}
            ),
        }
    ),
    ModelCache: some(
        {}, size=st.just("1Gi"), claimName=st.just("c"), storageClassName=st.just("s"),
        accessMode=st.sampled_from(["ReadWriteMany", "ReadWriteOnce"]),
    ),
    Rollout: some(
        {}, maxSurge=COUNT, maxUnavailable=COUNT, progressDeadline=st.one_of(DEADLINES, TIMES),
        minReadyTime=TIMES,
    ),
    Canary: some({"steps": st.lists(st.builds(lambda n: {"weight": n}, SMALL), min_size=1, max_size=3)}),
    Redis: some({}, url=st.just("redis://r:6379"), secretRef=st.just({"name": "r"})),
    EnvVar: some(
        {"name": st.just("A")}, value=st.sampled_from(["", "x"]), valueFrom=st.just({"fieldRef": {}})
    ),
    Spec: some(
        {
            "model": some(
                {"uri": st.just("builtin://tiny-recall")}, maxModelLen=SMALL, adapters=ADAPTERS,
                maxAdapters=st.just(2),
            )
        },
        replicas=COUNT,
        engine=st.one_of(
            some({}, pageSize=SMALL, quantization=st.sampled_from(["none", "int8", "int4"])),
            st.sampled_from([{"batchInvariant": True}, {"speculation": "Mtp"}]),
        ),
        resources=some({}, gpus=st.integers(0, 1), profile=st.just("a")),
        stateCache=some({}, trackInterval=st.integers(1, 64), prefixCaching=st.booleans()),
        scaling=some(
            {}, mode=st.just("External"), minReplicas=st.integers(0, 1), maxReplicas=SMALL,
            scaleDownDelay=st.sampled_from(["300s", "5m", "1s"]),
        ),
        gateway=some({}, inferencePool=st.just({"proxyNamespace": "envoy"})),
        rollout=some({}, canary=st.just({"steps": [{"weight": 5}]})),
        disaggregation=some(
            {}, prefill=POOL, decode=POOL, handOverTokens=SMALL,
            transport=st.sampled_from(["Sockets", "Nixl"]),
        ),
    ),
    Prices: some({}, currency=st.just("EUR"), **PRICED),
    PricesByModel: some(
        {}, currency=st.just("EUR"), **PRICED,
        models=st.sampled_from([[], [{"model": "m", "deviceHour": 1}]]),
    ),
    ModelPrices: some({"model": st.just("m")}, **PRICED),
    DiskCache: some({"size": SIZES}, storageClassName=st.just("ssd"), claimName=st.just("c")),
    TieredStateCache: some({}, prefixCaching=st.booleans(), hostMemory=SIZES, disk=st.just({"size": "1Gi"})),
    PoolStateCache: some({}, hostMemory=SIZES, trackInterval=SMALL),
    Pool: some(
        {}, replicas=SMALL, scaling=some({}, minReplicas=st.integers(1, 2), maxReplicas=st.integers(2, 6))
    ),
    PoolScaling: SCALING,
    LabelRequirement: some(
        {"key": st.just("team"), "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])},
        values=st.sampled_from([[], ["a"]]),
    ),
    ModelAliases: some({"model": NAMES, "names": st.lists(NAMES, min_size=1, max_size=2)}),
    ModelFallbacks: some({"model": NAMES, "to": st.lists(NAMES, min_size=1, max_size=2)}),
    MambaGatewaySpec: some(
        {"selector": st.just({})}, auth=st.just({"secretRef": {"name": "k"}}), maxBodySize=SIZES,
        keys=st.sampled_from([[], [{"name": "web", "models": ["*"]}]]),
        usage=some({}, readers=st.sampled_from([[], ["finance"]])),
    ),
    Disaggregation: some(
        {}, prefill=some({}, scaling=TARGET_SCALING), decode=some({}, scaling=TARGET_SCALING)
    ),
}  # fmt: skip


def ruled(root: type[ApiModel] = ApiModel) -> set[type[ApiModel]]:
    found = {root} if root.__dict__.get("rules") else set()
    return found.union(*(ruled(child) for child in root.__subclasses__()))


def test_every_model_with_a_rule_is_compared() -> None:
    assert ruled() == set(OBJECTS)


@pytest.mark.parametrize("model", OBJECTS, ids=lambda model: model.__name__)
@given(st.data())
def test_the_api_server_and_python_find_the_same_rules_broken(
    model: type[ApiModel], data: st.DataObject
) -> None:
    given_ = data.draw(OBJECTS[model])
    one = stored(model, given_)

    by_server = [rule.message for rule in model.rules if not cel(rule.cel, one.manifest())]
    by_python = [rule.message for rule in model.rules if not rule.holds(one)]
    words = refused(model, given_)

    assert by_server == by_python
    assert bool(words) == bool(by_python)
    assert all(message in words for message in by_python)


def field(*path: str) -> dict[str, Any]:
    node: dict[str, Any] = SPEC
    for name in path:
        node = node["properties"][name]
    return node


def matches(node: dict[str, Any], text: str) -> bool:
    """Return whether the API server accepts a text there: patterns are RE2, where `$` is the very end."""
    [rule] = node["x-kubernetes-validations"]
    [pattern] = re.findall(r"self\.matches\(r'(.*?)'\)", rule["rule"])
    return (
        len(text) <= node["maxLength"] and re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    )


NUMBERS = st.from_regex(r"[-+]?[0-9.]{0,6}", fullmatch=True)
UNITS = st.sampled_from(
    ["", "n", "u", "m", "k", "K", "M", "G", "Gi", "Ki", "Pi", "Ei", "GB", "gi", "e3", "s", "h", "ms", "\n"]
)
TEXTS = st.one_of(
    st.tuples(NUMBERS, UNITS).map("".join),
    st.lists(st.tuples(NUMBERS, UNITS).map("".join), max_size=3).map("".join),
    st.integers(28, 36).map(lambda digits: "9" * digits),
    st.text(max_size=8),
)


@given(TEXTS)
def test_a_quantity_is_one_at_both_doors(text: str) -> None:
    assert accepted(Quantity, text) == matches(field("memory", "deviceMemory"), text)


@given(TEXTS)
def test_a_duration_is_one_at_both_doors(text: str) -> None:
    assert accepted(Duration, text) == matches(field("rollout", "drainTimeout"), text)


PARTS = st.sampled_from(
    ["hf", "pvc", "file", "builtin", "HF", "://", ":/", "/", "a", "B", "a.b", "-", "_", "@", "v1", " ", "\n",
     "x-1", "9"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=7).map("".join))
def test_a_model_uri_is_one_at_both_doors(text: str) -> None:
    if ".." not in text.split("/"):
        assert accepted(parse_model_uri, text) == matches(field("model", "uri"), text)


def accepted(make: Any, text: str) -> bool:
    try:
        make(text)
    except ContractError:
        return False
    return True


@pytest.mark.parametrize("length", [MAX_LENGTH, MAX_LENGTH + 1])
def test_the_longest_spelling_is_the_same_at_both_doors(length: int) -> None:
    text = "1" * (length - 2) + "Gi"

    assert (
        accepted(Quantity, text) == matches(field("memory", "deviceMemory"), text) == (length == MAX_LENGTH)
    )
