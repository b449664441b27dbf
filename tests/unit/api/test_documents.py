"""YAML documents: what is read, and how a person is told what is wrong."""

import pytest

from mamba_api.documents import MAX_DOCUMENTS, field_path, load_documents
from mamba_api.errors import InvalidDocument

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
        + document("  scaling: {minReplicas: 2}", "b")
    )
    assert len(found) == 3
    assert "spec.engine.pageSize: 0 should be greater than or equal to 1" in found[0]
    assert "did you mean 2G?" in found[1]
    assert "(b): spec.scaling: minReplicas is above maxReplicas" in found[2]


def test_a_wrong_choice_lists_the_right_ones() -> None:
    (line,) = problems(document("  stateCache: {strategy: Lazy}"))
    assert line.endswith(
        "spec.stateCache.strategy: Lazy is not one of Auto, NoBuffer, ExtraBuffer or ExtraBufferLazy"
    )


def test_a_missing_field_is_named() -> None:
    (line,) = problems(HEAD + "metadata: {name: a}\nspec: {model: {}}")
    assert line == "mamba.yaml: document 1 (a): spec.model.uri: missing"


def test_a_section_that_is_no_mapping_is_named() -> None:
    (line,) = problems(document("  engine: 4"))
    assert line.endswith("spec.engine: 4 should be a mapping")


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
    assert line == "mamba.yaml: nano is given twice in the namespace default"


def test_too_many_documents_are_refused() -> None:
    assert "more than" in problems("---\na: 1\n" * (MAX_DOCUMENTS + 1))[0]


def test_a_path_is_written_as_people_write_it() -> None:
    assert field_path(("spec", "engine", "env", 0, "name")) == "spec.engine.env[0].name"
    assert field_path(()) == ""
