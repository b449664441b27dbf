"""generation_config.json: what is read, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from mamba_text.errors import BadTokenizer
from mamba_text.generation_defaults import GenerationDefaults
from tiny_model import write_model


def load(tmp_path: Path, **config: Any) -> GenerationDefaults:
    return GenerationDefaults.load(write_model(tmp_path / "tiny", generation_config=config))


def test_without_the_file_nothing_is_set(tmp_path: Path) -> None:
    assert GenerationDefaults.load(write_model(tmp_path / "tiny")) == GenerationDefaults()


def test_all_that_is_in_the_file_is_read(tmp_path: Path) -> None:
    defaults = load(
        tmp_path,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        repetition_penalty=1.05,
        eos_token_id=[2, 11],
        min_p=0.1,
    )
    assert defaults == GenerationDefaults(0.6, 0.95, 20, 1.05, (2, 11), 0.1)


def test_a_single_end_token_is_a_list_of_one(tmp_path: Path) -> None:
    assert load(tmp_path, eos_token_id=7).eos_token_ids == (7,)


def test_do_sample_false_alone_is_greedy(tmp_path: Path) -> None:
    assert load(tmp_path, do_sample=False).temperature == 0.0


def test_a_temperature_wins_over_do_sample(tmp_path: Path) -> None:
    assert load(tmp_path, do_sample=False, temperature=0.7).temperature == 0.7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_k", True),
        ("top_k", -1),
        ("repetition_penalty", [1.0]),
        ("temperature", float("nan")),
        ("eos_token_id", ["</s>"]),
        ("eos_token_id", -1),
        ("eos_token_id", True),
        ("eos_token_id", [2, None]),
        ("eos_token_id", 2.0),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_field(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(BadTokenizer, match=rf"generation_config\.json: {name}"):
        load(tmp_path, **{name: value})


def test_zero_means_that_the_file_says_nothing_where_zero_makes_no_sense(tmp_path: Path) -> None:
    defaults = load(tmp_path, top_p=0, repetition_penalty=0, top_k=0, temperature=0)
    assert (defaults.top_p, defaults.repetition_penalty) == (None, None)
    assert (defaults.top_k, defaults.temperature) == (0, 0.0)


def test_a_file_that_is_no_object_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(BadTokenizer, match=r"generation_config\.json.*JSON object"):
        GenerationDefaults.load(tmp_path)
