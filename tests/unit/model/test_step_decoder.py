"""A model decodes in one call with the bits that its layers give one by one, or says that it cannot."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mamba_api.choices import Quantization
from mamba_planner.families.registry import load_model_config
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.step_decoder import step_decoder
from testmodels.batches import CPU, Driver, Run, Sequence, poisoned_views
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_lfm2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_next,
)

from .conftest import LoadModel

PAGE, SLABS, PAGES = 16, 8, 40
TEXTS = [[7, 8, 9, 10], [1] * 33, [*range(60)]]


class Served:
    """Three sequences whose prompts are in the cache, and the decode of their next tokens."""

    def __init__(self, model: HybridModel) -> None:
        self.model = model
        self.views = poisoned_views(model.config, slabs=SLABS, pages=PAGES, page_size=PAGE, dtype=model.dtype)
        self.sequences = [
            Sequence([*text, 11 + index], slot=index + 1, pages=list(range(1 + 8 * index, 9 + 8 * index)))
            for index, text in enumerate(TEXTS)
        ]
        self.driver = Driver(model, self.views, page_size=PAGE, guard=False)
        self.driver.step([Run(each, len(each.tokens) - 1) for each in self.sequences])
        self.runs = [Run(each, 1, decode=True, track=5 if each.slot == 2 else -1) for each in self.sequences]

    def layers(self) -> torch.Tensor:
        """Return the logits [n, vocabulary] of the decode, by the model's layers."""
        return self.driver.step(self.runs)

    def one_call(self) -> torch.Tensor:
        host, ids, table = self.driver._host(self.runs)
        last_token = torch.zeros(len(table), dtype=torch.int32)
        last_token[torch.from_numpy(host.table_row).long()] = torch.from_numpy(ids)
        decoder = step_decoder(
            self.model, self.views, page_table=torch.from_numpy(table), last_token=last_token, most_rows=4
        )
        assert decoder is not None
        return self.model.logits(decoder(host))


def granite_experts(directory: Path) -> Path:
    return random_granite(directory, num_local_experts=8, num_experts_per_tok=3)


def lfm2_experts(directory: Path) -> Path:
    return random_lfm2(directory, num_experts=8, conv_bias=True)


def nemotron_experts(directory: Path) -> Path:
    return random_nemotron_h(
        directory, hybrid_override_pattern="ME*E", n_routed_experts=8, num_experts_per_tok=2, n_group=2,
        topk_group=1, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40,
    )  # fmt: skip


def latent_experts(directory: Path) -> Path:
    return random_nemotron_h(directory, **LATENT_EXPERTS)


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        (torch.float32, "none"),
        (torch.bfloat16, "none"),
        (torch.bfloat16, "int8"),
        (torch.bfloat16, "int4"),
    ],
)
@pytest.mark.parametrize(
    "write",
    [
        random_nemotron_h,
        random_granite,
        random_bamba,
        random_falcon_h1,
        random_qwen3_next,
        random_olmo_hybrid,
        random_lfm2,
        lfm2_experts,
        granite_experts,
        nemotron_experts,
        latent_experts,
    ],
)
def test_logits_and_caches_have_the_bits_of_the_layers(
    write: Callable[[Path], Path], dtype: torch.dtype, quantization: Quantization, tmp_path: Path
) -> None:
    checkpoint = write(tmp_path)
    model = HybridModel.load(
        load_model_config(checkpoint), checkpoint, device=CPU, dtype=dtype,
        quantization=quantization,
    )  # fmt: skip
    if model.backend.library is None:
        pytest.skip("no C++ kernels here")
    together, apart = Served(model), Served(model)
    assert torch.equal(together.one_call(), apart.layers())
    for name in ("conv", "ssm", "kv"):
        for mine, true in zip(getattr(together.views, name), getattr(apart.views, name), strict=True):
            torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)
    assert together.views.conv[0][5].isfinite().all(), "the tracked slot has the window"
    assert together.views.ssm[0][5].isfinite().all(), "the tracked slot has the state"


def test_a_model_that_something_else_computes_has_no_such_call(
    checkpoint: Path, load_model: LoadModel, tmp_path: Path
) -> None:
    # Batch-invariant rows, a type without kernels, an activation that no product applies, and experts.
    gelu = random_nemotron_h(tmp_path / "gelu", mlp_hidden_act="gelu")
    others = (
        load_model(checkpoint, torch.float32, batch_invariant=True),
        load_model(checkpoint, torch.float64),
        load_model(gelu, torch.float32),
    )
    for model in others:
        views = poisoned_views(model.config, slabs=2, pages=2, page_size=PAGE, dtype=model.dtype)
        table, last = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        assert step_decoder(model, views, page_table=table, last_token=last, most_rows=1) is None
