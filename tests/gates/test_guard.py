"""No forward inside the engine makes the host wait for the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import greedy, make_engine, run
from gate_cases import OTHER_THIRD, THIRD, Case
from joined_engines import Joined, hand_over, joined
from mamba_server.engine.boot import Engine
from testmodels.no_sync import no_sync


def guard(engine: Engine) -> list[int]:
    """Put every forward of `engine`, its head included, under the guard; the list grows by two with each."""
    runner: Any = engine.core._runner
    calls: list[int] = []

    def guarded(part: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            with no_sync():
                return part(*args, **options)

        return call

    runner._hidden, runner._logits = guarded(runner._hidden), guarded(runner._logits)
    if runner._step_decoder is not None:
        runner._step_decoder = guarded(runner._step_decoder)
    return calls


@pytest.mark.parametrize(
    ("batch_invariant", "case"),
    [(mode, case) for mode, cases in ((False, THIRD), (True, OTHER_THIRD)) for case in cases],
    ids=str,
)
def test_a_forward_in_the_engine_never_syncs(random_model: Path, batch_invariant: bool, case: Case) -> None:
    engine = case.boot(random_model, batch_invariant=batch_invariant, chunked_prefill_tokens=128)
    calls = guard(engine)
    stem = list(range(70))
    for turn in range(2):
        answers = run(engine, [greedy(f"{turn}{i}", [*stem, i, i + 1], 4) for i in range(3)])
    assert all(len(answer.tokens) == 4 for answer in answers.values())
    assert all(answer.cached_tokens for answer in answers.values())
    assert len(calls) > 16


@pytest.mark.parametrize("overlap", [False, True])
def test_a_forward_from_a_state_that_arrived_never_syncs(random_model: Path, overlap: bool) -> None:
    settings: dict[str, Any] = {"page_size": 16, "overlap": overlap}
    prefill = Joined(make_engine(random_model, **settings), copies=True)
    decode = Joined(make_engine(random_model, **settings), copies=True)
    requests = [greedy(f"{i}", [i, *range(70), i], 4) for i in range(3)]
    with joined(prefill, decode):
        guard(prefill.engine)
        calls = guard(decode.engine)
        answers = hand_over(prefill, decode, requests)
    assert all(answer.cached_tokens == 64 for answer in answers.values())
    assert len(calls) >= 8


def test_the_guard_sees_a_sync_that_someone_adds(random_model: Path) -> None:
    engine = make_engine(random_model)
    model: Any = engine.core._runner._model
    mix = model._mix

    def with_a_sync(block: Any, x: Any, *rest: Any) -> Any:
        return mix(block, x / max(1.0, x.abs().max().item() / 1e30), *rest)

    model._mix = with_a_sync
    run(engine, [greedy("unguarded", [1, 2, 3], 2)])
    guard(engine)
    with pytest.raises(AssertionError, match="HostSync"):
        run(engine, [greedy("guarded", [1, 2, 3], 2)])
