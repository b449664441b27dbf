"""A refusal for lack of memory names changes that work, the setting that is the cause among them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner import Device, InsufficientMemory, plan_engine
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import DraftModel, ModelConfig
from mamba_settings.byte_size import read_size
from mamba_settings.engine_settings import EngineSettings

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


def model(path: str) -> ModelConfig:
    return model_config_from_hf(json.loads((ROOT / path).read_text()))


NANO = model("libs/mamba_planner/published/nemotron-nano-9b-v2.json")
TINY = model("server/mamba_server/builtin/tiny-recall/config.json")
DRAFTED = replace(NANO, draft_model=DraftModel("any", NANO, None))
"""A model with another one that drafts, which is as large."""
GPU, CPU = Device("cuda", 22 * GIB), Device("cpu", 16 * GIB, declared=False)
LONG = {"max_model_len": 131_072}
CASES: tuple[tuple[ModelConfig, Device, dict[str, Any], set[str]], ...] = (
    (NANO, GPU, LONG, {"max_model_len", "utilization", "quantization"}),
    (NANO, GPU, {"arena_bytes": "420Mi", "strategy": "ExtraBuffer", "state_dtype": "float32"},
     {"strategy", "arena_bytes"}),
    (NANO, GPU, {"arena_bytes": "256Mi", "state_dtype": "float32"}, {"state_dtype", "arena_bytes"}),
    (NANO, Device("cuda", 20 * GIB + GIB // 2), {},
     {"chunked_prefill_tokens", "utilization", "quantization"}),
    (NANO, Device("cuda", 16 * GIB), {}, {"quantization"}),
    (NANO, Device("cuda", 10 * GIB), {}, {"quantization"}),
    (NANO, Device("cuda", 10 * GIB), {"quantization": "fp8"}, {"quantization"}),
    (NANO, Device("cuda", 6 * GIB), {}, set()),
    (NANO, CPU, {}, {"quantization", "a machine"}),
    (TINY, CPU, {"max_model_len": 99_999_999}, {"max_model_len", "a machine"}),
    (TINY, CPU, {"arena_bytes": "20Gi"}, {"arena_bytes"}),
    (TINY, CPU, {"arena_bytes": "100Ki"}, {"arena_bytes"}),
    (TINY, CPU, {"arena_bytes": "2500Ki", "speculation": "mtp"},
     {"speculation", "max_model_len", "kv_cache_dtype", "arena_bytes"}),
    (DRAFTED, Device("cpu", 30 * GIB, declared=False), {"speculation": "draft=any"},
     {"speculation", "quantization", "a machine"}),
)  # fmt: skip


def refused(of: ModelConfig, device: Device, **settings: Any) -> str:
    with pytest.raises(InsufficientMemory) as caught:
        plan_engine(of, EngineSettings(model="any", **settings), device)
    return str(caught.value)


def remedies(said: str) -> list[str]:
    found = re.search(r"What would fit: (.*?)(\. [TN]|$)", said)
    return found[1].split("; or ") if found else []


@pytest.mark.parametrize(("of", "device", "settings", "named"), CASES)
def test_every_remedy_that_a_refusal_names_makes_it_fit(
    of: ModelConfig, device: Device, settings: dict[str, Any], named: set[str]
) -> None:
    ways = remedies(refused(of, device, **settings))
    assert {re.split(r" (?=[\dNfio])| with ", way)[0] for way in ways} == named
    for way in ways:
        if memory := re.fullmatch(r"a machine with (\S+) of free memory", way):
            whole = int(read_size(memory[1]) * 1.01)  # shown with one decimal
            plan_engine(of, EngineSettings(model="any", **settings), Device("cpu", whole))
            continue
        name, value = re.match(r"(\w+) (?:of at (?:most|least) )?(\S+)", way).groups()  # type: ignore[union-attr]
        changed = {**settings, name: value.replace(",", "")}
        weights = int(of.parameters * (0.8 if value == "int4" else 1.1)) if name == "quantization" else None
        plan_engine(of, EngineSettings(model="any", **changed), device, weights)


def test_the_default_leaves_a_head_out_that_does_not_fit_and_says_so() -> None:
    settings = EngineSettings(model="any", arena_bytes="2500Ki")
    plain = plan_engine(TINY, settings.model_copy(update={"speculation": "off"}), CPU)
    chosen = plan_engine(TINY, settings, CPU)
    assert (chosen.pages, chosen.slots) == (plain.pages, plain.slots)
    assert any("head" in note and "left out" in note for note in chosen.notes)
    assert not any("head" in note for note in plain.notes)


def test_a_length_beyond_the_model_is_named_as_the_cause() -> None:
    said = refused(TINY, CPU, max_model_len=99_999_999)
    assert "max_model_len 4,096" in said
    assert "99,999,999" in said


def test_no_refusal_advises_more_devices() -> None:
    for of, device, settings, _ in CASES:
        assert "devices" not in refused(of, device, **settings)
