"""The training forward: it is the published model, no later token leaks, the scan is the recurrence."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from training.tiny_recall import checkpoint
from training.tiny_recall.model import CHUNK, Shape, TinyHybrid, ssd

SMALL = Shape(
    vocab=512, hidden=32, pattern="M*-M", heads=2, head_dim=16, state=8, attention_heads=2, kv_heads=1
)


def model(shape: Shape, seed: int = 0) -> TinyHybrid:
    torch.manual_seed(seed)
    return TinyHybrid(shape)


def recurrence(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Compute token by token: S = exp(dt A) S + dt x B^T, y = S C."""
    b, length, h, p = x.shape
    state = torch.zeros(b, h, p, B.shape[-1], dtype=x.dtype)
    outputs = []
    for t in range(length):
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, None, None]
        outputs.append((state * C[:, t, None, None]).sum(-1))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("length", [8, 16, 64])
@pytest.mark.parametrize("chunk", [4, 8])
def test_the_chunked_scan_gives_what_the_recurrence_gives(length: int, chunk: int) -> None:
    torch.manual_seed(length)
    x, dt = torch.randn(2, length, 3, 5, dtype=torch.float64), torch.rand(2, length, 3, dtype=torch.float64)
    B, C = (torch.randn(2, length, 7, dtype=torch.float64) for _ in range(2))
    A = -torch.tensor([0.1, 1.0, 16.0], dtype=torch.float64)
    torch.testing.assert_close(ssd(x, dt, A, B, C, chunk), recurrence(x, dt, A, B, C))


def test_a_large_decay_over_a_chunk_gives_no_nan() -> None:
    x, dt = torch.randn(1, CHUNK, 1, 4), torch.full((1, CHUNK, 1), 50.0)
    B = C = torch.randn(1, CHUNK, 4)
    assert ssd(x, dt, torch.tensor([-100.0]), B, C, CHUNK).isfinite().all()


@pytest.mark.parametrize("shape", [SMALL, Shape()], ids=["small", "shipped"])
@pytest.mark.parametrize("length", [CHUNK, 3 * CHUNK])
def test_the_training_forward_equals_that_of_transformers(shape: Shape, length: int, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours = model(shape)
    checkpoint.write(ours, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.randint(0, shape.vocab, (2, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_transformers_finds_every_weight_and_no_other(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint.write(model(SMALL), tmp_path)
    _, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


@pytest.mark.parametrize("changed", [5, CHUNK, 2 * CHUNK - 1])
def test_no_logit_depends_on_a_later_token(changed: int) -> None:
    ours = model(SMALL)
    ids = torch.randint(0, 512, (1, 2 * CHUNK), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[0, changed] = (other[0, changed] + 1) % 512
    with torch.no_grad():
        before, after = ours(ids), ours(other)
    torch.testing.assert_close(before[:, :changed], after[:, :changed])
    assert not torch.allclose(before[:, changed], after[:, changed])


def test_every_weight_receives_a_gradient() -> None:
    ours = model(SMALL)
    ids = torch.randint(0, 512, (2, CHUNK), generator=torch.Generator().manual_seed(2))
    ours(ids).logsumexp(-1).sum().backward()
    silent = [
        name for name, weight in ours.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    assert silent == []


def test_the_same_seed_gives_the_same_weights_and_another_seed_does_not() -> None:
    first, second, other = model(SMALL, 3), model(SMALL, 3), model(SMALL, 4)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_shipped_shape_has_all_three_kinds_of_layers_and_attention_after_mamba() -> None:
    pattern = Shape().pattern
    assert set(pattern) == {"M", "*", "-"}
    assert pattern.index("M") < pattern.index("*")
    assert pattern.count("*") >= 2
