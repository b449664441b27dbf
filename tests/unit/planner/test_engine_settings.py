"""Settings of an engine: where they come from, what is refused and how, and the way to the other process."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mamba_settings.engine_settings import EngineSettings

LIMITS = [
    ("port", -1), ("port", 65_536), ("admin_port", 70_000), ("track_interval", 0), ("page_size", 0),
    ("page_size", 1025), ("max_model_len", 0), ("max_running_requests", 0), ("chunked_prefill_tokens", 0),
    ("utilization", 0.0), ("utilization", 1.01), ("utilization", float("nan")), ("arena_bytes", -1),
    ("max_checkpoints_per_path", 0), ("max_waiting_requests", 0), ("max_body_bytes", 1023),
    ("drain_timeout", -0.1), ("engine_silence", 0), ("strategy", "nobuffer"), ("dtype", "float64"),
    ("state_dtype", "bfloat16"), ("device", "tpu"), ("eviction", "FIFO"), ("log_level", "trace"),
]  # fmt: skip


def fields_of(error: ValidationError) -> list[str]:
    return [str(each["loc"][0]) for each in error.errors()]


@pytest.mark.parametrize(("name", "value"), LIMITS)
def test_a_value_out_of_range_is_refused_under_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings(model="m", **{name: value})
    assert fields_of(caught.value) == [name]


@pytest.mark.parametrize(("name", "value"), LIMITS)
def test_a_text_of_a_flag_or_a_variable_is_checked_as_strictly(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings(model="m", **{name: str(value)})
    assert fields_of(caught.value) == [name]


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings(model="m", page_size=0, port=-1, stratgy="NoBuffer")
    assert sorted(fields_of(caught.value)) == ["page_size", "port", "stratgy"]


def test_a_model_is_needed() -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings()
    assert fields_of(caught.value) == ["model"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2Gi", 2 << 30), ("2GiB", 2 << 30), ("2gi", 2 << 30), ("2G", 2 * 10**9), ("1.5Gi", 3 << 29),
        (" 512Mi\n", 512 << 20), ("2 Gi", 2 << 30), ("4096", 4096), (4096, 4096), ("1Ki", 1024), ("1k", 1000),
        (".5Ki", 512), ("1Ti", 1 << 40),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_and_kubernetes_write_them(text: str | int, size: int) -> None:
    assert EngineSettings(model="m", arena_bytes=text).arena_bytes == size


@pytest.mark.parametrize(
    "text", ["1,5Gi", "1,000,000", "2Gi or so", "1.2.3Gi", "-2Gi", "Gi", "", "1e9", "2_000"]
)
def test_a_size_that_can_only_be_read_in_part_is_refused_with_ones_that_can_be_read(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings(model="m", device_memory=text)
    (error,) = caught.value.errors()
    assert error["loc"] == ("device_memory",)
    assert error["msg"] == f"'{text}' is no number of bytes: write it like 1536Mi, 1.5Gi or 2G"


def test_a_unit_nobody_knows_is_named() -> None:
    with pytest.raises(ValidationError, match="parsec"):
        EngineSettings(model="m", arena_bytes="12 parsec")


def test_what_one_process_hands_over_the_other_takes_whole() -> None:
    settings = EngineSettings(
        model="hf://owner/name", arena_bytes="2Gi", device_memory="80Gi", max_model_len=99,
        utilization=0.1 + 0.2, prefix_caching=False, drain_timeout=0.5, seed=-(2**40),
        served_model_name="na \"m' e",
    )  # fmt: skip
    assert EngineSettings.model_validate_json(settings.model_dump_json()) == settings


def test_the_environment_of_the_second_process_changes_nothing_that_the_first_has_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAMBASERVE_STRATEGY", "NoBuffer")
    monkeypatch.setenv("MAMBASERVE_ARENA_BYTES", "1Gi")
    monkeypatch.setenv("MAMBASERVE_PAGE_SIZE", "32")
    settled = EngineSettings(model="m", strategy="ExtraBuffer").model_copy(
        update={"arena_bytes": None, "model": "/resolved"}
    )
    assert (settled.strategy, settled.page_size) == ("ExtraBuffer", 16)
    assert EngineSettings.model_validate_json(settled.model_dump_json()) == settled


def test_a_document_has_what_was_set_and_reads_back_to_the_same() -> None:
    settings = EngineSettings(model="m", arena_bytes="1Gi", page_size=16, seed=0)
    assert settings.document() == {"model": "m", "arena_bytes": 1 << 30, "page_size": 16, "seed": 0}
    assert EngineSettings(**settings.document()) == settings


def test_one_declared_number_of_the_traffic_declares_it_all() -> None:
    assert EngineSettings(model="m").workload is None
    workload = EngineSettings(model="m", workload_concurrency=7).workload
    assert workload is not None
    assert (workload.concurrency, workload.prompt_tokens, workload.shared_prefix_ratio) == (7, 2048, 0.5)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False), ("no", False)]
)
def test_switches_are_words(text: str, value: bool) -> None:
    assert EngineSettings(model="m", overlap=text).overlap is value


def test_settings_do_not_change_once_they_are_made() -> None:
    settings = EngineSettings(model="m")
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 9


def test_a_second_model_that_drafts_is_named_by_its_uri() -> None:
    settings = EngineSettings(model="m", speculation="draft=hf://a/B", speculative_tokens=3)
    assert (settings.draft_model, settings.draft_tokens) == ("hf://a/B", 3)
    assert EngineSettings(model="m", speculation="ngram").draft_model is None


@pytest.mark.parametrize("choice", ["draft=", "draft= ", "eagle", "Ngram"])
def test_unknown_drafts_are_refused_with_those_that_there_are(choice: str) -> None:
    with pytest.raises(ValueError, match="is not one of off, auto, ngram, mtp or draft=URI"):
        EngineSettings(model="m", speculation=choice)


def test_speculation_and_batch_invariance_are_refused_together() -> None:
    with pytest.raises(ValueError, match="switch one of them off"):
        EngineSettings(model="m", speculation="auto", batch_invariant=True)


def test_speculation_is_off_unless_it_is_asked_for() -> None:
    assert EngineSettings(model="m").draft_tokens == 0
    assert EngineSettings(model="m", speculation="auto").draft_tokens == 7
