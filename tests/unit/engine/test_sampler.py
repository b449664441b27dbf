"""Sampling: each parameter does what OpenAI's and vLLM's users expect, per row, whoever shares the batch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mamba_kernels.cpu.library import library
from mamba_kernels.sample import reference as sample_reference
from mamba_kernels.sample.reference import sample, top_p
from mamba_server.engine.execution import token_scores
from mamba_server.engine.execution.sampler import SampledTokens, Sampler
from mamba_server.engine.execution.sampling_batch import SamplingRow
from mamba_server.engine.execution.token_scores import score_tokens
from mamba_server.engine.sequences.output_grammar import TokenMasks
from mamba_server.grammar_matcher import WORD, mask_words
from mamba_server.wire import SamplingParams
from testmodels.no_sync import no_sync

CPU = torch.device("cpu")
VOCAB = 50
EOS = 7


@pytest.fixture(params=["by features", "together", "kernels"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "together":
        return Sampler(VOCAB, CPU, eos_token_ids=(EOS,), operator=sample)
    kernels = library() if request.param == "kernels" else None
    if request.param == "kernels" and kernels is None:
        pytest.skip("no C++ kernels here")
    return Sampler(VOCAB, CPU, eos_token_ids=(EOS,), library=kernels)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 2


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def admit(
    sampler: Sampler, wanted: SamplingParams, seed: int, prompt: Sequence[int], output: Sequence[int] = ()
) -> SamplingRow:
    return sampler.admit(wanted, seed, len(prompt), np.array([*prompt, *output], np.int32))


def once(
    sampler: Sampler, logits: torch.Tensor, *wanted: SamplingParams, position: int = 10, seed: int = 0
) -> SampledTokens:
    """Sample one step: the same logits for each of the parameters."""
    rows = [admit(sampler, each, seed + i, [1, 2, 3]) for i, each in enumerate(wanted)]
    batch = sampler.batch(rows)
    with no_sync():
        result = sampler.sample(
            logits.repeat(len(rows), 1), batch, torch.full((len(rows),), position, dtype=torch.int32)
        )
    for row in rows:
        sampler.release(row)
    return result


@pytest.mark.parametrize("wanted", [{"temperature": 0.0}, {"temperature": 1.0}, {"logprobs": 2}])
def test_rows_as_the_head_gives_them_are_chosen_from_as_widened_ones(
    sampler: Sampler, logits: torch.Tensor, wanted: dict[str, Any]
) -> None:
    narrow = logits.bfloat16()
    rows = [params(**wanted)] * 3
    got, expected = once(sampler, narrow, *rows), once(sampler, narrow.float(), *rows)
    assert torch.equal(got.ids, expected.ids)
    assert got.finite.all()
    if expected.logprob is not None:
        assert got.logprob is not None
        assert torch.equal(got.logprob, expected.logprob)


def draws(sampler: Sampler, logits: torch.Tensor, count: int, **fields: Any) -> torch.Tensor:
    """Count each token in `count` draws at different positions."""
    row = admit(sampler, params(**fields), 5, [1])
    rows = [row] * count
    ids = sampler.sample(
        logits.repeat(count, 1), sampler.batch(rows), torch.arange(count, dtype=torch.int32)
    ).ids
    return torch.bincount(ids, minlength=VOCAB)


def test_temperature_zero_is_the_most_likely_token(sampler: Sampler, logits: torch.Tensor) -> None:
    assert once(sampler, logits, params(temperature=0)).ids.tolist() == [int(logits.argmax())]


@pytest.mark.parametrize("fields", [{}, {"frequency_penalty": 0.5}])
def test_of_equal_logits_the_first_is_chosen_and_rows_that_are_no_numbers_are_told(
    fields: dict[str, float],
) -> None:
    size = 40_000
    sampler = Sampler(size, CPU, eos_token_ids=(EOS,))
    logits = torch.full((5, size), -1.0)
    logits[0, [31, 900, size - 1]] = 2.0
    logits[1, [size - 2, size - 1]] = 2.0
    logits[2, 77] = torch.nan
    logits[3, 5] = torch.inf
    logits[4, : size - 1] = -torch.inf
    rows = [admit(sampler, params(temperature=0, **fields), 0, [1]) for _ in logits]
    chosen = sampler.sample(logits, sampler.batch(rows), torch.full((5,), 10, dtype=torch.int32))
    assert chosen.ids.tolist()[:2] == [31, size - 2]
    assert chosen.ids.tolist()[3:] == [5, size - 1]
    assert chosen.finite.tolist() == [True, True, False, False, True]


def test_draws_follow_the_softmax_at_the_given_temperature(sampler: Sampler, logits: torch.Tensor) -> None:
    count = 15_000
    for temperature in (0.5, 1.0, 2.0):
        expected = (logits / temperature).softmax(-1) * count
        got = draws(sampler, logits, count, temperature=temperature)
        likely = expected > 5
        chi = ((got - expected) ** 2 / expected)[likely].sum()
        assert chi < 2 * likely.sum(), f"chi squared {chi:.0f} for {likely.sum()} cells"


def test_a_tiny_temperature_is_greedy_and_not_nan(sampler: Sampler, logits: torch.Tensor) -> None:
    assert draws(sampler, logits * 1e4, 100, temperature=1e-6).argmax() == logits.argmax()


def test_the_noise_depends_on_seed_and_position_alone(sampler: Sampler, logits: torch.Tensor) -> None:
    hot = params(temperature=5.0)
    alone = once(sampler, logits, hot, seed=3).ids
    crowd = once(sampler, logits, params(), params(top_p=0.5), params(temperature=0), hot, seed=0).ids
    assert alone[0] == crowd[3]
    assert once(sampler, logits, hot, seed=3).ids == alone
    others = {int(once(sampler, logits, hot, seed=3, position=p).ids) for p in range(20)}
    assert len(others) > 5
    seeds = {int(once(sampler, logits, hot, seed=s).ids) for s in range(20)}
    assert len(seeds) > 5


def test_neighbouring_seeds_and_positions_are_independent() -> None:
    """Equal draws of two streams are as rare as chance: a shifted or shared stream would show here."""
    sampler = Sampler(64, CPU)
    flat = torch.zeros(64)

    def stream(seed: int, start: int) -> torch.Tensor:
        row = admit(sampler, params(), seed, [])
        positions = torch.arange(start, start + 6400, dtype=torch.int32)
        return sampler.sample(flat.repeat(6400, 1), sampler.batch([row] * 6400), positions).ids

    base = stream(1, 0)
    for other in (stream(2, 0), stream(1, 1), stream(1, 10_000), stream(-1, 0), stream(1 << 40, 0)):
        assert 60 <= int((base == other).sum()) <= 145, "100 are expected"


def allowed(
    logits: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0
) -> set[int]:
    """Return the tokens that may come, written as the definitions say, with a sort."""
    probabilities = (logits.double() / temperature).softmax(-1)
    keep = {i for i in range(VOCAB) if probabilities[i] >= min_p * probabilities.max()}
    ranked = sorted(keep, key=lambda i: -float(probabilities[i]))
    if top_k:
        ranked = ranked[:top_k]
    mass = sum(float(probabilities[i]) for i in ranked)
    result, total = set(), 0.0
    for token in ranked:
        if total >= top_p * mass:
            break
        result.add(token)
        total += float(probabilities[token])
    return result


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": VOCAB + 10},
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"top_k": 8, "top_p": 0.6},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.7},
    ],
)
def test_truncation_leaves_exactly_the_tokens_of_its_definition(
    sampler: Sampler, logits: torch.Tensor, fields: dict[str, Any]
) -> None:
    hot = {"temperature": 1.0, **fields}
    expected = allowed(logits, **hot)
    # Flat logits inside the allowed set would need many draws; a high count finds rare members too.
    got = draws(sampler, logits, 8_000, **hot)
    seen = set(got.nonzero().flatten().tolist())
    assert seen <= expected
    probabilities = (logits / hot["temperature"]).softmax(-1)
    share = probabilities / sum(probabilities[token] for token in expected)
    assert {token for token in expected if share[token] > 3e-3} <= seen


@pytest.mark.parametrize("vocab", [1000, 40_000])
@pytest.mark.parametrize("mass", [1e-7, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6])
def test_the_nucleus_is_the_smallest_set_of_that_mass_by_sort_and_by_histogram(
    vocab: int, mass: float
) -> None:
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    logits[1] = logits[1].round()  # many equals
    logits[2, 5] = 40.0  # one token has all the mass
    kept = top_p(logits.clone(), torch.full((3, 1), mass))
    probabilities = logits.softmax(-1).double()
    for row in range(3):
        inside = probabilities[row][kept[row]]
        assert inside.sum() >= mass - 1e-6
        beyond_the_last = inside[inside > inside.min()].sum()
        assert beyond_the_last < mass + 1e-6
        assert not (~kept[row] & (probabilities[row] >= inside.min())).any()


def test_a_row_of_nan_in_a_large_vocabulary_leaves_its_neighbours_their_tokens() -> None:
    vocab = 40_000
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(vocab, CPU)
    batch = sampler.batch([admit(sampler, params(top_p=0.9), seed, []) for seed in range(3)])
    places = torch.arange(3, dtype=torch.int32)
    clean = sampler.sample(logits.clone(), batch, places).ids
    for bad in (torch.nan, torch.inf):
        logits[1] = bad
        ids = sampler.sample(logits.clone(), batch, places).ids
        assert (ids[0], ids[2]) == (clean[0], clean[2])
        assert 0 <= ids[1] < vocab


def test_sampling_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, logits: torch.Tensor) -> None:
    asked = [
        params(), params(top_p=0.5, logprobs=3), params(temperature=0, presence_penalty=1.0),
        params(logprobs=0), params(top_k=4, frequency_penalty=0.5), params(min_p=0.1), params(),
    ]  # fmt: skip

    def sampled() -> list[Any]:
        sampler = Sampler(VOCAB, CPU)
        rows = [admit(sampler, each, seed, [1, 2, 3]) for seed, each in enumerate(asked)]
        found = sampler.sample(logits.repeat(7, 1), sampler.batch(rows), torch.arange(7, dtype=torch.int32))
        assert found.logprob is not None
        assert found.top_ids is not None
        assert found.top_logprobs is not None
        parts = (found.ids, found.logprob, found.top_ids[1, :3], found.top_logprobs[1, :3])
        return [part.nan_to_num(-7.0).tolist() for part in parts]

    whole = sampled()
    assert len(whole) == 4
    for rows in (1, 2, 3):
        monkeypatch.setattr(token_scores, "BLOCK_LOGITS", rows * VOCAB)
        assert sampled() == whole


def test_rows_with_and_without_a_filter_do_not_disturb_each_other(
    sampler: Sampler, logits: torch.Tensor
) -> None:
    mixed = [
        params(temperature=0),
        params(top_k=1),
        params(),
        params(top_p=0.01),
        params(min_p=1.0),
        params(top_k=3, top_p=0.5, temperature=0.3),
    ]
    together = once(sampler, logits, *mixed).ids.tolist()
    apart = [int(once(sampler, logits, each, seed=i).ids) for i, each in enumerate(mixed)]
    assert together == apart
    assert together[1] == together[3] == together[4] == int(logits.argmax())


def test_logit_bias_bans_and_forces(sampler: Sampler, logits: torch.Tensor) -> None:
    best = int(logits.argmax())
    result = once(
        sampler,
        logits,
        params(temperature=0, logit_bias={best: -100.0}),
        params(temperature=0, logit_bias={11: 100.0, VOCAB + 5: 100.0}),
        params(temperature=0),
    ).ids.tolist()
    assert result == [int(logits.topk(2).indices[1]), 11, best]


def test_stop_tokens_do_not_come_before_min_tokens(sampler: Sampler) -> None:
    logits = torch.zeros(VOCAB)
    logits[EOS], logits[9], logits[20] = 30, 20, 10
    wanted = [
        params(temperature=0, min_tokens=4, stop_token_ids=(9,)),
        params(temperature=0, min_tokens=4, ignore_eos=True),
        params(temperature=0),
    ]
    # The prompt has three tokens: positions 3..6 are outputs 1..4.
    assert once(sampler, logits, *wanted, position=6).ids.tolist() == [20, EOS, EOS]
    assert once(sampler, logits, *wanted, position=7).ids.tolist() == [EOS, EOS, EOS]


def penalized(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int], p: SamplingParams) -> int:
    """Apply the definition, token by token, and return the choice."""
    values = logits.tolist()
    for token in range(VOCAB):
        if token in prompt or token in output:
            values[token] = (
                values[token] / p.repetition_penalty
                if values[token] > 0
                else values[token] * p.repetition_penalty
            )
        values[token] -= p.frequency_penalty * list(output).count(token)
        values[token] -= p.presence_penalty * (token in output)
    return max(range(VOCAB), key=lambda token: values[token])


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.9},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    ],
)
def test_penalties_count_the_tokens_the_sampler_itself_chose(
    sampler: Sampler, logits: torch.Tensor, fields: dict[str, Any]
) -> None:
    wanted = params(temperature=0, **fields)
    prompt = [int(logits.argmax()), 4, 4]
    plain = admit(sampler, params(temperature=0), 0, prompt)
    rows = [plain, admit(sampler, wanted, 0, prompt), admit(sampler, wanted, 0, [])]
    batch = sampler.batch(rows)
    outputs: list[list[int]] = [[], [], []]
    for step in range(30):
        ids = sampler.sample(logits.repeat(3, 1), batch, torch.full((3,), 3 + step, dtype=torch.int32)).ids
        assert int(ids[0]) == int(logits.argmax())
        assert int(ids[1]) == penalized(logits, prompt, outputs[1], wanted)
        assert int(ids[2]) == penalized(logits, [], outputs[2], wanted)
        for output, token in zip(outputs, ids.tolist(), strict=True):
            output.append(token)


def test_a_preempted_sequence_comes_back_with_its_counts(sampler: Sampler, logits: torch.Tensor) -> None:
    wanted = params(temperature=0, frequency_penalty=0.8)
    row = admit(sampler, wanted, 0, [1])
    outputs = []
    for step in range(20):
        if step == 9:
            sampler.release(row)
            stranger = admit(sampler, wanted, 0, [1])
            sampler.sample(
                logits[None].clone(), sampler.batch([stranger]), torch.tensor([5], dtype=torch.int32)
            )
            row = admit(sampler, wanted, 0, [1], outputs)
        ids = sampler.sample(
            logits[None].clone(), sampler.batch([row]), torch.tensor([1 + step], dtype=torch.int32)
        ).ids
        assert int(ids) == penalized(logits, [1], outputs, wanted)
        outputs.append(int(ids))


def test_a_late_step_of_an_ended_sequence_does_not_count_for_its_successor(
    sampler: Sampler, logits: torch.Tensor
) -> None:
    wanted = params(temperature=0, frequency_penalty=50.0)
    position = torch.tensor([3], dtype=torch.int32)
    first = admit(sampler, wanted, 0, [1])
    in_flight = sampler.batch([first])
    sampler.sample(logits[None].clone(), in_flight, position)
    sampler.release(first)
    second = admit(sampler, wanted, 0, [1])
    assert second.counts_row == first.counts_row
    planned = sampler.batch([second])
    sampler.sample(logits[None].clone(), in_flight, position)  # planned before the end was seen
    assert int(sampler.sample(logits[None].clone(), planned, position).ids) == int(logits.argmax())


def test_logprobs_are_those_of_the_model_before_any_processing(
    sampler: Sampler, logits: torch.Tensor
) -> None:
    best = int(logits.argmax())
    result = once(
        sampler,
        logits,
        params(temperature=0, logit_bias={best: -100.0}, logprobs=3),
        params(temperature=0),
        params(temperature=3.0, top_k=2, logprobs=0),
    )
    expected = logits.log_softmax(-1)
    assert result.logprob is not None
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    assert result.logprob[0].item() == pytest.approx(float(expected[result.ids[0]]), abs=1e-5)
    assert math.isnan(result.logprob[1])
    assert result.logprob[2].item() == pytest.approx(float(expected[result.ids[2]]), abs=1e-5)
    assert result.top_ids[0].tolist() == expected.topk(3).indices.tolist()
    torch.testing.assert_close(result.top_logprobs[0], expected.topk(3).values)


def test_without_logprobs_none_are_computed(sampler: Sampler, logits: torch.Tensor) -> None:
    result = once(sampler, logits, params())
    assert result.logprob is None
    assert result.top_ids is None
    result = once(sampler, logits, params(logprobs=0))
    assert result.logprob is not None
    assert result.top_ids is None


def test_prompt_logprobs_score_the_tokens_that_came_next(logits: torch.Tensor) -> None:
    rows = torch.stack([logits, logits.flip(0)])
    scores = score_tokens(rows, torch.tensor([3, 4]), top=2)
    expected = rows.log_softmax(-1)
    torch.testing.assert_close(scores.logprob, torch.stack([expected[0, 3], expected[1, 4]]))
    torch.testing.assert_close(scores.top_logprobs, expected.topk(2).values)
    assert scores.top_ids.tolist() == expected.topk(2).indices.tolist()
    assert score_tokens(rows, torch.tensor([3, 4]), top=0).top_ids.shape == (2, 0)


def test_the_rank_of_a_token_counts_all_that_are_likelier_and_not_the_shown_ones_alone() -> None:
    rows = torch.tensor([[5.0, 1.0, 3.0, 3.0, -torch.inf]]).repeat(5, 1)
    scores = score_tokens(rows, torch.arange(5), top=1)
    assert scores.rank.tolist() == [1, 4, 2, 2, 5]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def masks(*rows: tuple[int, set[int]]) -> TokenMasks:
    words = np.zeros((len(rows), mask_words(VOCAB)), np.uint32)
    for place, (_, allowed) in enumerate(rows):
        for token in allowed:
            words[place, token // WORD] |= np.uint32(1 << token % WORD)
    return TokenMasks(np.array([row for row, _ in rows], np.int64), words.view(np.int32))


@pytest.mark.parametrize(
    "wanted",
    [
        {"temperature": 0.0}, {"temperature": 1.5}, {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.2}, {"temperature": 0.0, "logprobs": 2},
        {"temperature": 1.0, "repetition_penalty": 2.0, "logit_bias": {4: 100.0}},
    ],
)  # fmt: skip
def test_a_masked_row_gets_a_token_that_is_allowed_and_the_others_theirs(
    sampler: Sampler, logits: torch.Tensor, wanted: dict[str, Any]
) -> None:
    rows = [admit(sampler, params(**wanted), seed, [1, 2, 3]) for seed in range(6)]
    positions = torch.full((6,), 10, dtype=torch.int32)
    batch = sampler.batch(rows)
    free = sampler.sample(logits.repeat(6, 1), batch, positions)
    likely = set(logits.topk(20).indices.tolist())
    allowed = {1: set(range(VOCAB)) - likely, 4: {VOCAB - 1}, 5: {31, 32}}

    guided = sampler.sample(logits.repeat(6, 1), batch, positions, masks(*allowed.items()))

    chosen = guided.ids.tolist()
    assert all(chosen[row] in tokens for row, tokens in allowed.items())
    if "repetition_penalty" not in wanted:  # whose counts have gone on
        assert [chosen[row] for row in (0, 2, 3)] == [free.ids.tolist()[row] for row in (0, 2, 3)]
    assert guided.finite.all()
    if "logprobs" in wanted:  # of the model, whatever is allowed
        assert guided.logprob is not None
        assert guided.logprob.tolist() == pytest.approx(logits.log_softmax(-1)[guided.ids.long()].tolist())


@pytest.mark.parametrize("rows", [1, 4])
def test_many_masked_rows_get_tokens_that_are_allowed_block_by_block(
    sampler: Sampler, logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(token_scores, "BLOCK_LOGITS", rows * VOCAB)
    own = [admit(sampler, params(), seed, [1, 2, 3]) for seed in range(11)]
    allowed = [(row, {row, 20 + row}) for row in range(0, 11, 1 if rows == 1 else 2)]
    ids = sampler.sample(
        logits.repeat(11, 1), sampler.batch(own), torch.arange(11, dtype=torch.int32), masks(*allowed)
    ).ids.tolist()
    assert all(ids[row] in tokens for row, tokens in allowed)


def test_the_reference_chooses_the_same_in_blocks_and_counts_each_token_once(
    monkeypatch: pytest.MonkeyPatch, logits: torch.Tensor
) -> None:
    asked = [params(), params(top_p=0.5), params(temperature=0, presence_penalty=1.0), params(min_p=0.1)] * 3

    def chosen() -> tuple[list[int], list[list[int]]]:
        sampler = Sampler(VOCAB, CPU, operator=sample)
        rows = [admit(sampler, each, seed, [1, 2, 3]) for seed, each in enumerate(asked)]
        places = torch.arange(12, dtype=torch.int32)
        ids = sampler.sample(logits.repeat(12, 1), sampler.batch(rows), places).ids.tolist()
        return ids, sampler._output_counts.tolist()

    whole = chosen()
    for rows in (1, 5):
        monkeypatch.setattr(sample_reference, "BLOCK_LOGITS", rows * VOCAB)
        assert chosen() == whole


def test_where_everything_that_a_form_allows_is_blocked_the_form_wins(sampler: Sampler) -> None:
    rows = [admit(sampler, params(temperature=0, min_tokens=4), 0, [1, 2, 3]) for _ in range(2)]
    positions = torch.full((2,), 3, dtype=torch.int32)
    chosen = sampler.sample(
        torch.zeros(2, VOCAB), sampler.batch(rows), positions, masks((0, {EOS}), (1, {EOS, 9}))
    )
    assert chosen.ids.tolist() == [EOS, 9]
    assert chosen.finite is None or chosen.finite.all()
