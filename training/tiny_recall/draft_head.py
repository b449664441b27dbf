"""Trains a head for drafts behind a trained model: `python -m training.tiny_recall.draft_head FOLDER`.

The head has the names and the definition of those of Nemotron 3, with a dense feed-forward. The model stays
as it is; the head learns what the model says, one token and two tokens ahead. `write` adds it to the folder.
"""

import argparse
import time
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from training.tiny_recall import checkpoint, tokenizer
from training.tiny_recall.checkpoint import HEAD
from training.tiny_recall.conversation import Mix
from training.tiny_recall.model import Attention, Mlp, Shape, TinyHybrid
from training.tiny_recall.recipe import SEED, Stage
from training.tiny_recall.train import batch, rate

STAGES = (
    Stage(64, 16, 1, Mix(bare=0.4, idle=0.25, skill=0.15)),
    Stage(128, 8, 1, Mix(bare=0.3, idle=0.3, skill=0.15)),
    Stage(256, 4, 1, Mix(bare=0.2, idle=0.3, skill=0.15)),
)
"""Rows of a step; the steps take turns."""
RATE = 3e-3


class First(nn.Module):
    """The first layer: the projection of a token and the hidden state before it, then attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.enorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.hnorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mixer = Attention(shape)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        result: Tensor = x + self._attend(self.norm(x))
        return result

    def _attend(self, x: Tensor) -> Tensor:
        """Attend to all earlier pairs and to the first token, whose key and value are zeros."""
        mixer, (rows, length, _) = self.mixer, x.shape
        query, key, value = (
            projection(functional.pad(x, (0, 0, first, 0)))
            .view(rows, length + first, -1, self.shape.attention_dim)
            .transpose(1, 2)
            for projection, first in ((mixer.q_proj, 0), (mixer.k_proj, 1), (mixer.v_proj, 1))
        )
        seen = torch.ones(length, length + 1, dtype=torch.bool).tril(1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
        result: Tensor = mixer.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return result


class Last(nn.Module):
    """The last layer: a feed-forward, and the norm before the model's output head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mixer = Mlp(shape)
        self.final_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.final_layernorm(x + self.mixer(self.norm(x)))
        return result


class DraftHead(nn.Module):
    """Head of one model; its parameters have the published names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([First(shape), Last(shape)])
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return hidden states (b,l,d) of pairs of a token's embedding and the hidden state before it."""
        first, last = self.layers
        result: Tensor = last(first(embedded, hidden))
        return result


def loss_of(
    model: TinyHybrid, head: DraftHead, ids: Tensor, weights: Tensor, ahead: int
) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and the share of right tokens among answers for each token ahead.

    ids: (b, l + 1); weights: (b, l) of the tokens from the second on, as `batch` returns both; ahead: number
    of tokens that the head foresees, all but the first from its own hidden state.
    """
    with torch.no_grad():
        hidden = model.backbone(ids[:, :-1])
        truth = model.lm_head(hidden).log_softmax(-1)
        embedded = model.backbone.embeddings(ids[:, :-1])
    before, losses, right = hidden, [], []
    for _ in range(ahead):
        # Pair p is token p with the hidden state of token p - 1; each pass loses the first pair.
        embedded, truth, weights = embedded[:, 1:], truth[:, 1:], weights[:, 1:]
        before = head(embedded, before[:, :-1])
        foreseen = model.lm_head(before).log_softmax(-1)
        distance = functional.kl_div(foreseen, truth, reduction="none", log_target=True).sum(-1)
        losses.append((distance * weights).sum() / weights.sum())
        answers = weights == 1.0
        right.append(float((foreseen.argmax(-1) == truth.argmax(-1))[answers].float().mean()))
    return torch.stack(losses).mean(), right


def train(folder: Path, steps: int, every: int, ahead: int = 2, *, goes_on: bool = False) -> DraftHead:
    """Return a head for the model in `folder`, trained for `steps` steps to foresee `ahead` tokens.

    goes_on: whether the training goes on from the folder's head, at a third of the rate.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    random, words, shape = Random(SEED), tokenizer.build(), Shape()
    model = checkpoint.read(folder, shape).requires_grad_(requires_grad=False)
    head = DraftHead(shape)
    if goes_on:
        tensors = load_file(folder / "model.safetensors").items()
        head.load_state_dict(
            {name.removeprefix(HEAD): tensor for name, tensor in tensors if name.startswith(HEAD)}
        )
        # Rows that the first training has not seen.
        random = Random(SEED + 1)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=RATE / 3 if goes_on else RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(min(step, steps - 1), steps))
    start = time.monotonic()
    for step in range(1, steps + 1):
        ids, weights = batch(random, words, STAGES[step % len(STAGES)])
        loss, right = loss_of(model, head, ids, weights, ahead)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % every == 0 or step == steps:
            shares = " ".join(f"{share:.3f}" for share in right)
            elapsed = time.monotonic() - start
            print(f"step {step}/{steps} {elapsed:.0f} s loss {loss.item():.3f} | {shares}", flush=True)
    return head


def write(head: DraftHead, folder: Path) -> None:
    """Add the head to the weights in `folder`, in place of an earlier one."""
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if not name.startswith(HEAD)}
    tensors |= {HEAD + name: tensor.detach().contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a head for drafts and add it to a checkpoint.")
    parser.add_argument("folder", type=Path, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=6000, help="steps of the training")
    parser.add_argument("--ahead", type=int, default=2, help="tokens that the head learns to foresee")
    parser.add_argument("--go-on", action="store_true", help="go on from the head in the folder")
    parser.add_argument("--every", type=int, default=100, help="steps between two reports")
    arguments = parser.parse_args()
    head = train(arguments.folder, arguments.steps, arguments.every, arguments.ahead, goes_on=arguments.go_on)
    write(head, arguments.folder)


if __name__ == "__main__":
    main()
