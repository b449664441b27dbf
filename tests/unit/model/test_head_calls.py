"""Steps with drafts, and drafts of a head, have in one call the bits that the layers give one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import Engine, make_engine, run
from mamba_server.wire import AddRequest, SamplingParams
from testmodels.checkpoints import add_draft_head, random_nemotron_h, random_qwen3_5

MODELS: list[Any] = [random_nemotron_h, pytest.param(random_qwen3_5, marks=pytest.mark.slow)]


def requests() -> list[AddRequest]:
    """Return three requests of different lengths, which decode side by side."""
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    texts = ([3, 4, 5], [7] * 21, list(range(40)))
    return [AddRequest(str(number), text, params) for number, text in enumerate(texts)]


def recorded(path: Path, *, in_one_call: bool) -> tuple[list[dict[int, list[int]]], Any, Engine]:
    """Return the drafts of each step and the answers, in one call or layer by layer, and the engine."""
    engine = make_engine(
        path, speculation="mtp", speculative_tokens=3, page_size=16, strategy="NoBuffer", overlap=False
    )
    runner, drafts = engine.core._runner, engine.core.speculation.drafts  # type: ignore[union-attr]
    if runner._step_decoder is None:  # type: ignore[attr-defined]
        pytest.skip("no C++ kernels here")
    if not in_one_call:
        runner._step_decoder = None  # type: ignore[attr-defined]
    record: list[dict[int, list[int]]] = []
    propose = drafts.source.propose

    def proposed(decodes: list[Any]) -> dict[int, Any]:
        result = propose(decodes)
        record.append({index: tokens.tolist() for index, tokens in result.items()})
        return result

    drafts.source.propose = proposed  # type: ignore[method-assign]
    return record, run(engine, requests()), engine


@pytest.mark.slow
@pytest.mark.parametrize("write", MODELS)
def test_drafts_and_caches_have_the_bits_of_the_layers(write: Callable[..., Path], tmp_path: Path) -> None:
    path = add_draft_head(write(tmp_path / "model"), agrees=True)
    mine, answers, together = recorded(path, in_one_call=True)
    true, expected, apart = recorded(path, in_one_call=False)

    assert [each.tokens for each in answers.values()] == [each.tokens for each in expected.values()]
    assert any(len(step) == 3 for step in true), "three sequences have drafts at once"
    assert mine == true
    views, others = together.core._runner._cache, apart.core._runner._cache  # type: ignore[attr-defined]
    for name in ("conv", "ssm", "kv"):
        for one, other in zip(getattr(views, name), getattr(others, name), strict=True):
            assert torch.equal(one, other), name
    assert torch.equal(views.tails, others.tails)
    assert torch.equal(views.hidden.kept, others.hidden.kept)


def test_a_head_that_passes_over_decoded_tokens_leaves_zeros_for_them_and_keeps_hidden_states(
    tmp_path: Path,
) -> None:
    path = add_draft_head(random_nemotron_h(tmp_path / "model"), agrees=True)
    views, answers = [], []
    for reads in (True, False):
        engine = make_engine(path, speculation="mtp", page_size=16, strategy="NoBuffer", overlap=False)
        runner, speculation = engine.core._runner, engine.core.speculation
        if runner._step_decoder is None:  # type: ignore[attr-defined]
            pytest.skip("no C++ kernels here")
        assert speculation is not None
        speculation.drafts.switch_off("nothing is drafted here")
        runner.head_reads = lambda reads=reads: reads  # type: ignore[attr-defined]
        answers.append([each.tokens for each in run(engine, requests()).values()])
        views.append(runner._cache)  # type: ignore[attr-defined]
    true, mine = views

    assert answers[0] == answers[1]
    assert torch.equal(mine.tails, true.tails)
    assert torch.equal(mine.hidden.kept, true.hidden.kept)
    assert all(torch.equal(*pair) for pair in zip(mine.kv[:-1], true.kv[:-1], strict=True))
    # Pages share memory with states, so there are other numbers than keys.
    keys, fewer_keys = (each.kv[-1][:, 0].flatten(2) for each in (true, mine))
    zeros = (keys != 0).any(2) & (fewer_keys == 0).all(2)
    assert int(zeros.sum()) == 3 * 23, "each decoded token that was read elsewhere"
    assert torch.equal(fewer_keys[~zeros], keys[~zeros])
    assert not mine.kv[-1][:, 1][zeros].any()
