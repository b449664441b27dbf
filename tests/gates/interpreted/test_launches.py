"""Launches of a decode step: a few kernels a layer, whatever the number of rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engines import make_engine, run
from gate_cases import LARGE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.model.layers.attention import Attention
from mamba_server.model.layers.gated_delta import GatedDeltaMixer
from mamba_server.model.layers.loader import Loader
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.layers.mlp import Mlp
from mamba_server.model.layers.moe import Moe
from mamba_server.wire import AddRequest, SamplingParams
from recorded_work import RecordedWork
from testmodels import checkpoints

RECURRENT, ATTENTION, SAMPLING = 8, 6, 12
"""Most that may be launched by one layer in a step, and by the choice of its tokens, the head included."""
FEED_FORWARD, EXPERTS, DELTA, MAMBA = {Mlp: 3}, {Moe: 9}, {GatedDeltaMixer: 5}, {Mamba2Mixer: 5}
PLAIN, ROTATED, GATED = {Attention: 5}, {Attention: 6}, {Attention: 8}
"""Launches of a layer in a decode step of a 16-bit model, without the norm in front of it."""
OF_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip
TWO_KINDS = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[type, int]]] = {
    "Nemotron-H": (
        checkpoints.SMALL, {"hybrid_override_pattern": "ME*-", **OF_EXPERTS},
        MAMBA | EXPERTS | PLAIN | FEED_FORWARD,
    ),
    "Granite": (checkpoints.SMALL_GRANITE, TWO_KINDS, MAMBA | PLAIN | FEED_FORWARD),
    "Granite with experts": (
        checkpoints.SMALL_GRANITE, TWO_KINDS | {"num_local_experts": 4, "num_experts_per_tok": 2},
        MAMBA | PLAIN | EXPERTS,
    ),
    "Qwen3-Next": (
        checkpoints.SMALL_QWEN3_NEXT,
        {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
        DELTA | GATED | EXPERTS | FEED_FORWARD,
    ),
    "Falcon-H1": (checkpoints.SMALL_FALCON_H1, {"num_hidden_layers": 1}, MAMBA | ROTATED | FEED_FORWARD),
    "Bamba": (
        checkpoints.SMALL_BAMBA, {"num_hidden_layers": 2, "attn_layer_indices": [1]},
        MAMBA | ROTATED | FEED_FORWARD,
    ),
    "Mamba2": (checkpoints.SMALL_MAMBA2, {"num_hidden_layers": 1}, MAMBA),
}  # fmt: skip


class Launches:
    """Rows of each decode step, and what each layer and each choice of it launched."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.layers: list[tuple[type, int, int]] = []
        self.choices: list[tuple[int, int]] = []
        self._work: RecordedWork | None = None
        self._rows = 0
        forward, choice = DecodeStep._issue_forward, DecodeStep._issue_choice

        def count_forward(step: DecodeStep) -> Any:
            self._rows = step.rows
            with RecordedWork() as self._work:
                result = forward(step)
            self._work = None
            return result

        def count_choice(step: DecodeStep) -> Any:
            with RecordedWork() as work:
                result = choice(step)
            self.choices.append((step.rows, len(work.issued)))
            return result

        patch.setattr(DecodeStep, "_issue_forward", count_forward)
        patch.setattr(DecodeStep, "_issue_choice", count_choice)
        for kind in (Mamba2Mixer, GatedDeltaMixer, Attention, Mlp, Moe):
            patch.setattr(kind, "__call__", self._counted(kind, kind.__call__))

    def _counted(self, kind: type, call: Any) -> Any:
        def counted(layer: Any, *rest: Any) -> Any:
            work = self._work
            before = 0 if work is None else len(work.issued)
            out = call(layer, *rest)
            if work is not None:
                self.layers.append((kind, self._rows, len(work.issued) - before))
            return out

        return counted

    def of(self, kind: type, rows: int) -> set[int]:
        return {launched for each, of, launched in self.layers if each is kind and of == rows}


def test_launches_are_few_and_the_same_for_every_number_of_rows(
    tiny_recall: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    engine = make_engine(tiny_recall, prefix_caching=False, max_running_requests=4)
    launches = Launches(monkeypatch)
    drawn = SamplingParams(max_tokens=3, temperature=1.0, seed=7, top_k=40, top_p=0.9, presence_penalty=0.5)
    plain = SamplingParams(max_tokens=3, ignore_eos=True)
    run(engine, [AddRequest("a", [7] * 5, plain)])
    run(engine, [AddRequest("b", [8] * 70, plain), AddRequest("c", [6] * 9, drawn)])
    for kind, most in ((Mamba2Mixer, RECURRENT), (Attention, ATTENTION)):
        (number,) = launches.of(kind, 1)
        assert 0 < number <= most
        assert launches.of(kind, 2) == {number}
    ((_, number),) = {choice for choice in launches.choices if choice[0] == 1}
    assert 4 <= number <= SAMPLING
    assert {launched for rows, launched in launches.choices if rows == 2} == {number}


@pytest.mark.parametrize("family", FAMILIES if LARGE else ["Nemotron-H", "Qwen3-Next", "Falcon-H1"])
def test_a_layer_of_each_family_launches_what_is_told_of_it(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, overrides, expected = FAMILIES[family]
    # As on a device that weights are copied to.
    monkeypatch.setattr(Loader, "joins", True)
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    path = checkpoints.random_checkpoint(fields, tmp_path, dtype=torch.bfloat16, **overrides)
    engine = make_engine(path, prefix_caching=False, max_running_requests=1, dtype="bfloat16")
    launches = Launches(monkeypatch)
    run(engine, [AddRequest("a", [7] * 3, SamplingParams(max_tokens=2, ignore_eos=True))])
    assert {kind: launches.of(kind, 1) for kind in expected} == {
        kind: {number} for kind, number in expected.items()
    }
    assert {kind for kind, _, _ in launches.layers} == expected.keys()
