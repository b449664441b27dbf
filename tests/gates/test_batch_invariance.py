"""`--batch-invariant`: no bit depends on the batch, on how a prompt was split, or on what is cached."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE
from mamba_kernels import invariant
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.layers import mamba2
from mamba_server.model.layers.mlp import ACTIVATIONS, activation
from mamba_server.wire import AddRequest, SamplingParams
from testmodels.checkpoints import (
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_mamba2,
    random_qwen3_next,
    random_zamba2,
)

OUTPUTS = 12
Answers = dict[tuple[str, int], Answer]


def requests(seed: int) -> list[AddRequest]:
    """Return ragged prompts around the page, chunk and tile sizes, three of them from one stem."""
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(150)]
    prompts = [[rng.randrange(256) for _ in range(n)] for n in (1, 2, 15, 33, 64, 65, 130)]
    prompts += [stem[:shared] + [rng.randrange(256) for _ in range(9)] for shared in (100, 129, 150)]
    out = [greedy(f"r{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]
    drawn = SamplingParams(
        max_tokens=OUTPUTS, temperature=1.0, top_p=0.9, seed=7, logprobs=5, ignore_eos=True
    )
    out.append(AddRequest("drawn", stem, drawn))
    return out


def assert_same_bits(got: Answers, expected: Answers) -> None:
    assert got.keys() == expected.keys()
    for key, answer in expected.items():
        assert got[key].tokens == answer.tokens, key
        for position, (ours, theirs) in enumerate(zip(got[key].logprobs, answer.logprobs, strict=True)):
            assert ours == theirs, (key, position)


def alone(path: Path, wanted: list[AddRequest], **settings: object) -> Answers:
    out: Answers = {}
    engine = make_engine(path, batch_invariant=True, prefix_caching=False, **settings)
    for request in wanted:
        out |= run(engine, [request])
    return out


@pytest.fixture(scope="module")
def truth(request: pytest.FixtureRequest, random_model: Path) -> tuple[str, Answers]:
    """Answer each request alone, its prompt in one piece, nothing cached."""
    return request.param, alone(random_model, requests(1), dtype=request.param)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "budget"),
    (
        [(dtype, budget) for dtype in ("float32", "bfloat16") for budget in (64, 256, 4096)]
        if LARGE
        else [("float32", 256), ("bfloat16", 64)]
    ),
    indirect=["truth"], scope="module",
)  # fmt: skip
def test_neighbours_and_splits_change_no_bit(
    random_model: Path, truth: tuple[str, Answers], budget: int
) -> None:
    dtype, expected = truth
    engine = make_engine(
        random_model,
        batch_invariant=True,
        dtype=dtype,
        max_running_requests=16,
        chunked_prefill_tokens=budget,
    )
    assert_same_bits(run(engine, requests(1)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("state_dtype", ["float32", "float16"] if LARGE else ["float16"])
def test_a_hit_changes_no_bit(random_model: Path, state_dtype: str) -> None:
    wanted = requests(2)
    expected = alone(random_model, wanted, state_dtype=state_dtype)
    engine = make_engine(
        random_model, batch_invariant=True, state_dtype=state_dtype, track_interval=16, max_running_requests=4
    )
    for _ in range(2):
        got = run(engine, wanted)
        assert_same_bits(got, expected)
    assert sum(answer.cached_tokens > 0 for answer in got.values()) > len(got) // 2


def granite_experts(path: Path) -> Path:
    return random_granite(path, num_local_experts=8, num_experts_per_tok=3)


@pytest.mark.parametrize(
    "write",
    [granite_experts, random_falcon_h1, random_zamba2, *([random_bamba, random_mamba2] if LARGE else [])],
)
def test_in_no_family_a_bit_depends_on_neighbours_splits_or_hits(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path, wanted = write(tmp_path), requests(3)[:: 1 if LARGE else 2]
    expected = alone(path, wanted, dtype="bfloat16")
    engine = make_engine(
        path, batch_invariant=True, dtype="bfloat16", track_interval=16, max_running_requests=4,
        chunked_prefill_tokens=64,
    )  # fmt: skip
    for _ in range(2):
        got = run(engine, wanted)
        assert_same_bits(got, expected)
    assert sum(answer.cached_tokens > 0 for answer in got.values()) > len(got) // 2


def test_a_model_of_the_gated_delta_rule_is_refused_in_this_mode(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="batch-invariant"):
        make_engine(random_qwen3_next(tmp_path), batch_invariant=True)


def test_a_second_turn_from_a_decoded_checkpoint_changes_no_bit(random_model: Path) -> None:
    """State and keys left by decodes are those that a prefill of the same tokens leaves."""
    first = greedy("first", list(range(40)), 60)
    engine = make_engine(random_model, batch_invariant=True, track_interval=16, strategy="ExtraBuffer")
    said = run(engine, [first])["first", 0].tokens
    second = greedy("second", [*first.token_ids, *said, 1, 2, 3], OUTPUTS)
    answer = run(engine, [second])
    assert answer["second", 0].cached_tokens > len(first.token_ids) + 16
    assert_same_bits(answer, alone(random_model, [second]))


@pytest.mark.parametrize("truth", ["float32"], indirect=True, scope="module")
def test_the_mode_says_what_the_fast_kernels_say(random_model: Path, truth: tuple[str, Answers]) -> None:
    _, expected = truth
    fast = run(make_engine(random_model, prefix_caching=False, max_running_requests=16), requests(1))
    for key, answer in expected.items():
        for ours, theirs in zip(answer.logprobs, fast[key].logprobs, strict=True):
            assert ours.token_id == theirs.token_id, key
            assert abs(ours.logprob - theirs.logprob) < 1e-4, key


def test_without_the_mode_the_bits_do_depend_on_the_batch(random_model: Path) -> None:
    """So the tests above compare something that can differ."""
    wanted = requests(1)
    expected: Answers = {}
    engine = make_engine(random_model, prefix_caching=False)
    for request in wanted:
        expected |= run(engine, [request])
    together = make_engine(random_model, max_running_requests=16, chunked_prefill_tokens=64)
    with pytest.raises(AssertionError):
        assert_same_bits(run(together, wanted), expected)


@pytest.mark.parametrize("taken_back", ["convolution_by_tap", "recurrence_by_token", "gated_norm_by_row"])
def test_the_mixer_uses_the_kernels_of_the_mode(
    random_model: Path, monkeypatch: pytest.MonkeyPatch, taken_back: str
) -> None:
    called = []
    real = getattr(invariant, taken_back)
    monkeypatch.setattr(mamba2, taken_back, lambda *a, **k: (called.append(1), real(*a, **k))[1])
    run(make_engine(random_model), [greedy("fast", [1, 2, 3], 2)])
    assert not called
    run(make_engine(random_model, batch_invariant=True), [greedy("exact", [1, 2, 3], 2)])
    assert called


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_the_same_bits_at_every_place_and_the_value_of_the_fast_one(name: str) -> None:
    x = torch.randn(67, generator=torch.Generator().manual_seed(3)) * 4
    exact = activation(name, batch_invariant=True)
    whole = exact(x.clone(), None)
    torch.testing.assert_close(whole, activation(name)(x.clone(), None), rtol=1e-5, atol=1e-6)
    for start in range(0, 67, 7):
        assert torch.equal(exact(x[start : start + 7].clone(), None), whole[start : start + 7])
    # As a half of a product that is joined with another one.
    wide = torch.cat([x, x]).view(2, 67).repeat(1, 2)
    assert torch.equal(exact(wide[:, :67], wide[:, 67:]), (whole * x).expand(2, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(48, 80), (48, 131), (7, 5), (300, 264)])
def test_a_sound_row_tile_gives_a_row_the_same_bits_in_any_company(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs, outputs = shape
    tile = invariant.sound_row_tile(inputs, outputs, True, dtype, torch.device("cpu"))
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    row = torch.randn(inputs).to(dtype)
    results = []
    for place in range(tile):
        x = torch.randn(tile, inputs).to(dtype)
        x[place] = row
        results.append(torch.nn.functional.linear(x, weight, bias)[place])
    assert all(torch.equal(results[0], other) for other in results)
