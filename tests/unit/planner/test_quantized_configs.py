"""The plan of a checkpoint that is published quantized, by its configuration alone."""

import json
from pathlib import Path
from typing import Any

import pytest

import mamba_planner
from mamba_planner.arithmetic import weights_bytes
from mamba_planner.families.registry import model_config_from_hf, why_not_served
from mamba_planner.model_config import ModelConfig, StoredWeights

PUBLISHED = Path(mamba_planner.__file__).parent / "published"
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
}


def compressed(groups: dict[str, Any], ignore: list[str], format_: str = "pack-quantized") -> dict[str, Any]:
    section = {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups}
    return {**section, "ignore": ignore}


def integers(bits: int, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "group_size": 32, **more}


W4: dict[str, Any] = {"g": {"targets": ["Linear"], "weights": integers(4)}}


def model(name: str, section: dict[str, Any]) -> ModelConfig:
    config = json.loads((PUBLISHED / f"{name}.json").read_text())
    return model_config_from_hf({**config, "quantization_config": section})


def stored(name: str, section: dict[str, Any]) -> StoredWeights:
    kept = model(name, section).stored
    assert kept is not None
    return kept


@pytest.mark.parametrize("section", [GPTQ, AWQ, compressed(W4, ["lm_head", "re:.*in_proj_[ab]$"])])
def test_four_bits_of_published_models_fit_the_machines_that_people_have(section: dict[str, Any]) -> None:
    nano, qwen = (model(name, section) for name in ("nemotron-3-nano-30b-a3b", "qwen3.6-35b-a3b"))
    assert why_not_served(nano) is None
    assert weights_bytes(nano, "bfloat16", on_cpu=True) <= 20e9
    assert weights_bytes(qwen, "bfloat16", on_cpu=True) <= 24e9


@pytest.mark.parametrize(
    ("name", "most"), [("nemotron-3-nano-30b-a3b", 20_000_000_000), ("qwen3.6-35b-a3b", 24_000_000_000)]
)
def test_four_bits_of_models_with_experts_fit_one_card_of_24_gigabytes(name: str, most: int) -> None:
    """Embedding and head are in bfloat16 there."""
    sections = (
        {**GPTQ, "sym": False},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    )
    planned = [weights_bytes(model(name, section), "bfloat16") for section in sections]
    planned.append(weights_bytes(model(name, {}), "bfloat16", quantization="int4"))
    assert all(0.8 * most < size <= most for size in planned), planned


def test_each_form_takes_the_bytes_of_its_blocks() -> None:
    for section, parts in (
        (GPTQ, (0, 18, 0)),
        ({**GPTQ, "sym": False}, (0, 0, 19)),
        ({**GPTQ, "bits": 8}, (34, 0, 0)),
        ({**GPTQ, "bits": 8, "sym": False}, (0, 0, 0)),
        ({**GPTQ, "group_size": 16}, (0, 0, 0)),
        ({**GPTQ, "group_size": -1}, (0, 18, 0)),
        (AWQ, (0, 0, 19)),
        (compressed({"g": {"targets": ["Linear"], "weights": integers(8)}}, []), (34, 0, 0)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (0, 0, 0)),
        (
            compressed(
                {"g": {"weights": {"num_bits": 4, "type": "float"}}}, ["lm_head"], "mxfp4-pack-quantized"
            ),
            (34, 0, 0),
        ),
        ({"quant_method": "mxfp4"}, (0, 0, 0)),
    ):
        each = model("qwen3.5-0.8b", section)
        kept = each.stored
        assert kept is not None
        assert [bool(count) for count in (kept.int8, kept.int4, kept.int4_zeros)] == [
            bool(part) for part in parts
        ]
        few = kept.int8 + kept.int4 + kept.int4_zeros
        expected = (each.parameters - few) * 2 + few * sum(parts) / 32
        assert weights_bytes(each, "bfloat16", on_cpu=True) == pytest.approx(expected, abs=1)
        # The kernels have no float16.
        assert weights_bytes(each, "float16", on_cpu=True) == 2 * each.parameters


def test_modules_that_a_list_leaves_alone_are_counted_as_they_are() -> None:
    name = "qwen3.5-0.8b"
    every = stored(name, AWQ).int4_zeros
    config = model(name, AWQ)
    assert config.mlp is not None
    feed_forwards = 24 * 3 * config.hidden_size * config.mlp.intermediate
    for kept in (
        ["mlp"],
        [f"model.layers.{index}.mlp" for index in range(24)],
        ["re:.*mlp.*"],
        ["model.*.mlp.*"],
    ):
        assert stored(name, {**AWQ, "modules_to_not_convert": kept}).int4_zeros == every - feed_forwards, kept
    dynamic = {"-:.*\\.mlp\\..*": {}, "+:.*self_attn.*": {"bits": 8}}
    mixed = stored(name, {**GPTQ, "dynamic": dynamic})
    assert mixed.int8 + mixed.int4 == every - feed_forwards
    assert 0 < mixed.int8 < mixed.int4
    groups = {**W4, "h": {"targets": ["re:.*mlp.*"], "weights": integers(8)}}
    assert stored(name, compressed(groups, ["lm_head"])).int8 == feed_forwards


def test_an_algorithm_for_each_layer_is_read() -> None:
    layers = {"model.layers.3.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    config = model("qwen3.5-0.8b", section)
    assert config.stored is not None
    assert config.mlp is not None
    assert config.stored.plain == config.hidden_size * config.mlp.intermediate


def test_quantization_keeps_what_is_stored_in_as_few_bits() -> None:
    config = model("qwen3.5-0.8b", GPTQ)
    sizes = [
        weights_bytes(config, "bfloat16", quantization=each, on_cpu=True) for each in ("none", "int8", "int4")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert config.stored is not None
    eight = model("qwen3.5-0.8b", {**GPTQ, "bits": 8})
    plain = model("qwen3.5-0.8b", {})
    assert weights_bytes(eight, "bfloat16", quantization="int4", on_cpu=True) == weights_bytes(
        plain, "bfloat16", quantization="int4", on_cpu=True
    )


@pytest.mark.parametrize(
    ("section", "word"),
    [
        (compressed(W4, [], "marlin-24"), "marlin-24"),
        ({**compressed(W4, []), "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ({**compressed(W4, []), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (compressed({"g": {"weights": {"num_bits": 4, "type": "float"}}}, [], "dense"), "float and 4 bits"),
        ({**AWQ, "bits": 8}, "awq with 8 bits"),
        ({**GPTQ, "dynamic": {"+:[": {}}}, "pattern"),
    ],
)
def test_what_would_be_read_wrong_is_refused_by_name(section: dict[str, Any], word: str) -> None:
    assert word in (why_not_served(model("qwen3.5-0.8b", section)) or "")
