"""A multimodal checkpoint around the shipped model: planned and served alike, its text model alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mamba_cli.local.planning import PlanFlags, plan_directory
from servers import Server, call
from tiny_recall import BUILTIN

pytestmark = pytest.mark.slow

PARTS = {
    "new": ("model.language_model.", "lm_head."),
    "old": ("language_model.model.", "language_model.lm_head."),
}
QUESTION = [{"role": "user", "content": "The color of Anna is green. What is the color of Anna?"}]


def multimodal(folder: Path, body: str, head: str) -> Path:
    """Write a checkpoint with a vision tower whose text model is the shipped one."""
    model = folder / "model"
    shutil.copytree(BUILTIN, model)
    config = json.loads((BUILTIN / "config.json").read_text())
    whole = {"model_type": "seeing", "architectures": ["SeeingForConditionalGeneration"], "vision_config": {}}
    whole["dtype"] = config.pop("dtype", None) or config.pop("torch_dtype", "float32")
    whole["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    (model / "config.json").write_text(json.dumps({**whole, "text_config": config}))
    tensors = {
        "model.vision_tower.patches.weight": torch.ones(64, 64),
        "model.projector.bias": torch.ones(64),
    }
    for name, tensor in load_file(BUILTIN / "model.safetensors").items():
        inner = name.removeprefix("model.").removeprefix("backbone.")
        if inner.startswith("mtp."):
            tensors[inner] = tensor  # a published head has its name beside the text model's
        elif inner.startswith("lm_head."):
            tensors[head + inner.removeprefix("lm_head.")] = tensor
        else:
            tensors[body + inner] = tensor
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("names", PARTS)
def test_the_text_model_of_a_multimodal_checkpoint_is_planned_and_served(tmp_path: Path, names: str) -> None:
    model = multimodal(tmp_path, *PARTS[names])
    flags = PlanFlags(gpus=0, device_memory=1 << 30)
    planned, alone = plan_directory(model, flags).to_json(), plan_directory(BUILTIN, flags).to_json()
    assert planned["served"]
    assert planned["model"]["weightsBytes"] == alone["model"]["weightsBytes"]
    answers = []
    for source in (str(model), "builtin://tiny-recall"):
        with Server(source, "--served-model-name", "tiny") as running:
            body = {"model": "tiny", "messages": QUESTION, "max_tokens": 20, "temperature": 0}
            status, told = call(f"{running.url}/v1/chat/completions", body)
            assert status == 200
            answers.append(told["choices"][0]["message"]["content"])
    assert answers[0] == answers[1] != ""
