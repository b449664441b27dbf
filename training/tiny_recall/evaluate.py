"""Measures a checkpoint: `python -m training.tiny_recall.evaluate FOLDER [--through transformers]`.

Prints accuracy with sample sizes as a table, and as JSON with --json. Exactly right is right, all else is
wrong. Trains nothing, writes nothing.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from training.tiny_recall import checkpoint, probe, scoring
from training.tiny_recall.model import Shape
from training.tiny_recall.probe import Probe
from training.tiny_recall.scoring import Forward
from training.tiny_recall.skills import SKILLS

DISTANCES = (64, 128, 256, 512, 1024)
SEED = 1_000_003
"""Far from the seed of the training data."""


def probes(words: Tokenizer, samples: int) -> dict[str, list[Probe]]:
    """Return named sets of probes, the same for every checkpoint."""
    sets: dict[str, list[Probe]] = {}
    for distance in DISTANCES:
        random = Random(SEED + distance)
        sets[f"recall at {distance}"] = [probe.recall(random, words, distance) for _ in range(samples)]
    for name in SKILLS:
        random = Random(SEED)
        sets[name] = [probe.skill(random, name) for _ in range(samples)]
    return sets


def through_transformers(folder: Path) -> Forward:
    """Return the forward of the transformers implementation, loaded from the folder as any user would."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return lambda ids: model(ids).logits


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a tiny-recall checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--through", choices=("training", "transformers"), default="training")
    parser.add_argument("--samples", type=int, default=500, help="probes of each kind")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.through == "transformers":
        forward = through_transformers(arguments.folder)
    else:
        forward = checkpoint.read(arguments.folder, Shape())
    words = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    scores = {
        name: scoring.accuracy(forward, words, chosen)
        for name, chosen in probes(words, arguments.samples).items()
    }
    if arguments.json:
        print(json.dumps({"samples": arguments.samples, "accuracy": scores}, indent=2))
        return
    for name, score in scores.items():
        print(f"{name:16} {score:7.2%}  of {arguments.samples}")


if __name__ == "__main__":
    main()
