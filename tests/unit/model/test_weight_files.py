"""Which files count as a model's weights, and what is said of files and indexes that cannot be used.

The planner measures and the engine loads the same files, and both name what is wrong with one.
"""

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from mamba_planner.arithmetic import WeightsSize
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.weight_files import INDEX, shards, weights_size
from mamba_server.model.checkpoint.weights import Weights

FILE = "model.safetensors"
Ask = Callable[[Path], object]


def planner(directory: Path) -> object:
    return weights_size(directory)


def engine(directory: Path) -> object:
    return Weights(directory)


def write(path: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensors(path: Path, **values: int) -> None:
    """Write one float32 tensor of that many elements for each name."""
    header, offset = {}, 0
    for name, count in values.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [offset, offset + 4 * count]}
        offset += 4 * count
    write(path, header, bytes(offset))


def index(directory: Path, **files: str) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": files}))


def test_heads_that_foresee_tokens_take_no_memory(tmp_path: Path) -> None:
    tensors(tmp_path / FILE, **{"model.norm.weight": 8, "mtp.fc.weight": 40})
    assert weights_size(tmp_path) == WeightsSize(32, 8, 0)


def test_the_log_names_the_parts_of_a_multimodal_checkpoint_that_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = {"model.language_model.norm.weight": 8, "lm_head.weight": 8}
    tensors(tmp_path / FILE, **text, **{"model.visual.blocks.0.bias": 4, "mtp.fc.weight": 40})
    Weights(tmp_path)
    (line,) = caplog.messages
    assert "mtp, visual" in line
    assert weights_size(tmp_path) == WeightsSize(64, 16, 0)


@pytest.mark.parametrize("tower", ["visual", "model.visual", "vision_tower", "model.vision_tower"])
def test_a_tower_beside_the_names_of_a_text_model_alone_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tower: str
) -> None:
    text = {"model.norm.weight": 8, "model.layers.0.mlp.up_proj.weight": 8, "lm_head.weight": 8}
    tensors(tmp_path / FILE, **text, **{f"{tower}.blocks.0.bias": 4, "multi_modal_projector.bias": 4})
    weights = Weights(tmp_path)
    assert [*map(weights.has, ("norm.weight", "layers.0.mlp.up_proj.weight", "lm_head.weight"))] == [True] * 3
    (line,) = caplog.messages
    assert f"multi_modal_projector, {tower.removeprefix('model.')}" in line
    assert weights_size(tmp_path) == WeightsSize(96, 24, 0)


def test_matrices_of_all_experts_are_matrices_and_a_convolution_is_none(tmp_path: Path) -> None:
    header, offset = {}, 0
    for name, shape in {"up": [6, 5], "experts": [4, 6, 5], "conv1d": [8, 1, 4], "bias": [6]}.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    write(tmp_path / FILE, header, bytes(offset))
    assert weights_size(tmp_path) == WeightsSize(offset, 188, 150, rows=30)


def test_a_second_splitting_of_the_same_weights_is_not_counted(tmp_path: Path) -> None:
    """Some models are published as one file and in parts at once, with an index for the parts."""
    tensors(tmp_path / "model-00001-of-00002.safetensors", a=3)
    tensors(tmp_path / "model-00002-of-00002.safetensors", b=5)
    tensors(tmp_path / "consolidated.safetensors", a=3, b=5)
    index(tmp_path, a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors")
    assert weights_size(tmp_path) == WeightsSize(32, 8, 0)
    assert Weights(tmp_path).nbytes == 32
    assert [path.name for path in shards(tmp_path)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_without_an_index_every_file_counts_once(tmp_path: Path) -> None:
    tensors(tmp_path / "b.safetensors", b=5)
    tensors(tmp_path / "a.safetensors", a=3)
    (tmp_path / "a.safetensors.part").write_bytes(b"half a download")
    (tmp_path / "training_args.bin").write_bytes(b"pickled")
    assert weights_size(tmp_path) == WeightsSize(32, 8, 0)
    assert Weights(tmp_path).nbytes == 32


def test_an_index_alone_is_no_weights_for_the_planner_and_a_missing_shard_for_the_engine(
    tmp_path: Path,
) -> None:
    index(tmp_path, a="model-00001-of-00001.safetensors")
    assert weights_size(tmp_path) is None
    with pytest.raises(WeightsError, match=r"model-00001-of-00001\.safetensors: .*missing"):
        Weights(tmp_path)


def test_half_of_a_download_is_not_planned_as_if_it_were_all(tmp_path: Path) -> None:
    tensors(tmp_path / "1.safetensors", a=3)
    index(tmp_path, a="1.safetensors", b="2.safetensors", c="2.safetensors")
    with pytest.raises(WeightsError, match=r"2\.safetensors: .*missing.* b "):
        weights_size(tmp_path)


@pytest.mark.parametrize("ask", [planner, engine])
@pytest.mark.parametrize(
    "text",
    [b"{}", b'{"weight_map": {}}', b"[1]", b'{"weight_map": {"a": 5}}', b'{"weight_map": ["a"]}', b"\xff\xfe",
     b"[" * 100_000, b""],
    ids=["no map", "empty map", "list", "number", "list for map", "utf-16", "deep", "empty"],
)  # fmt: skip
def test_an_index_that_is_none_is_named(tmp_path: Path, ask: Ask, text: bytes) -> None:
    tensors(tmp_path / FILE, a=1)
    (tmp_path / INDEX).write_bytes(text)
    with pytest.raises(WeightsError, match=rf"{INDEX}: the file is not an index"):
        ask(tmp_path)


@pytest.mark.parametrize("ask", [planner, engine])
def test_a_link_whose_target_is_gone_is_named(tmp_path: Path, ask: Ask) -> None:
    """The Hub's cache is made of links; clearing its blobs leaves them hanging."""
    (tmp_path / FILE).symlink_to(tmp_path / "blobs" / "0123")
    with pytest.raises(WeightsError, match=rf"{FILE}: the file cannot be read: .*No such file"):
        ask(tmp_path)


@pytest.mark.parametrize("ask", [planner, engine])
def test_a_directory_named_like_a_weight_file_is_named(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(WeightsError, match=rf"{FILE}: the file cannot be read: .*directory"):
        ask(tmp_path)


@pytest.mark.parametrize("ask", [planner, engine])
@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a": []}',
        b'{"a": {"shape": [1]}}',
        b'{"a": {"shape": 1, "data_offsets": [0, 4]}}',
        b'{"a": {"shape": [1], "data_offsets": [0]}}',
        b'{"a": {"shape": [1], "data_offsets": ["0", "4"]}}',
        b'{"a": null}',
        b"\xff\xfe{\x00}",
    ],
    ids=["deep", "list", "no offsets", "number", "one offset", "words", "null", "binary"],
)
def test_a_header_that_describes_no_tensors_is_damage(tmp_path: Path, ask: Ask, header: bytes) -> None:
    write(tmp_path / FILE, header, bytes(4))
    with pytest.raises(WeightsError, match=rf"{FILE}: .*damaged"):
        ask(tmp_path)


def test_a_tensor_that_ends_before_it_begins_makes_no_model_smaller(tmp_path: Path) -> None:
    write(tmp_path / FILE, {"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 0]}}, bytes(8))
    with pytest.raises(WeightsError, match="a reaches from byte 8 to byte 0"):
        weights_size(tmp_path)


@pytest.mark.parametrize("header", [b"{}", b'{"__metadata__": {"format": "pt"}}'])
def test_files_without_a_tensor_are_refused_before_one_is_looked_for(tmp_path: Path, header: bytes) -> None:
    write(tmp_path / FILE, header)
    with pytest.raises(WeightsError, match=r"\*\.safetensors files contain no tensor"):
        Weights(tmp_path)


def test_what_the_header_promises_and_the_type_does_not_hold_is_told_by_tensor(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, "cannot be read: .*invalid shape"),
        ({"dtype": "Q4_0", "shape": [1], "data_offsets": [0, 8]}, "is stored as Q4_0"),
    ]
    for header, words in wrong:
        write(tmp_path / FILE, {"a": header}, bytes(8))
        with pytest.raises(WeightsError, match=f"{FILE}: tensor a {words}"):
            Weights(tmp_path).take("a", (1,), torch.float32, cpu)


def test_a_file_that_vanishes_between_check_and_use_is_told_by_tensor(tmp_path: Path) -> None:
    tensors(tmp_path / FILE, a=1)
    weights = Weights(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(WeightsError, match=rf"{FILE}: tensor a cannot be read"):
        weights.take("a", (1,), torch.float32, torch.device("cpu"))
