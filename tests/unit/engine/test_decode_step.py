"""Multiplications by the head and choices of a decode step: as few as memory permits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mamba_kernels.sample import SampleParameters, TokenChoice
from mamba_planner.workspace import BLOCK_LOGITS, LOGIT_ROWS
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.sampler import Sampler
from mamba_server.engine.execution.sampling_batch import SamplingRow
from mamba_server.model.cache_views import CacheViews
from mamba_server.wire import SamplingParams

META = torch.device("meta")
VOCAB = 131_072


class Head:
    """Stands in for a model on a device without memory: notes how many rows each product has."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def decode(self, token_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.zeros(len(token_ids), 8, device=META)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(hidden))
        return torch.zeros(len(hidden), VOCAB, device=META)


class Chooser:
    """Stands in for the operator."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(
        self, logits: torch.Tensor, parameters: SampleParameters, counts: Any, positions: torch.Tensor
    ) -> TokenChoice:
        assert len(logits) == len(parameters.temperature) == len(positions)
        self.rows.append(len(logits))
        ids = torch.zeros(len(logits), dtype=torch.int64, device=META)
        return TokenChoice(ids, torch.ones(len(logits), dtype=torch.bool, device=META))


@pytest.mark.parametrize(("rows", "products"), [(256, [256]), (64, [64]), (320, [LOGIT_ROWS, 64])])
def test_the_head_is_multiplied_and_chosen_from_once_for_all_rows_that_memory_is_planned_for(
    rows: int, products: list[int]
) -> None:
    assert rows * VOCAB > BLOCK_LOGITS, "many times what is scored together"
    head, chooser = Head(), Chooser()
    step = DecodeStep(
        rows, head, CacheViews([], [], []), Sampler(VOCAB, META, operator=chooser),  # type: ignore[arg-type]
        torch.zeros(rows + 1, 4, dtype=torch.int32, device=META),
        torch.zeros(rows + 1, dtype=torch.int32, device=META), 16,
    )  # fmt: skip
    step.warm_up()
    assert head.rows == chooser.rows == products


@pytest.mark.parametrize(("logprobs", "choices"), [(-1, [200]), (1, [32] * 6 + [8])])
def test_rows_behind_prompts_are_chosen_from_together_unless_one_wants_log_probabilities(
    logprobs: int, choices: list[int]
) -> None:
    sampler = Sampler(VOCAB, torch.device("cpu"), operator=Chooser())
    asked = [SamplingParams(max_tokens=1, top_p=0.5)] * 199 + [
        SamplingParams(max_tokens=1, logprobs=logprobs)
    ]
    rows: list[SamplingRow] = [sampler.admit(each, 0, 1) for each in asked]
    assert [batch.size for batch in sampler.batch(rows)] == choices
