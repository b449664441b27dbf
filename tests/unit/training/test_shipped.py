"""The checkpoint that the package ships: small, complete, and right through transformers."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from mamba_cli.local import demo
from training.tiny_recall import checkpoint, evaluate, samples, scoring, tokenizer
from training.tiny_recall.draft_head import DraftHead
from training.tiny_recall.model import Shape, TinyHybrid
from training.tiny_recall.probe import Probe

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "server/mamba_server/builtin/tiny-recall"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "samples.json",
}


def test_the_folder_holds_exactly_the_files_of_the_checkpoint() -> None:
    assert {path.name for path in FOLDER.iterdir()} == FILES


def test_all_files_together_take_at_most_8_mb() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000


def test_the_configuration_is_that_of_the_recipe() -> None:
    assert json.loads((FOLDER / "config.json").read_text()) == checkpoint.configuration(Shape())


def test_the_weights_have_the_names_and_shapes_of_the_recipe() -> None:
    head = {checkpoint.HEAD + name: weight for name, weight in DraftHead(Shape()).state_dict().items()}
    weights = TinyHybrid(Shape()).state_dict() | head
    expected = {name: list(weight.shape) for name, weight in weights.items()}
    with safe_open(FOLDER / "model.safetensors", framework="pt") as file:
        assert {name: file.get_slice(name).get_shape() for name in file.keys()} == expected  # noqa: SIM118


def test_the_tokenizer_is_the_one_that_the_sources_build() -> None:
    shipped = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert shipped.to_str() == tokenizer.build().to_str()
    assert (FOLDER / "chat_template.jinja").read_text() == tokenizer.CHAT_TEMPLATE


def test_the_samples_are_those_of_the_sources() -> None:
    assert json.loads((FOLDER / "samples.json").read_text()) == samples.content()


def test_the_shipped_model_recalls_over_64_tokens_through_the_training_forward() -> None:
    words = tokenizer.build()
    probes = evaluate.probes(words, 40)["recall at 64"]
    assert scoring.accuracy(checkpoint.read(FOLDER, Shape()), words, probes) >= 0.9


@pytest.mark.slow
def test_the_shipped_model_recalls_over_256_tokens_through_transformers() -> None:
    words = tokenizer.build()
    probes = evaluate.probes(words, 100)["recall at 256"]
    assert scoring.accuracy(evaluate.through_transformers(FOLDER), words, probes) >= 0.95


@pytest.mark.slow
def test_the_shipped_model_answers_every_sample_right_through_transformers() -> None:
    content = samples.content()
    expected = [answer for _, answer in samples.prompts(content)]
    assert samples.answers(FOLDER, content) == expected


def test_the_shipped_model_answers_every_question_about_the_document_of_the_demonstration() -> None:
    probes = [
        Probe(f"<|system|>{demo.document()}<|end|><|user|>What is the {key}?<|end|><|assistant|>", value)
        for key, value in demo.FACTS
    ]
    assert all(scoring.correct(checkpoint.read(FOLDER, Shape()), tokenizer.build(), probes))


@pytest.mark.slow
def test_the_wheel_carries_the_checkpoint(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"mamba_server/builtin/tiny-recall/{name}" for name in FILES} <= names
