"""Damaged or foreign weights are refused with the file and the tensor; good ones are mapped, not copied."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mamba_planner.families.registry import load_model_config
from mamba_server.model.checkpoint.errors import UnsupportedModel, WeightsError
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.checkpoints import random_multimodal_qwen3_5, random_nemotron_h

CPU = torch.device("cpu")
FILE = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_nemotron_h(tmp_path_factory.mktemp("sharded"), shard="100KB")


def load(directory: Path, dtype: torch.dtype = torch.float32) -> HybridModel:
    return HybridModel.load(load_model_config(directory), directory, device=CPU, dtype=dtype)


def rewrite(directory: Path, change: Callable[[Tensors], None], file: str = FILE) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(directory / file).items()}
    change(tensors)
    save_file(tensors, directory / file)


def parameters(model: HybridModel) -> list[torch.Tensor]:
    mixers = [block.mixer for block in model.blocks]
    return [
        embedded(model),
        matrix(model.head),
        *(matrix(mixer.in_proj) for mixer in mixers if hasattr(mixer, "in_proj")),
    ]


def embedded(model: HybridModel) -> torch.Tensor:
    return model.embedding(torch.arange(264))


def matrix(product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return W [outputs, 48] of x W^T, read off the rows of the identity."""
    return product(torch.eye(48)).T


def test_shards_load_like_one_file(sharded: Path, checkpoint: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    for mine, whole in zip(parameters(load(sharded)), parameters(load(checkpoint)), strict=True):
        assert torch.equal(mine, whole)


@pytest.mark.parametrize("prefix", ["model.", "backbone."])
def test_both_spellings_of_the_names_are_read(copy: Path, checkpoint: Path, prefix: str) -> None:
    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace("backbone.", prefix)] = tensors.pop(name)

    rewrite(copy, rename)
    assert torch.equal(embedded(load(copy)), embedded(load(checkpoint)))


def test_progress_counts_bytes_up_to_the_total(checkpoint: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    HybridModel.load(
        load_model_config(checkpoint),
        checkpoint,
        device=CPU,
        dtype=torch.float32,
        progress=lambda *call: calls.append(call),
    )
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    size = weights_size(checkpoint)
    assert size is not None
    assert calls[-1] == ("weights", size.bytes, size.bytes)


def test_unconverted_tensors_stay_in_the_mapping_of_the_file(checkpoint: Path) -> None:
    weights = Weights(checkpoint)
    tensor = weights.take("embeddings.weight", (264, 48), torch.float32, CPU)
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(str(checkpoint / FILE))]
    assert any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in ranges)


def test_other_types_are_converted_and_the_recurrence_stays_float32(checkpoint: Path) -> None:
    model = load(checkpoint, torch.bfloat16)
    assert embedded(model).dtype == torch.bfloat16
    mamba = model.blocks[0].mixer
    exact = load(checkpoint).blocks[0].mixer
    for name in ("A", "D", "dt_bias"):
        assert getattr(mamba, name).dtype == torch.float32
        assert torch.equal(getattr(mamba, name), getattr(exact, name)), "no detour over bfloat16"


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "x"))
    victim = sorted(directory.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(WeightsError, match=rf"{victim.name}: the file is missing.*backbone\."):
        load(directory)


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_truncated_file_is_told_before_anything_is_mapped(copy: Path, keep: float) -> None:
    path = copy / FILE
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(WeightsError, match=rf"{FILE}: the file is truncated: .*byte \d+"):
        load(copy)


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 64, (20).to_bytes(8, "little") + b"{not json}" * 3]
)
def test_a_file_that_is_not_safetensors_is_refused(copy: Path, content: bytes) -> None:
    (copy / FILE).write_bytes(content)
    with pytest.raises(WeightsError, match=f"{FILE}: .*(truncated|damaged)"):
        load(copy)


def test_a_directory_without_weights_says_so(copy: Path) -> None:
    (copy / FILE).unlink()
    with pytest.raises(WeightsError, match=r"has no \*\.safetensors files"):
        load(copy)


def test_a_missing_tensor_is_named_with_its_file(copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.__delitem__("backbone.layers.2.mixer.D"))
    with pytest.raises(WeightsError, match=rf"{FILE}.*layers\.2\.mixer\.D.*missing"):
        load(copy)


def test_an_unexpected_tensor_is_named_with_its_file(copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.update({"backbone.layers.2.mixer.E": torch.zeros(3)}))
    with pytest.raises(WeightsError, match=rf"{FILE}.*layers\.2\.mixer\.E.*unexpected"):
        load(copy)


@pytest.mark.parametrize(
    ("stored", "name"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.uint8, "U8"), (torch.int8, "I8")]
)
def test_a_matrix_that_is_stored_quantized_is_named_with_its_type(
    copy: Path, stored: torch.dtype, name: str
) -> None:
    """Refuse quantized values without their scales, which would be read as weights."""
    rewrite(copy, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(stored)}))
    with pytest.raises(WeightsError, match=rf"{FILE}.*lm_head\.weight.*{name}"):
        load(copy)


def of_fp8(weight: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix as FP8, its scale in this layout, and the numbers that they stand for."""
    rows, columns = weight.shape
    tall, wide = {"tensor": (rows, columns), "row": (1, columns), "block": (128, 128)}[layout]
    scale = torch.empty(-(-rows // tall), -(-columns // wide))
    stored, exact = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            part = slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)
            scale[row, column] = weight[part].abs().max() / 448
            stored[part] = (weight[part] / scale[row, column]).to(torch.float8_e4m3fn)
            exact[part] = stored[part].float() * scale[row, column]
    return stored, scale.reshape(()) if layout == "tensor" else scale, exact


@pytest.mark.parametrize(
    ("layout", "ending"), [("tensor", "_scale"), ("row", "_scale"), ("block", "_scale_inv")]
)
def test_matrices_of_fp8_are_the_numbers_that_their_scales_make_of_them(
    checkpoint: Path, copy: Path, tmp_path: Path, layout: str, ending: str
) -> None:
    plain = Path(shutil.copytree(checkpoint, tmp_path / "plain"))
    names = [name for name, tensor in load_file(copy / FILE).items() if tensor.dim() == 2]

    def quantize(tensors: Tensors) -> None:
        for name in names:
            tensors[name], tensors[name + ending], _ = of_fp8(tensors[name].float(), layout)
            # What other programs quantize activations and caches with.
            tensors[name.removesuffix("weight") + "input_scale"] = torch.ones(())
        tensors["backbone.layers.2.mixer.k_proj.k_scale"] = torch.ones(())

    rewrite(copy, quantize)
    rewrite(plain, lambda tensors: tensors.update({n: of_fp8(tensors[n].float(), layout)[2] for n in names}))
    for got, wanted in zip(parameters(load(copy)), parameters(load(plain)), strict=True):
        assert torch.equal(got, wanted)
    assert len(names) > 5

    fp8, stored = weights_size(copy), weights_size(plain)
    assert fp8 is not None
    assert stored is not None
    assert (fp8.elements, fp8.of_matrices) == (stored.elements, stored.of_matrices)
    assert fp8.bytes < 0.5 * stored.bytes


@pytest.mark.parametrize("shape", [(7, 1), (2, 2), (1, 47), (3,), (264, 1, 1)])
def test_a_scale_that_belongs_to_no_layout_is_told_with_both_shapes(
    copy: Path, shape: tuple[int, ...]
) -> None:
    def quantize(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
        tensors["lm_head.weight_scale"] = torch.ones(shape)

    rewrite(copy, quantize)
    with pytest.raises(WeightsError, match=rf"{FILE}.*lm_head\.weight.*\[264, 48\]"):
        load(copy)


def test_heads_that_foresee_tokens_are_passed_over(copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.update({"mtp.layers.0.mixer.A_log": torch.zeros(3)}))
    load(copy)


def test_a_wrong_shape_is_told_with_both_shapes(copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.update({"backbone.norm_f.weight": torch.zeros(47)}))
    with pytest.raises(WeightsError, match=rf"{FILE}.*norm_f\.weight.*\[47\].*\[48\]"):
        load(copy)


def test_an_index_that_promises_too_much_or_is_no_index_is_refused(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "x"))
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    file = content["weight_map"]["lm_head.weight"]
    content["weight_map"]["backbone.layers.99.norm.weight"] = file
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=rf"{file}.*layers\.99\.norm\.weight"):
        load(directory)
    index.write_text("{}")
    with pytest.raises(WeightsError, match="not an index"):
        load(directory)


def test_a_tensor_in_two_files_is_refused(copy: Path) -> None:
    save_file({"model.norm_f.weight": torch.zeros(48)}, copy / "another.safetensors")
    with pytest.raises(WeightsError, match=r"norm_f\.weight is also in"):
        load(copy)


def test_a_tied_head_is_the_embedding_even_if_the_files_have_a_head_of_their_own(tmp_path: Path) -> None:
    """The code published with the models ties it; transformers 5 takes the head of the files."""
    directory = random_nemotron_h(tmp_path / "tied", tie_word_embeddings=True)
    assert torch.equal(matrix(load(directory).head), embedded(load(directory)))
    own = torch.randn(264, 48)
    rewrite(directory, lambda tensors: tensors.update({"lm_head.weight": own}))
    assert torch.equal(matrix(load(directory).head), embedded(load(directory)))


def test_stored_frequencies_of_rotary_positions_are_left_out(checkpoint: Path, copy: Path) -> None:
    stored = {"backbone.layers.2.mixer.rotary_emb.inv_freq": torch.ones(8)}
    rewrite(copy, lambda tensors: tensors.update(stored))
    assert torch.equal(matrix(load(copy).head), matrix(load(checkpoint).head))


CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor"}
QUANTIZED_CACHES = [
    {},
    {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": CACHE},
    {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "0": {"targets": ["NemotronHAttention"], "input_activations": CACHE, "weights": None}
        },
        "kv_cache_scheme": CACHE,
    },
    {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
]


@pytest.mark.parametrize("section", QUANTIZED_CACHES)
def test_a_checkpoint_whose_cache_alone_is_quantized_is_an_ordinary_one(
    checkpoint: Path, copy: Path, caplog: pytest.LogCaptureFixture, section: dict[str, object]
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    scales = {"k_proj.k_scale": torch.ones(()), "v_scale": torch.ones(1)}
    rewrite(copy, lambda tensors: tensors.update({f"backbone.layers.2.mixer.{n}": scales[n] for n in scales}))
    for got, wanted in zip(parameters(load(copy)), parameters(load(checkpoint)), strict=True):
        assert torch.equal(got, wanted)
    assert "k_scale" in caplog.text
    assert weights_size(copy) == weights_size(checkpoint)


def test_the_head_of_a_multimodal_model_is_the_embedding_if_the_whole_model_says_so(tmp_path: Path) -> None:
    """Transformers writes a text model with the default of its class beside the word of the whole."""
    directory = random_multimodal_qwen3_5(tmp_path, tie_word_embeddings=True)
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = False
    (directory / "config.json").write_text(json.dumps(config))
    assert torch.equal(matrix(load(directory).head), embedded(load(directory)))


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    biased = random_nemotron_h(
        tmp_path, hybrid_override_pattern="ME*", n_routed_experts=4, num_experts_per_tok=2, mlp_bias=True
    )
    with pytest.raises(UnsupportedModel, match="bias"):
        load(biased)
