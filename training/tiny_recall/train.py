"""Trains tiny-recall on one CPU core: `python -m training.tiny_recall.train --output FOLDER`.

Reads `recipe`, generates its data as it goes, writes a checkpoint every few minutes. The same seed on the
same machine gives the same weights. Never reads a file.
"""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.tiny_recall import checkpoint, probe, recipe, scoring, tokenizer
from training.tiny_recall.conversation import row
from training.tiny_recall.model import Shape, TinyHybrid
from training.tiny_recall.recipe import Stage


def batch(random: Random, words: Tokenizer, stage: Stage) -> tuple[Tensor, Tensor]:
    """Return the ids (rows, length + 1) and weights of the loss on each predicted token (rows, length)."""
    rows = [row(random, words, stage.length, stage.mix) for _ in range(stage.rows)]
    ids = torch.tensor([entry.ids[: stage.length + 1] for entry in rows])
    answers = torch.tensor([entry.answers[1 : stage.length + 1] for entry in rows])
    return ids, answers + ~answers * recipe.ELSEWHERE


def chosen(random: Random, stages: tuple[Stage, ...], index: int) -> Stage:
    """Choose the stage of a step: the current one, or now and then an earlier length with the current mix."""
    stage = stages[index]
    if index and random.random() < stage.others:
        return replace(random.choice(stages[:index]), mix=stage.mix)
    return stage


def rate(step: int, steps: int) -> float:
    """Return the learning rate as a share of the peak: linear warm-up, then cosine."""
    progress = max(0, step - recipe.WARM_UP) / max(1, steps - recipe.WARM_UP)
    cosine = recipe.FINAL_SHARE + (1 - recipe.FINAL_SHARE) * (1 + math.cos(math.pi * progress)) / 2
    return min(1.0, (step + 1) / recipe.WARM_UP) * cosine


def optimizers(model: TinyHybrid) -> list[torch.optim.Optimizer]:
    """Return Muon for matrices between layers, AdamW for embeddings, head, convolution, vectors."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and ".mixer." in name]
    rest = [w for name, w in model.named_parameters() if not (w.ndim == 2 and ".mixer." in name)]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.PEAK_RATE, weight_decay=recipe.WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=recipe.PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def learn(model: TinyHybrid, ids: Tensor, weights: Tensor) -> float:
    """Compute the gradients of the weighted loss and return the loss."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1])
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    loss = (losses * weights.flatten()).sum() / weights.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float(loss.detach())


def report(model: TinyHybrid, words: Tokenizer, distances: tuple[int, ...]) -> str:
    """Return the accuracy of a few probes that are the same at every report."""
    scores = {}
    for distance in distances:
        random = Random(distance)
        probes = [probe.recall(random, words, distance) for _ in range(64)]
        scores[str(distance)] = scoring.accuracy(model, words, probes)
    for name in ("addition", "copying", "counting", "manners"):
        random = Random(1)
        scores[name] = scoring.accuracy(model, words, [probe.skill(random, name) for _ in range(64)])
    return " ".join(f"{name} {score:.2f}" for name, score in scores.items())


def train(output: Path, stages: tuple[Stage, ...], every: int, minutes: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(recipe.SEED)
    random = Random(recipe.SEED)
    words = tokenizer.build()
    model = TinyHybrid(Shape())
    optims = optimizers(model)
    steps = sum(stage.steps for stage in stages)
    bounds = [index for index, stage in enumerate(stages) for _ in range(stage.steps)]
    start = saved = time.monotonic()
    tokens, losses = 0, []
    for step, index in enumerate(bounds):
        share = rate(step, steps)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = recipe.PEAK_RATE * share
        ids, weights = batch(random, words, chosen(random, stages, index))
        losses.append(learn(model, ids, weights))
        for optim in optims:
            optim.step()
            optim.zero_grad()
        tokens += weights.numel()
        if (step + 1) % every == 0 or step + 1 == steps:
            elapsed = time.monotonic() - start
            length = stages[index].length
            scores = report(model, words, tuple(d for d in (64, 256, 512, 1024) if d <= max(64, length)))
            print(
                f"step {step + 1}/{steps} length {length} {tokens / 1e6:.2f}M tokens {elapsed:.0f} s "
                f"loss {sum(losses) / len(losses):.3f} | {scores}",
                flush=True,
            )
            losses.clear()
        if time.monotonic() - saved > minutes * 60 or step + 1 == steps:
            saved = time.monotonic()
            checkpoint.write(model, output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train tiny-recall.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--every", type=int, default=200, help="steps between two reports")
    parser.add_argument("--minutes", type=float, default=3, help="minutes between two checkpoints")
    arguments = parser.parse_args()
    train(arguments.output, recipe.STAGES, arguments.every, arguments.minutes)


if __name__ == "__main__":
    main()
