"""Scores probes with any forward that turns token ids into logits.

A teacher-forced pass whose every argmax is right is a greedy decode that is right, so one forward scores a
whole batch. Called by `evaluate`, `train` and the tests.
"""

from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.tiny_recall.probe import Probe
from training.tiny_recall.vocabulary import END

Forward = Callable[[Tensor], Tensor]
"""Ids (b,l) to logits (b,l,vocab); causal, so what is padded on the right changes nothing before it."""

MULTIPLE = 64
TOKENS_PER_BATCH = 8192


@torch.no_grad()
def correct(forward: Forward, tokenizer: Tokenizer, probes: Sequence[Probe]) -> list[bool]:
    """Return for each probe whether greedy decoding gives exactly the answer and then ends the turn."""
    pairs = [
        (tokenizer.encode(probe.prompt).ids, tokenizer.encode(probe.answer + END).ids) for probe in probes
    ]
    verdicts = [False] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
    while order:
        longest = max(sum(map(len, pairs[index])) for index in order)
        rows = max(1, TOKENS_PER_BATCH // longest)
        batch, order = order[-rows:], order[:-rows]
        ids = torch.zeros(len(batch), -(-longest // MULTIPLE) * MULTIPLE, dtype=torch.long)
        for row, index in enumerate(batch):
            prompt, answer = pairs[index]
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        best = forward(ids).argmax(-1)
        for row, index in enumerate(batch):
            prompt, answer = pairs[index]
            said = best[row, len(prompt) - 1 : len(prompt) + len(answer) - 1]
            verdicts[index] = said.tolist() == answer
    return verdicts


def accuracy(forward: Forward, tokenizer: Tokenizer, probes: Sequence[Probe]) -> float:
    """Share of probes that are answered exactly right."""
    verdicts = correct(forward, tokenizer, probes)
    return sum(verdicts) / len(verdicts)
