"""YAML documents: what is read, and how a person is told what is wrong."""

import contextlib
import re

import pytest

from mamba_api.errors import InvalidDocument
from mamba_api.v1alpha1.documents import MAX_DOCUMENTS, field_path, load_documents

HEAD = "apiVersion: serving.mambaserve.io/v1alpha1\nkind: MambaDeployment\n"


def document(spec: str, name: str = "nano") -> str:
    return f"{HEAD}metadata: {{name: {name}}}\nspec:\n  model: {{uri: builtin://tiny-recall}}\n{spec}\n"


def problems(text: str, source: str = "mamba.yaml") -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        load_documents(text, source)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_several_documents_are_read_in_order_and_other_kinds_are_skipped() -> None:
    secret = "kind: Secret\napiVersion: v1\nmetadata: {name: keys}\n"
    text = "---\n".join([document("", "a"), secret, "", document("", "b")])
    assert [d.name for d in load_documents(text, "x")] == ["a", "b"]


def test_a_typo_is_answered_with_file_document_name_path_and_the_nearest_field() -> None:
    text = document("", "a") + "---\n" + document("  stateCache: {trackIntervall: 3}", "b")
    (line,) = problems(text)
    assert line.startswith("mamba.yaml: document 2 (b): spec.stateCache.trackIntervall: ")
    assert line.endswith("unknown field; did you mean trackInterval?")


@pytest.mark.parametrize(
    ("spec", "path", "hint"),
    [
        ("  statecache: {}", "spec.statecache", "did you mean stateCache?"),
        ("  state_cache: {}", "spec.state_cache", "did you mean stateCache?"),
        ("  engine: {env: [{nme: x}]}", "spec.engine.env[0].nme", "did you mean name?"),
        ("  gateway: {limit: {}}", "spec.gateway.limit", "did you mean limits?"),
        ("  memory: {zzz: 1}", "spec.memory.zzz", "known here: arena, deviceMemory, utilization"),
        ("  scaling: {ttft: 1s}", "spec.scaling.ttft", "did you mean ttftTarget?"),
    ],
)
def test_an_unknown_field_is_answered_with_what_is_known(spec: str, path: str, hint: str) -> None:
    line = next(p for p in problems(document(spec)) if f"{path}:" in p)
    assert hint in line


def test_all_problems_of_all_documents_are_told_at_once() -> None:
    found = problems(
        document("  engine: {pageSize: 0}\n  memory: {arena: 2GB}", "a")
        + "---\n"
        + document("  scaling: {minReplicas: 2, maxReplicas: 1}", "b")
    )
    assert len(found) == 4
    assert "spec.engine.pageSize: 0 " in found[0]
    assert "did you mean 2G?" in found[1]
    assert "(b): spec.scaling: " in found[2]
    assert "(b): spec: " in found[3]


def test_a_broken_rule_of_a_part_does_not_hide_those_of_the_whole() -> None:
    found = problems(document("  replicas: 1\n  scaling: {mode: External, minReplicas: 2, ttftTarget: 1s}"))
    assert len(found) == 2
    assert "spec.scaling: ttftTarget" in found[0]
    assert "spec: spec.replicas is below scaling.minReplicas" in found[1]


def test_a_wrong_choice_lists_the_right_ones() -> None:
    (line,) = problems(document("  stateCache: {strategy: Lazy}"))
    assert "spec.stateCache.strategy: Lazy " in line
    assert re.findall(r"Auto\b|NoBuffer\b|ExtraBuffer\w*", line) == [
        "Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("  stateCache: {strategy: extrabuffer}", "ExtraBufferLazy; did you mean ExtraBuffer?"),
        ("  stateCache: {eviction: lru}", "lru is not one of RecomputeCost or LRU; did you mean LRU?"),
        ("  stateCache: {trackInterval: '256'}", "spec.stateCache.trackInterval: '256' should be an integer"),
        ("  engine: {env: {A: b}}", "spec.engine.env: {'A': 'b'} should be a list"),
        ("  engine: {image: ''}", "spec.engine.image: '': must not be empty"),
        ("  engine: {extraArgs: [" + "a, " * 65 + "]}", ": at most 64 items"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_in_words_of_yaml(spec: str, says: str) -> None:
    (line,) = problems(document(spec))
    assert says in line


@pytest.mark.parametrize("name", ["My_Model", "1st", "model-"])
def test_a_name_that_is_none_says_what_one_is_made_of(name: str) -> None:
    (line,) = problems(document("", name))
    assert f"metadata.name: '{name}': " in line
    assert "a-z, 0-9 and -" in line


def test_a_missing_field_is_named() -> None:
    (line,) = problems(HEAD + "metadata: {name: a}\nspec: {model: {}}")
    assert line.startswith("mamba.yaml: document 1 (a): spec.model.uri: ")


def test_a_section_that_is_no_mapping_is_named() -> None:
    (line,) = problems(document("  engine: 4"))
    assert "spec.engine: 4 " in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "kind: MambaDeployment\n",
            "apiVersion is missing: write apiVersion: serving.mambaserve.io/v1alpha1",
        ),
        ("apiVersion: v1\n", "kind is missing"),
        (
            "kind: MambaDeployment\napiVersion: serving.mambaserve.io/v9\n",
            "'serving.mambaserve.io/v9' is not served",
        ),
        ("kind: MambaDeploy\napiVersion: serving.mambaserve.io/v1alpha1\n", "'MambaDeploy' is unknown"),
        ("[1, 2]", "a Kubernetes object is a mapping, this is a list"),
        ("just text", "a Kubernetes object is a mapping, this is a str"),
    ],
)
def test_a_document_that_was_meant_to_be_ours_is_not_silently_skipped(text: str, says: str) -> None:
    assert says in problems(text)[0]


@pytest.mark.parametrize("text", ["", "---\n", "# only a comment\n", "kind: Secret\napiVersion: v1\n"])
def test_a_file_without_any_deployment_is_an_error(text: str) -> None:
    assert problems(text) == [
        (
            "mamba.yaml: no MambaDeployment in it: a document needs kind: MambaDeployment and "
            "apiVersion: serving.mambaserve.io/v1alpha1"
        )
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "line 1, column 5: not valid YAML"),
        ("a: 1\na: 2", "line 2, column 1: not valid YAML: 'a' is given twice"),
        ("a: &x 1\nb: *x", "aliases (*name) are not supported"),
        ("1: x", "keys are strings: quote 1"),
        ("yes: x", "keys are strings: quote True"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: \n  b: 0x_", "line 2, column 6: not valid YAML: '0x_' cannot be read: quote it if it is text"),
        ("a: 0b_", "'0b_' cannot be read"),
        ("a: " + "1" * 5000, "line 1, column 4: not valid YAML: '1111"),
        ("a: !!int x", "'x' cannot be read"),
        ("a: !!float x", "'x' cannot be read"),
        ("a: !!bool maybe", "'maybe' cannot be read"),
        ("a: !!str [b]", "expected a scalar node"),
        ("<<: {a: 1}", "line 1, column 1: not valid YAML"),
        ("a: &x [*x]", "aliases (*name) are not supported"),
        ("? [a]\n: b", "keys are strings: quote ['a']"),
        ("%YAML 9.9\n---\na: 1", "not valid YAML"),
        ("a: b: c", "line 1, column 5: not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("\t- a", "not valid YAML"),
        ("{" * 5000, "not valid YAML"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_place(text: str, says: str) -> None:
    assert says in problems(text)[0]


def test_times_stay_text() -> None:
    spec = "  podTemplate: {metadata: {annotations: {since: 2026-01-01T00:00:00Z}}}"
    (read,) = load_documents(document(spec), "x")
    assert read.spec.pod_template == {"metadata": {"annotations": {"since": "2026-01-01T00:00:00Z"}}}


def test_one_name_twice_in_a_namespace_is_refused() -> None:
    (line,) = problems(document("") + "---\n" + document(""))
    assert line.startswith("mamba.yaml: nano ")
    assert "namespace default" in line


def test_too_many_documents_are_refused() -> None:
    assert "more than" in problems("---\na: 1\n" * (MAX_DOCUMENTS + 1))[0]


def test_a_path_is_written_as_people_write_it() -> None:
    assert field_path(("spec", "engine", "env", 0, "name")) == "spec.engine.env[0].name"
    assert field_path(()) == ""


@pytest.mark.parametrize(
    "scalar",
    ["0x_", "0b_", "1" * 5000, "!!int x", "!!bool x", "!!float x", "1e999", ".nan", "-.inf", "2001-99-99"],
)
@pytest.mark.parametrize(
    "field", ["memory: {utilization: %s}", "engine: {pageSize: %s}", "model: {config: {x: %s}}"]
)
def test_a_scalar_of_any_kind_in_any_place_is_read_or_refused_in_words(scalar: str, field: str) -> None:
    text = document("  " + field % scalar)

    with contextlib.suppress(InvalidDocument):
        assert len(load_documents(text, "mamba.yaml")) == 1


def test_a_size_that_is_long_is_shortened_in_the_message() -> None:
    (line,) = problems(document(f"  engine: {{pageSize: {'x' * 500}}}"))
    assert len(line) < 200
    assert "xxx..." in line


def test_an_environment_variable_that_is_given_twice_is_named() -> None:
    (line,) = problems(document("  engine: {env: [{name: A, value: x}, {name: B}, {name: A, value: y}]}"))
    assert "spec.engine.env: A " in line


def test_two_adapters_of_one_name_are_named() -> None:
    twice = "[{name: x, uri: 'hf://a/x'}, {name: x, uri: 'hf://a/y'}]"
    text = document("").replace("model: {", f"model: {{adapters: {twice}, ", 1)
    (line,) = problems(text)
    assert "spec.model.adapters: x is set twice" in line


def test_one_name_in_two_namespaces_is_two_deployments() -> None:
    first = document("").replace("{name: nano}", "{name: nano, namespace: a}")
    second = document("").replace("{name: nano}", "{name: nano, namespace: b}")
    assert [one.namespace for one in load_documents(f"{first}---\n{second}", "x")] == ["a", "b"]


def test_as_many_documents_as_are_allowed_are_read() -> None:
    other = "---\nkind: Secret\napiVersion: v1\n" * (MAX_DOCUMENTS - 1)
    assert len(load_documents(document("") + other, "x")) == 1


def test_a_problem_in_one_document_does_not_hide_those_of_the_next() -> None:
    found = problems(
        "- a list\n---\nkind: MambaDeploy\napiVersion: serving.mambaserve.io/v1\n---\n" + document("  x: 1")
    )
    assert [line.split(":")[1].split(" (")[0].strip() for line in found] == [
        "document 1",
        "document 2",
        "document 3",
    ]


def test_a_deployment_of_a_group_that_is_not_ours_is_somebody_elses() -> None:
    other = "kind: MambaDeployment\napiVersion: other.io/v1\n"
    assert "apiVersion: 'other.io/v1' is not served" in problems(other)[0]
