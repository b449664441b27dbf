"""A whole engine, booted as the engine process boots it, under a load with shared prefixes."""

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.case import Case, Job, Numbers, Wrong
from benchmarks.gpu.device_facts import facts
from benchmarks.gpu.engine_run import Answer, Load, agreement, latencies, run
from benchmarks.gpu.model_directory import write_config
from benchmarks.gpu.models import NANO, SMALLER
from benchmarks.gpu.random_weights import RandomWeights

from mamba_server.engine.boot import BootOverrides, Engine, boot
from mamba_settings.engine_settings import EngineSettings

__all__ = ["cases", "facts"]
STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")
SMALL_SETTINGS: dict[str, Any] = {
    "max_model_len": 64,
    "arena_bytes": 8 << 20,
    "max_running_requests": 2,
    "state_dtype": "float32",
    "page_size": 4,
    "track_interval": 8,
}
START_SECONDS = 90.0
RUN_SECONDS = 60.0
LEAST_MEMORY = 40 << 30
"""Bytes of a card for the larger model."""


def cases(job: Job) -> Iterator[Case]:
    """Yield the start, then a run for each strategy and one without shared prefixes, then comparisons."""
    trial = EngineTrial(torch.device(job.device), small=job.small)
    yield Case("start", trial.start, START_SECONDS)
    for strategy in STRATEGIES:
        yield Case(f"strategy {strategy}", partial(trial.under, strategy), RUN_SECONDS)
    yield Case("nothing shared", trial.unshared, RUN_SECONDS)
    yield Case("resumed = computed", trial.resumed_is_computed, RUN_SECONDS)
    yield Case("strategies agree", trial.strategies_agree, RUN_SECONDS)
    yield Case("nothing waits, nothing compiles", trial.counters, RUN_SECONDS)
    yield Case("issued = captured", trial.issued_is_captured, START_SECONDS)


class EngineTrial:
    """One engine, booted by the first case that needs it, and the answers of its runs."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self._device, self._small = device, small
        self._engine: Engine | None = None
        self._answers: dict[str, dict[str, Answer]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="mambaserve-gpu-")
        large = device.type == "cuda" and torch.cuda.mem_get_info(device)[1] >= LEAST_MEMORY
        self._name = NANO if large else SMALLER

    def start(self) -> Numbers:
        """Boot the engine; say how long that took and what it planned."""
        began = time.perf_counter()
        engine = self._booted()
        seconds = time.perf_counter() - began
        plan = engine.plan
        return {
            "model": self._name,
            "seconds": seconds,
            "strategy": plan.strategy,
            "slabs": plan.slabs,
            "arena_gib": round(plan.arena_bytes / 2**30, 2),
            "weights_gib": round(plan.weights_bytes / 2**30, 2),
            "headline": {"start_seconds": round(seconds, 1)},
        }

    def under(self, strategy: str) -> Numbers:
        """Run the load under a strategy, from an empty cache."""
        engine = self._booted()
        if refusal := engine.core.change_strategy(strategy):
            raise Wrong(f"the engine refuses {strategy}: {refusal.message}")
        return self._measured(strategy, salted=False)

    def unshared(self) -> Numbers:
        """Run the load with nothing to resume."""
        return self._measured("unshared", salted=True)

    def resumed_is_computed(self) -> Numbers:
        """Run the same prompts twice: the second time they are resumed."""
        engine, load = self._booted(), self._load(shorter=True)
        engine.core.flush_cache()
        cold, _ = run(engine, load.add_requests("cold", seed=1))
        hit, _ = run(engine, load.add_requests("hit", seed=1))
        numbers: Numbers = {
            **agreement(hit, cold),
            "resumed_tokens": sum(answer.cached for answer in hit.values()),
        }
        if not numbers["resumed_tokens"]:
            raise Wrong("the second run resumed nothing", numbers)
        return self._agreeing(numbers)

    def strategies_agree(self) -> Numbers:
        """Compare the answers that the strategies gave to the same requests."""
        first, *others = [self._answers[name] for name in STRATEGIES if name in self._answers]
        agreements = [agreement(other, first) for other in others]
        return self._agreeing({name: min(each[name] for each in agreements) for name in agreements[0]})

    def counters(self) -> Numbers:
        """Return what was compiled, and waited for, since the engine was ready."""
        numbers: Numbers = dict(self._booted().device_counters())
        if any(numbers.values()):
            raise Wrong("every step should run without", numbers)
        return {**numbers, "headline": numbers}

    def issued_is_captured(self) -> Numbers:
        """Boot an engine without graphs; compare its answers, and its speed, with those of the first."""
        load = self._load(shorter=True)
        engine = self._booted()
        engine.core.flush_cache()
        captured, with_graphs = run(engine, load.add_requests("captured", seed=2))
        self._close()
        issued, without = run(self._booted(decode_graphs="off"), load.add_requests("issued", seed=2))
        numbers = {**agreement(issued, captured), "captured_seconds": with_graphs, "issued_seconds": without}
        return self._agreeing(numbers)

    def _measured(self, name: str, *, salted: bool) -> Numbers:
        engine = self._booted()
        engine.core.flush_cache()
        before = engine.core.cache.counters.created
        answers, seconds = run(engine, self._load().add_requests(name, salted=salted))
        self._answers[name] = answers
        numbers: Numbers = latencies(answers, seconds)
        numbers["checkpoints"] = engine.core.cache.counters.created - before
        numbers["headline"] = {f"{name}, tokens/s": round(numbers["tokens_per_second"], 1)}
        return numbers

    def _agreeing(self, numbers: Numbers) -> Numbers:
        # A wrong state shows within a token or two; rounding, in bfloat16, by and by.
        if numbers["tokens_before_a_difference"] < (0.2 if self._device.type == "cuda" else 1.0):
            raise Wrong("the answers differ", numbers)
        return numbers

    def _load(self, *, shorter: bool = False) -> Load:
        if self._small:
            return Load(requests=2, prompt=20, output=3, shared=16, vocab_size=128)
        return Load(
            requests=32 if shorter else 256,
            prompt=512,
            output=64 if shorter else 128,
            shared=256,
            vocab_size=100_000,
        )

    def _booted(self, **settings: Any) -> Engine:
        if self._engine is None:
            folder = Path(self._folder.name)
            directory = (
                write_config(folder, NANO, "small")
                if self._small
                else write_config(folder, self._name, "whole")
            )
            engine_settings = EngineSettings(
                model=str(directory),
                device=self._device.type,
                overlap=True,
                **{**(SMALL_SETTINGS if self._small else {"max_model_len": 4096}), **settings},
            )
            self._engine = boot(engine_settings, lambda *_: None, BootOverrides(weights=RandomWeights()))
        return self._engine

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.stream.close()
            self._engine = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
