"""A whole engine in this process, booted as the engine process boots it, and a way to run requests on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from mamba_planner import planner
from mamba_server.cache import ledger
from mamba_server.engine.boot import NO_OVERRIDES, BootOverrides, Engine, boot
from mamba_server.wire import AddRequest, SamplingParams, TokenLogprobs
from mamba_settings.engine_settings import EngineSettings


@dataclass
class Answer:
    """Answer to one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None


def make_engine(
    directory: Path, *, trial: BootOverrides = NO_OVERRIDES, exact: bool = False, **settings: Any
) -> Engine:
    """Boot an engine on the CPU, with overlap unless told otherwise: what holds with it holds without.

    Sizes default to something small, and no clock decides what a step holds, be it pieces of prompts or
    drafts: on a busy machine, too, two engines with the same requests compute the same steps. `exact`:
    float64 throughout.
    """
    defaults = {"arena_bytes": 16 << 20, "overlap": True, "seed": 0, "step_time": 0, "speculation": "off"}
    trial = replace(trial, bound_starts=False)
    engine_settings = EngineSettings(model=str(directory), device="cpu", **{**defaults, **settings})
    if not exact:
        return boot(engine_settings, lambda *_: None, trial)
    # Neither a setting nor a choice of the planner: wider than anything a user should pay for.
    engine_settings = engine_settings.model_copy(update={"dtype": "float64", "state_dtype": "float64"})
    with mock.patch.object(planner, "STATE_DTYPES", ("float64",)):
        return boot(engine_settings, lambda *_: None, trial)


def greedy(name: str, prompt: list[int], outputs: int, *, top: int = 5, **fields: Any) -> AddRequest:
    params = SamplingParams(max_tokens=outputs, temperature=0.0, logprobs=top, ignore_eos=True)
    return AddRequest(name, prompt, params, **fields)


def run(
    engine: Engine,
    requests: list[AddRequest],
    *,
    most_steps: int = 20_000,
    before_step: Callable[[int], object] = lambda _: None,
) -> dict[tuple[str, int], Answer]:
    """Add all at once, step until idle, check the ledger; answers by (request id, index).

    `before_step` is called with 0, 1, 2, … and may look, preempt, flush or change the strategy.
    """
    answers: dict[tuple[str, int], Answer] = {}
    for request in requests:
        rejected = engine.core.add(request)
        assert rejected is None, rejected
    for number in range(most_steps):
        before_step(number)
        for delta in engine.core.step():
            answer = answers.setdefault((delta.request_id, delta.index), Answer())
            answer.tokens.extend(delta.token_ids)
            answer.logprobs.extend(delta.logprobs or [])
            answer.cached_tokens += delta.cached_tokens
            answer.prompt_logprobs = delta.prompt_logprobs or answer.prompt_logprobs
            answer.finish_reason = delta.finish_reason or answer.finish_reason
        assert not engine.core.failed_steps, engine.core.last_error
        if engine.core.idle:
            ledger.check(engine.core.cache)
            return answers
    raise AssertionError("the engine hangs")
