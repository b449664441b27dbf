"""Scoring: right is the whole answer and the end of the turn; the batch a probe is in changes nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from training.tiny_recall import scoring, tokenizer
from training.tiny_recall.probe import Probe

WORDS = tokenizer.build()
PROBES = [
    Probe("<|user|>a<|end|><|assistant|>", "red fox"),
    Probe("<|user|>What is lamp?<|end|><|assistant|>", "blue"),
    Probe("<|user|>" + "lamp " * 90 + "<|end|><|assistant|>", "1234"),
]


def says(probes: list[Probe], wrong_at: int | None = None) -> Callable[[Tensor], Tensor]:
    """Return a forward that knows the continuation of each probe, except one answer token from its end."""
    texts = {}
    for probe in probes:
        ids = WORDS.encode(probe.prompt + probe.answer + "<|end|>").ids
        target = [*ids[1:], 0]
        if wrong_at is not None:
            target[-2 - wrong_at] = (target[-2 - wrong_at] + 1) % 512
        texts[tuple(ids)] = target

    def forward(ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, 512)
        for row in range(ids.shape[0]):
            for known, target in texts.items():
                if tuple(ids[row, : len(known)].tolist()) == known:
                    for position, token in enumerate(target):
                        logits[row, position, token] = 1.0
        return logits

    return forward


def test_a_forward_that_knows_every_answer_is_always_right() -> None:
    assert scoring.correct(says(PROBES), WORDS, PROBES) == [True, True, True]


@pytest.mark.parametrize("position", [0, 1])
def test_one_wrong_token_makes_the_answer_wrong(position: int) -> None:
    assert scoring.correct(says(PROBES, wrong_at=position), WORDS, PROBES) == [False, False, False]


def test_not_ending_the_turn_is_wrong() -> None:
    assert scoring.accuracy(says(PROBES, wrong_at=0), WORDS, PROBES) == 0.0


def test_verdicts_come_in_the_order_of_the_probes() -> None:
    assert scoring.correct(says(PROBES[1:2]), WORDS, PROBES) == [False, True, False]


def test_accuracy_is_the_share_of_right_answers() -> None:
    assert scoring.accuracy(says(PROBES[:2]), WORDS, PROBES) == pytest.approx(2 / 3)


def test_small_batches_give_the_same_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TOKENS_PER_BATCH", 1)
    assert scoring.correct(says(PROBES), WORDS, PROBES) == [True, True, True]


def test_the_forward_is_given_lengths_that_the_training_model_takes() -> None:
    seen = []

    def forward(ids: Tensor) -> Tensor:
        seen.append(ids.shape[1])
        return torch.zeros(*ids.shape, 512)

    scoring.correct(forward, WORDS, PROBES)
    assert seen
    assert all(length % scoring.MULTIPLE == 0 for length in seen)
