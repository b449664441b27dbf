"""Delays on the stream, forced preemption and a pool that is too small change no bit of what is said."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE, OTHER_THIRD, Case
from mamba_server.engine.boot import Engine
from mamba_server.engine.scheduling.admission import Admission
from mamba_server.engine.stepping.forward_stream import ForwardStream, Result, Ticket
from mamba_server.wire import AddRequest, SamplingParams

LONGEST = 0.004


class Jitter:
    """A forward stream that dawdles: before a step runs, after it ran, and before its end is told."""

    def __init__(self, stream: ForwardStream, seed: int) -> None:
        self._stream = stream
        self._rng = random.Random(seed)
        self.delays = 0

    def _dawdle(self) -> None:
        if self._rng.random() < 0.3:
            self.delays += 1
            time.sleep(self._rng.random() * LONGEST)

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        def late() -> Result:
            self._dawdle()
            result = work()
            self._dawdle()
            return result

        return self._stream.launch(late)

    def wait(self, ticket: Ticket[Result]) -> Result:
        result = self._stream.wait(ticket)
        self._dawdle()
        return result

    def close(self) -> None:
        self._stream.close()


def requests(seed: int) -> list[AddRequest]:
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(140)]
    prompts = [[rng.randrange(256) for _ in range(n)] for n in (1, 16, 63, 130)]
    prompts += [stem[:shared] + [rng.randrange(256)] * 5 for shared in (64, 100, 128, 140)]
    out = [greedy(f"g{index}", prompt, 20) for index, prompt in enumerate(prompts)]
    drawn = [
        SamplingParams(max_tokens=30, temperature=0.9, seed=s, logprobs=3, ignore_eos=True) for s in (1, 2)
    ]
    return out + [AddRequest(f"d{params.seed}", stem, params) for params in drawn]


@pytest.fixture(scope="module")
def quiet(random_model: Path) -> dict[tuple[str, int], Answer]:
    """Return the answers of each request alone, with nothing cached."""
    engine = make_engine(random_model, batch_invariant=True, prefix_caching=False)
    out: dict[tuple[str, int], Answer] = {}
    for request in requests(6):
        out |= run(engine, [request])
    return out


def harassed(engine: Engine, seed: int) -> Callable[[int], None]:
    """Preempt a sequence every few steps, and now and then lose everything cached."""
    rng = random.Random(seed)

    def before(number: int) -> None:
        scheduler = engine.core.scheduler
        running = [*scheduler.prefilling, *scheduler.decoding]
        if running and number % 5 == 4:
            scheduler.preempt(rng.choice(running))
        if number % 23 == 22:
            engine.core.cache.flush()

    return before


@pytest.mark.parametrize("seed", range(6 if LARGE else 1))
@pytest.mark.parametrize("case", OTHER_THIRD, ids=str)
def test_a_harassed_run_equals_the_quiet_one_bit_by_bit(
    random_model: Path, quiet: Any, monkeypatch: pytest.MonkeyPatch, case: Case, seed: int
) -> None:
    slab = case.boot(random_model).plan.slab_bytes

    # More at once than the arena can hold to their end.
    monkeypatch.setattr(Admission, "_fits_forecast", lambda *_: True)
    jitters: list[Jitter] = []

    def wrap(stream: ForwardStream) -> ForwardStream:
        jitters.append(Jitter(stream, seed))
        return jitters[0]

    engine = case.boot(
        random_model,
        stream=wrap,
        batch_invariant=True,
        arena_bytes=20 * slab,
        max_model_len=256,
        max_running_requests=None,
        chunked_prefill_tokens=160,
    )
    got = run(engine, requests(6), before_step=harassed(engine, seed))
    assert engine.core.scheduler.counters.preemptions > 3
    assert jitters[0].delays > 10
    for key, expected in quiet.items():
        assert got[key].tokens == expected.tokens, key
        assert got[key].logprobs == expected.logprobs, key
