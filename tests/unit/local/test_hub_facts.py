"""Planning a model of the Hub: two small files are read, the weights never."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.local.model_facts import HUB_INDEX, ModelFacts, facts_of_model
from mamba_cli.local.planning import PlanFlags, plan_uri
from small_hub import Hub, point_at, small_hub

CONFIG = (Path(__file__).parents[2] / "golden" / "configs" / "granite-4.0-h-350m.json").read_bytes()
URI = "hf://owner/name"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    index = json.dumps({"metadata": {"total_size": 680_000_000}, "weight_map": {}}).encode()
    files = {"config.json": CONFIG, HUB_INDEX: index, "model-00001-of-00002.safetensors": b"never read"}
    # The client's own pauses between its attempts.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    with small_hub(monkeypatch, str(tmp_path / "cache"), files) as found:
        yield found


def facts(uri: str = URI) -> ModelFacts:
    return facts_of_model(uri, None, Path("f.yaml"))


def test_configuration_and_index_are_read_and_nothing_else(hub: Hub) -> None:
    found = facts()
    assert found.config.family == "granitemoehybrid"
    assert found.weights_bytes(None) == 680_000_000
    assert found.weights_bytes("float32") == 1_360_000_000
    assert sorted(hub.served) == ["config.json", HUB_INDEX]


def test_without_an_index_the_weights_follow_from_the_parameters(hub: Hub) -> None:
    del hub.files[HUB_INDEX]
    assert facts().size is None


def test_bytes_of_an_index_are_no_number_of_fp8_weights(hub: Hub) -> None:
    section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    hub.files["config.json"] = json.dumps({**json.loads(CONFIG), "quantization_config": section}).encode()
    assert facts().size is None


@pytest.mark.parametrize("indexed", [False, True])
def test_each_file_is_asked_for_once_but_an_index_that_is_there(hub: Hub, indexed: bool) -> None:
    if not indexed:
        del hub.files[HUB_INDEX]
    facts()
    # The client asks for name and size of a file before it is sent.
    config = ["HEAD config.json", "GET config.json"]
    index = [f"HEAD {HUB_INDEX}", f"GET {HUB_INDEX}"] if indexed else []
    assert hub.asked == [f"HEAD {HUB_INDEX}", *config, *index]


def test_a_hub_that_is_away_is_told_at_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", pauses.append)
    point_at(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(RunFailed):
        facts()
    assert pauses == []


def test_what_is_in_the_cache_is_planned_while_the_hub_is_away(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = facts()
    hub.served.clear()
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert facts() == first
    assert hub.served == []


def test_a_hub_that_is_away_is_a_failure_with_a_way_to_plan_without_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(RunFailed, match=r"could not fetch .*; or give spec\.model\.config in the file$"):
        facts()
    # Where no file was given none is named.
    with pytest.raises(
        RunFailed, match=rf"^{URI}: could not fetch .* local directory, its config\.json or a"
    ):
        plan_uri(URI, PlanFlags())


def test_an_index_that_was_never_fetched_is_done_without_while_the_hub_is_away(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = hub.files.pop(HUB_INDEX)
    facts()
    hub.files[HUB_INDEX] = index
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert facts().size is None


def test_a_repository_without_a_configuration_is_named(hub: Hub) -> None:
    del hub.files["config.json"]
    with pytest.raises(RunFailed, match=rf"^{URI}: the Hub has no config\.json there"):
        facts()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[1]"),
        ("config.json", b"null"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b"[" * 100_000),
        (HUB_INDEX, b"{}"),
        (HUB_INDEX, b'{"metadata": null}'),
        (HUB_INDEX, b'{"metadata": {"total_size": "many"}}'),
        (HUB_INDEX, b"<html>"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_a_failure_of_the_hub(
    hub: Hub, name: str, content: bytes
) -> None:
    hub.files[name] = content
    with pytest.raises(RunFailed, match=f"^{URI}: the Hub sent files that cannot be read"):
        facts()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model_type": "llama", "architectures": []}, "'llama'"), ({"hidden_size": "wide"}, "hidden_size")],
)
def test_a_model_that_cannot_be_planned_is_invalid_input(
    hub: Hub, change: dict[str, object], words: str
) -> None:
    hub.files["config.json"] = json.dumps({**json.loads(CONFIG), **change}).encode()
    with pytest.raises(InvalidInput, match=rf"^{URI}: config\.json: .*{words}"):
        facts()


@pytest.mark.parametrize(("status", "code"), [(401, "RepoNotFound"), (403, "GatedRepo"), (500, "")])
def test_a_refusal_ends_as_a_failure_and_names_the_model(hub: Hub, status: int, code: str) -> None:
    hub.refuse = (status, code)
    with pytest.raises(CliError, match=f"^{URI}@v2: ") as caught:
        facts(f"{URI}@v2")
    assert caught.value.exit_code == 1
