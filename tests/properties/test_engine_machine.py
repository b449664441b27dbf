"""The engine as a state machine: any order of requests, ends, preemptions, faults and fences.

Failures shrink to a short list of events. Long unshrunk runs are next door.
"""

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine_trial import STRATEGIES, EngineTrial, TrialSetup
from mamba_server.cache.arena import AllocationSite
from mamba_server.cache.eviction import POLICIES, Policy


class EngineMachine(RuleBasedStateMachine):
    """Rules are the events of a trial; its teardown drains the engine and compares every token."""

    trial: EngineTrial | None = None

    @initialize(
        strategy=st.sampled_from(STRATEGIES),
        overlap=st.booleans(),
        page_size=st.sampled_from([1, 4, 16, 64]),
        pages_per_slab=st.sampled_from([0, 1, 2, 5]),
        chunk=st.sampled_from([16, 64, 128]),
        slabs=st.integers(5, 30),
        rows=st.integers(1, 5),
        cap=st.sampled_from([1, 2, 4]),
        intervals=st.sampled_from([1, 2]),
        policy=st.sampled_from(["LRU", "RecomputeCost"]),
        seed=st.integers(0, 10_000),
    )
    def begin(self, *, seed: int, **sizes: Any) -> None:
        setup = TrialSetup(**sizes, step_tokens=sizes["chunk"], audits=0.5)
        self.trial = EngineTrial(setup, random.Random(seed))
        self.refused: AllocationSite | None = None
        self.trial.arena.refuse = lambda site: site is self.refused

    @rule(
        stem=st.integers(0, 2),
        length=st.integers(1, 150),
        tail=st.integers(0, 5),
        outputs=st.sampled_from([1, 2, 9, 40, 0]),
        n=st.sampled_from([1, 1, 3]),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "x"]),
        boundary=st.integers(0, 100),
        ignore_eos=st.booleans(),
        form=st.sampled_from([0, 0, 1, 12]),
    )
    def add(self, *, stem, length, tail, outputs, n, priority, salt, boundary, ignore_eos, form):
        prompt = [1 + (stem * 31 + at * 7) % 90 for at in range(length)] + [1 + tail] * tail
        self.trial.add(
            prompt, outputs, n=n, priority=priority, salt=salt, boundary=min(boundary, len(prompt) - 1),
            ignore_eos=ignore_eos, form=form,
        )  # fmt: skip

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.trial.step()

    @rule()
    def abort(self) -> None:
        self.trial.abort()

    @rule()
    def stop_string(self) -> None:
        self.trial.stop_string()

    @rule()
    def preempt(self) -> None:
        self.trial.preempt()

    @rule()
    def flush(self) -> None:
        self.trial.flush()

    @rule(name=st.sampled_from(STRATEGIES))
    def change_strategy(self, name: str) -> None:
        self.trial.change_strategy(name)

    @rule(policy=st.sampled_from(POLICIES))
    def change_eviction(self, policy: Policy) -> None:
        self.trial.change_eviction(policy)

    @rule(site=st.sampled_from([None, *AllocationSite]))
    def refuse(self, site: AllocationSite | None) -> None:
        self.refused = site

    @rule()
    def fail_next_step(self) -> None:
        self.trial.fail_next_step()

    @rule(member=st.integers(0, 7))
    def spoil_next_step(self, member: int) -> None:
        self.trial.spoil_next_step(member)

    @rule(
        stem=st.integers(0, 2), length=st.integers(1, 150), salt=st.sampled_from(["", "x"]),
        correct=st.sampled_from([True, True, False]),
    )  # fmt: skip
    def receive(self, *, stem: int, length: int, salt: str, correct: bool) -> None:
        self.trial.receive([1 + (stem * 31 + at * 7) % 90 for at in range(length)], salt, correct=correct)

    @rule(stem=st.integers(0, 2), length=st.integers(1, 150), salt=st.sampled_from(["", "x"]))
    def export(self, *, stem: int, length: int, salt: str) -> None:
        self.trial.export([1 + (stem * 31 + at * 7) % 90 for at in range(length)], salt)

    @rule(stem=st.integers(0, 2), length=st.integers(1, 150), salt=st.sampled_from(["", "x"]))
    def quarantine(self, *, stem: int, length: int, salt: str) -> None:
        self.trial.quarantine([1 + (stem * 31 + at * 7) % 90 for at in range(length)], salt)

    @rule(count=st.integers(1, 4))
    def network_events(self, count: int) -> None:
        for _ in range(count):
            self.trial.network_event()

    @precondition(lambda self: self.trial and self.trial.setup.overlap)
    @rule(count=st.integers(1, 2))
    def complete_fences(self, count: int) -> None:
        self.trial.complete_fences(count)

    def teardown(self) -> None:
        if self.trial is not None:
            self.refused = None
            self.trial.close()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
