"""Whatever stands in a configuration, it is read, or refused by the name of its field: nothing else happens.

The operator reads `spec.model.config` of every namespace, so a value must not be able to stop it either.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_planner.errors import MissingField, UnknownArchitecture, UnreadableConfig, WrongField
from mamba_planner.families import ModelConfigError, load_model_config, model_config_from_hf
from mamba_planner.model_config import ModelConfig

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
NAMES = ("nemotron-3-nano-30b-a3b", "nemotron-nano-9b-v2", "granite-4.0-h-small", "falcon-h1-7b", "bamba-9b",
         "mamba2-2.7b", "qwen3-next-80b-a3b", "qwen3.6-27b", "qwen3.6-35b-a3b")  # fmt: skip


@cache
def text(name: str) -> str:
    return (CONFIGS / f"{name}.json").read_text()


def published(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads(text(name)), **changes}


def text_model(name: str) -> dict[str, Any]:
    """Return the published configuration, of a multimodal model that of its text model."""
    config = published(name)
    if "text_config" not in config:
        return config
    (whole,) = config["architectures"]
    return {**config["text_config"], "architectures": [whole.replace("ConditionalGeneration", "CausalLM")]}


def fields_of(name: str) -> list[str]:
    return sorted(text_model(name))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([0, -1, 2**31, 2**63, 10**30, 10**400]),
    st.floats(),
    st.sampled_from(["", "auto", "mamba", "default", "Infinity", "NaN", "1e999", "\x00", "attention"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["rope_type", "__float__", "x"]), inner)
    ),
    max_leaves=6,
)
changed = st.sampled_from(NAMES).flatmap(
    lambda name: st.builds(
        lambda changes: {**text_model(name), **changes},
        st.dictionaries(st.sampled_from(fields_of(name)), values, min_size=1, max_size=3),
    )
)


@settings(deadline=None)
@given(changed)
def test_any_value_in_any_field_is_read_or_refused_by_name(config: dict[str, Any]) -> None:
    found, refused = read(config)
    if refused is None:
        sound(found)
    else:
        assert str(refused).startswith("here: ")
        assert refused.field is not None


def read(config: dict[str, Any]) -> tuple[Any, ModelConfigError | None]:
    try:
        return model_config_from_hf(config, "here"), None
    except ModelConfigError as error:
        return None, error


def sound(found: ModelConfig) -> None:
    """Check the numbers by which the planner divides and multiplies."""
    assert found.layers
    assert found.parameters > 0
    assert min(found.hidden_size, found.vocab_size, found.max_position) >= 1
    if found.mamba is not None:
        assert min(found.mamba.heads, found.mamba.head_dim, found.mamba.state_size) >= 1
        assert found.mamba.heads % found.mamba.groups == 0
    if found.attention is not None:
        assert min(found.attention.heads, found.attention.kv_heads, found.attention.head_dim) >= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_with_any_field_left_out_is_read_or_refused_by_name(name: str) -> None:
    missed = []
    for gone in fields_of(name):
        config = text_model(name)
        del config[gone]
        found, refused = read(config)
        if refused is None:
            sound(found)
        elif isinstance(refused, MissingField):
            assert refused.field == gone
            missed.append(gone)
        else:
            # What takes its place does not go with the rest (Falcon-H1 without mamba_d_ssm).
            assert refused.field in config
    assert {"hidden_size", "vocab_size"} <= set(missed)


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("bamba-9b", "mamba_expand", float("inf"), "must be a width, found inf"),
        ("bamba-9b", "mamba_expand", 0, "must be a width, found 0"),
        ("bamba-9b", "mamba_expand", 10**400, "too large for a floating point number"),
        ("mamba2-2.7b", "expand", -2, "must be a width"),
        ("bamba-9b", "vocab_size", 10**30, "does not fit into 64 bits"),
        ("bamba-9b", "layers_block_type", [], "is empty: a model has at least one layer"),
        ("nemotron-nano-9b-v2", "layer_types", [], "is empty"),
        ("nemotron-nano-9b-v2", "layer_types", [["mamba"]], r"layer 0 is \['mamba'\]"),
        ("qwen3-next-80b-a3b", "mlp_only_layers", [[1]], r"\[1\] is not a layer number"),
        ("qwen3-next-80b-a3b", "mlp_only_layers", 3, "expected a list, found 3"),
        ("mamba2-2.7b", "num_hidden_layers", 10**12, "must be at most 10000"),
        ("falcon-h1-7b", "num_hidden_layers", 10**12, "must be at most 10000"),
        ("bamba-9b", "num_hidden_layers", 10**12, "must be at most 10000"),
        ("bamba-9b", "attn_layer_indices", [True], "True is not a layer number"),
        ("falcon-h1-7b", "mamba_d_ssm", "auto", "expected an integer, found 'auto'"),
        ("bamba-9b", "rms_norm_eps", float("nan"), "must not be NaN"),
        ("bamba-9b", "hidden_size", 4096.5, "expected an integer, found 4096.5"),
        ("bamba-9b", "hidden_size", True, "expected an integer, found True"),
        ("bamba-9b", "rope_parameters", [], "expected an object"),
        ("bamba-9b", "torch_dtype", 16, "expected a word, found 16"),
        ("falcon-h1-7b", "mlp_multipliers", "11", "expected a list, found '11'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_in_words(
    name: str, field: str, value: Any, words: str
) -> None:
    with pytest.raises(WrongField, match=words) as caught:
        model_config_from_hf(published(name, **{field: value}))
    assert caught.value.field == field


def test_more_attention_heads_than_width_need_a_declared_head_width() -> None:
    crowded = published("bamba-9b", num_attention_heads=5000, num_key_value_heads=5000)
    crowded.pop("head_dim", None)
    with pytest.raises(WrongField, match="5000 heads"):
        model_config_from_hf(crowded)
    attention = model_config_from_hf({**crowded, "head_dim": 64}).attention
    assert attention is not None
    assert (attention.heads, attention.head_dim) == (5000, 64)


def test_a_whole_number_that_is_spelled_as_a_float_is_that_number() -> None:
    assert model_config_from_hf(published("bamba-9b", hidden_size=4096.0)) == model_config_from_hf(
        published("bamba-9b")
    )


@pytest.mark.parametrize("model_type", [[], {}, 5, None, True])
@pytest.mark.parametrize("architectures", [5, None, {}, [], [["BambaForCausalLM"]], "LlamaForCausalLM"])
def test_a_model_that_does_not_say_what_it_is_gets_the_list_of_known_ones(
    model_type: Any, architectures: Any
) -> None:
    with pytest.raises(UnknownArchitecture, match="supported: nemotron_h"):
        model_config_from_hf(published("bamba-9b", model_type=model_type, architectures=architectures))


def test_an_architecture_that_is_no_list_is_taken_by_its_whole_name() -> None:
    config = published("bamba-9b", model_type="other", architectures="BambaForCausalLM")
    assert model_config_from_hf(config).family == "bamba"
    longer = {**config, "architectures": "NotBambaForCausalLM"}
    with pytest.raises(UnknownArchitecture):
        model_config_from_hf(longer)


def test_mistakes_in_a_nested_configuration_name_the_nesting() -> None:
    nested = published("bamba-9b", hidden_size="wide")
    with pytest.raises(WrongField, match=r"^here: text_config: hidden_size: "):
        model_config_from_hf({"model_type": "some_vl", "text_config": nested}, "here")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe{\x00}\x00", "cannot be read: 'utf-8' codec"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 100_000, "cannot be read: maximum recursion depth"),
        (b'{"model_type": "bamba", "vocab_size": ' + b"9" * 5000 + b"}", "cannot be read: Exceeds the limit"),
        (b'{"model_type": "bamba",}', "line 1 column"),
        (b"null", "must hold a JSON object"),
        (b'"bamba"', "must hold a JSON object"),
    ],
    ids=["empty", "utf-16", "bom", "deep", "digits", "comma", "null", "string"],
)
def test_a_file_that_holds_no_object_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnreadableConfig, match=words) as caught:
        load_model_config(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")


def test_a_directory_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UnreadableConfig, match=r"config\.json: .*directory"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("nemotron-3-nano-30b-a3b", {"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ("nemotron-3-nano-30b-a3b", {"n_group": 3}, "n_group"),
        ("nemotron-3-nano-30b-a3b", {"n_group": 2, "topk_group": 3}, "topk_group"),
        ("qwen3-next-80b-a3b", {"num_experts_per_tok": 513}, "num_experts_per_tok"),
        ("granite-4.0-h-small", {"num_experts_per_tok": 73}, "num_experts_per_tok"),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": -0.5}, "partial_rotary_factor"),
        ("qwen3.5-0.8b", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3.5-0.8b", {"rope_parameters": {"rope_type": "stretched", "factor": 4.0}}, "rope_parameters"),
        ("qwen3.5-0.8b", {"rope_parameters": {"rope_type": "default", "beta": 4.0}}, "beta"),
        ("qwen3.5-0.8b", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters"),
        ("qwen3.5-0.8b", {"rope_scaling": {"type": "yarn", "factor": 0.5}}, "factor"),
        ("qwen3-next-80b-a3b", {"sliding_window": 4096}, "sliding_window"),
        ("granite-4.0-h-small", {"sliding_window": 4096}, "sliding_window"),
        ("kimi-linear-48b-a3b", {"sliding_window": 4096}, "sliding_window"),
        ("falcon-h1-7b", {"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0]}}, "short_factor"),
        ("qwen3.6-27b", {"output_gate_type": "sigmoid"}, "output_gate_type"),
        ("qwen3.6-27b", {"linear_num_key_heads": 5}, "linear_num_key_heads"),
        ("qwen3.6-35b-a3b", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3.6-35b-a3b", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3.6-35b-a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ("qwen3.6-35b-a3b", {"num_experts_per_tok": 257}, "num_experts_per_tok"),
    ],
)
def test_a_computation_that_no_kernel_does_is_refused_by_its_field(
    name: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(WrongField) as caught:
        model_config_from_hf({**text_model(name), **changes})
    assert caught.value.field == field
