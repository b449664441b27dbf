"""Resource profiles: what an object with one asks for in the end, and files with profiles."""

from typing import Any

import pytest

from mamba_api.errors import InvalidDocument, InvalidProfile, UnknownProfile
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.profiles import ResourceProfile, profile_in_words, read_profiles, with_profile

LABELS = {"nvidia.com/gpu.product": "NVIDIA-L4", "pool": "a"}
TAINT, OTHER = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
PROFILE: dict[str, Any] = {
    "gpus": 1, "gpuResource": "example.com/gpu", "cpu": "3", "memory": "12Gi", "deviceMemory": "23034Mi",
    "nodeSelector": LABELS, "tolerations": [TAINT], "runtimeClassName": "nvidia",
}  # fmt: skip


def deployment(**spec: Any) -> MambaDeployment:
    whole = {"metadata": {"name": "a"}, "spec": {"model": {"uri": "builtin://tiny-recall"}, **spec}}
    return MambaDeployment.model_validate(whole)


def filled(profile: dict[str, Any] = PROFILE, **spec: Any) -> dict[str, Any]:
    """Return the spec of an object with the profile, as plain data."""
    spec = {**spec, "resources": {"profile": "mine", **spec.get("resources", {})}}
    made = with_profile(deployment(**spec), {"mine": ResourceProfile.model_validate(profile)})
    return dict(made.manifest()["spec"])


def test_all_that_a_profile_says_is_filled_in() -> None:
    spec = filled()

    assert spec["resources"] == {
        "profile": "mine", "gpus": 1, "gpuResource": "example.com/gpu", "cpu": "3", "memory": "12Gi",
    }  # fmt: skip
    assert spec["scheduling"] == {
        "nodeSelector": LABELS, "tolerations": [TAINT], "runtimeClassName": "nvidia",
    }  # fmt: skip
    assert spec["memory"]["deviceMemory"] == "23034Mi"


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("resources", "gpus", 0), ("resources", "gpuResource", "other.com/gpu"), ("resources", "cpu", "1"),
        ("resources", "memory", "1Gi"), ("scheduling", "runtimeClassName", "mine"),
        ("memory", "deviceMemory", "8Gi"), ("memory", "utilization", 0.5),
    ],
)  # fmt: skip
def test_what_the_object_says_wins(part: str, field: str, value: Any) -> None:
    assert filled(**{part: {field: value}})[part][field] == value


@pytest.mark.parametrize(("field", "value"), [("gpus", 1), ("gpuResource", "nvidia.com/gpu")])
def test_a_default_wins_where_the_object_says_it_and_not_where_it_does_not(field: str, value: Any) -> None:
    profile = {"gpus": 0, "gpuResource": "example.com/gpu"}

    assert filled(profile, resources={field: value})["resources"][field] == value
    assert filled(profile)["resources"][field] == profile[field]


def test_an_object_that_is_written_and_read_again_leaves_as_much_to_its_profile() -> None:
    before = deployment(resources={"profile": "mine"})

    after = MambaDeployment.model_validate(before.manifest())

    assert after.manifest()["spec"]["resources"] == {"profile": "mine"}
    assert after.spec.resources.gpus == 1


def test_node_labels_and_tolerations_of_both_hold() -> None:
    said = {"nodeSelector": {"pool": "b", "zone": "c"}, "tolerations": [OTHER, TAINT]}

    scheduling = filled(scheduling=said)["scheduling"]

    assert scheduling["nodeSelector"] == {**LABELS, "pool": "b", "zone": "c"}
    assert scheduling["tolerations"] == [OTHER, TAINT]


@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"gpus": 0}},
        {"resources": {"gpuResource": "nvidia.com/mig-1g.6gb"}},
        {"scheduling": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}}},
    ],
)
def test_the_memory_of_a_device_is_not_taken_for_another_one(change: dict[str, Any]) -> None:
    assert "deviceMemory" not in filled(**change)["memory"]
    assert "deviceMemory" in filled(scheduling={"nodeSelector": {"zone": "c"}})["memory"]


def test_an_object_without_a_profile_is_as_it_was() -> None:
    one = deployment(resources={"cpu": "2"})
    assert with_profile(one, {}) is one


def test_a_profile_that_is_not_there_is_answered_with_those_that_are() -> None:
    known = {name: ResourceProfile() for name in ("nvidia-h100", "cpu")}
    with pytest.raises(UnknownProfile) as caught:
        with_profile(deployment(resources={"profile": "nvidia-h10"}), known)
    for words in ("spec.resources.profile", "nvidia-h10;", "did you mean nvidia-h100", "cpu, nvidia-h100"):
        assert words in str(caught.value)


@pytest.mark.parametrize("profile", [{"gpus": 1}, {}])
def test_an_object_that_breaks_a_rule_with_its_profile_is_refused_in_the_words_of_the_rule(
    profile: dict[str, Any],
) -> None:
    with pytest.raises(InvalidProfile, match=r"resources\.profile mine: .*quantization int8"):
        filled(profile, engine={"quantization": "int8"})
    assert filled({"gpus": 0}, engine={"quantization": "int8"})["resources"]["gpus"] == 0


def test_what_came_of_a_profile_is_said_in_words() -> None:
    profiles = {"mine": ResourceProfile.model_validate(PROFILE)}
    said = profile_in_words(with_profile(deployment(resources={"profile": "mine", "cpu": "7"}), profiles))

    for words in (
        "mine", "gpus 1", "example.com/gpu", "cpu 7", "memory 12Gi", "deviceMemory 23034Mi",
        "nodeSelector nvidia.com/gpu.product=NVIDIA-L4,pool=a", "runtimeClassName nvidia",
    ):  # fmt: skip
        assert words in said
    assert profile_in_words(deployment()) == ""


def test_profiles_are_read_out_of_a_charts_values() -> None:
    mine = "mine: {gpus: 1, cpu: 3, nodeSelector: {a: b}}"
    text = f"image: {{tag: 1}}\nresourceProfiles:\n  {mine}\n  other:\n"

    found = read_profiles(text, "values.yaml")

    assert found == {
        "mine": ResourceProfile.model_validate({"gpus": 1, "cpu": 3, "nodeSelector": {"a": "b"}}),
        "other": ResourceProfile(),
    }
    assert read_profiles("resourceProfiles:\n", "values.yaml") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no resourceProfiles"),
        ("[]", "no resourceProfiles"),
        ("profiles: {}", "no resourceProfiles"),
        ("resourceProfiles: {}\n---\nresourceProfiles: {}", "no resourceProfiles"),
        ("resourceProfiles: [a]", "resourceProfiles"),
        ("resourceProfiles: {Mine: {}}", "resourceProfiles.Mine: 'Mine' does not match"),
        ("resourceProfiles: {a: [1]}", "resourceProfiles.a: [1] should be a mapping"),
        ("resourceProfiles: {a: {gpu: 1}}", "a.gpu: unknown field; did you mean gpus?"),
        ("resourceProfiles: {a: {gpus: 2}}", "a.gpus"),
        ("resourceProfiles: {a: {memory: 12GB}}", "a.memory"),
        ("resourceProfiles: {a: {}, a: {}}", "given twice"),
        ("resourceProfiles: {", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_field(text: str, says: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_profiles(text, "values.yaml")
    assert "values.yaml" in str(caught.value)
    assert says in str(caught.value)
