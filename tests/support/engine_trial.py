"""One engine with the depth-coded model under arbitrary events, checked after each step that follows one.

The state machine and the long random runs drive it; `close` proves that every token is the one served alone,
that nothing leaked and that nothing hangs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from cache_bench import flush_and_sweep
from depth_coded import VOCABULARY, DepthCodedRunner, oracle
from guarded_arena import GuardedArena
from mamba_planner.strategy import reservation
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.page_chain import PageChain
from mamba_prefix.page_rungs import rungs
from mamba_prefix.prefix_index import entries_of, hashes_of
from mamba_server.cache import ledger
from mamba_server.cache.eviction import POLICIES, Eviction, Policy
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.audits.distance import Bounds
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import InlineStream
from mamba_server.engine.stepping.speculation import DraftSwitch, Speculation
from mamba_server.grammar_matcher import mask_words
from mamba_server.wire import AbortRequest, AddRequest, PrefixChanges, SamplingParams, StopSequence
from prefix_of import prefix_of
from scripted_drafts import ScriptedDrafts
from scripted_grammar import ScriptedGrammar
from simulated_network import SimulatedNetwork
from simulated_stream import SimulatedStream

STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")
LONGEST = 1024
CALM_STEPS_A_CHECK = 4


@dataclass(frozen=True)
class TrialSetup:
    """One engine. `refusals`: chance that an allocation is refused; `faults`: that a step fails."""

    strategy: str = "ExtraBuffer"
    overlap: bool = True
    page_size: int = 4
    pages_per_slab: int = 2
    chunk: int = 16
    slabs: int = 16
    rows: int = 4
    cap: int = 4
    intervals: int = 1
    """Track interval in pages."""
    step_tokens: int = 64
    policy: str = "LRU"
    refusals: float = 0.0
    faults: float = 0.0
    spoils: float = 0.0
    """Chance that a member of a step comes to NaN."""
    audits: float = 0.0
    """Share of the resumed answers that are audited."""
    pins: float = 0.0
    """Chance that a request pins a prefix of its prompt."""
    drafts: int = 0
    """Most drafts behind a token."""

    @staticmethod
    def random(rng: random.Random, strategy: str, *, overlap: bool) -> TrialSetup:
        page_size, chunk = rng.choice([1, 4, 16, 64]), rng.choice([16, 64, 128])
        per_slab = rng.choice([0, 1, 2, 5])
        return TrialSetup(
            strategy, overlap, page_size, per_slab, chunk,
            slabs=rng.randint(6, 24) + (0 if page_size > 4 else rng.choice([0, 40])),
            rows=rng.randint(1, 6), cap=rng.choice([1, 2, 4]), intervals=rng.choice([1, 2, 4]),
            step_tokens=rng.choice([chunk, 2 * chunk, 1000]), policy=rng.choice(["LRU", "RecomputeCost"]),
            refusals=rng.choice([0.0, 0.1, 0.3]), faults=rng.choice([0.0, 0.0, 0.05]),
            spoils=rng.choice([0.0, 0.0, 0.03]), pins=0.3, audits=0.5,
        )  # fmt: skip


class EngineTrial:
    """Events are its methods; each ends with `check`."""

    def __init__(self, setup: TrialSetup, rng: random.Random) -> None:
        self.setup, self.rng = setup, rng
        self.calm = False
        self.arena = GuardedArena(setup.slabs, setup.pages_per_slab, self._refuse)
        self.cache = RadixStateCache(
            self.arena,
            RadixTree(setup.page_size, Eviction(setup.policy)),
            PersistentBatch(setup.rows, -(-LONGEST // setup.page_size), lanes=min(setup.rows, 3)),
            reservation(setup.strategy, overlap=setup.overlap),
            track_interval=setup.page_size * setup.intervals,
            cap=setup.cap,
        )
        self.lanes = self.cache.batch.free_lanes
        limits = SchedulerLimits(setup.step_tokens, setup.chunk, setup.rows, LONGEST)
        self.runner = DepthCodedRunner(self.cache)
        self.arena.in_flight = self.runner.named
        self.network = SimulatedNetwork(self.cache, self.runner, random.Random(setup.slabs))
        self.simulated = SimulatedStream(lambda queued: rng.randint(0, queued))
        stream = self.simulated if setup.overlap else InlineStream()
        self.pins = setup.pins
        # Own random numbers, so that runs without drafts are what they were.
        self.drafts = ScriptedDrafts(setup.drafts, true_continuation, random.Random(setup.slabs))
        self.switch = DraftSwitch(self.drafts)
        speculation = Speculation(self.switch, self.runner.absorb) if setup.drafts else None
        self.core = EngineCore(
            Scheduler(
                self.cache, limits, proposals=self.switch if setup.drafts else None,
                mask_words=mask_words(VOCABULARY),
            ),
            self.cache, stream, self.runner,
            overlap=setup.overlap, eos_token_ids=frozenset({0}), pin_share=0.4, speculation=speculation,
        )  # fmt: skip
        self.audits = ResumedAnswers(
            self.cache, stream, self.runner, share=setup.audits, bounds=Bounds(0.0, 0.0), chunk=setup.chunk,
            random=random.Random(setup.slabs).random, drafts=self.switch if setup.drafts else None,
        )  # fmt: skip
        self.core.audits = self.audits
        self.submitted: dict[tuple[str, int], tuple[list[int], SamplingParams, int]] = {}
        self.got: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self.count = 0
        self.change_log = ChangeLog("trial", wall=lambda: 0.0)
        """Changes reported to the prefix index."""
        self._checks = 0

    def _refuse(self, _: object) -> bool:
        return not self.calm and self.rng.random() < self.setup.refusals

    # --- events --------------------------------------------------------------------------------------

    def add(
        self, prompt: list[int], outputs: int, *, n: int = 1, priority: int = 0, salt: str = "",
        boundary: int = 0, ignore_eos: bool = True, form: int = 0,
    ) -> bool:  # fmt: skip
        """Add a request. `form`: tokens of an answer after which its grammar is complete; 0 = no grammar."""
        name = f"r{self.count}"
        self.count += 1
        params = SamplingParams(max_tokens=outputs, ignore_eos=ignore_eos)
        # Own random numbers, so that runs are the same with and without pins otherwise. A pin ends with the
        # next step, or with a flush, the budget or a sequence that needs the memory.
        rng = random.Random(self.count)
        pins = ((rng.randint(1, len(prompt)), rng.choice([0.0, 1e9])),) if rng.random() < self.pins else ()
        rejected = self.core.add(
            AddRequest(
                name,
                prompt,
                params,
                n=n,
                priority=priority,
                cache_salt=salt,
                turn_boundary=boundary,
                pins=pins,
            ),
            ScriptedGrammar(form) if form else None,  # type: ignore[arg-type]
        )
        if rejected is None:
            self.submitted.update({(name, index): (prompt, params, form) for index in range(n)})
        self.check()
        return rejected is None

    def abort(self) -> None:
        if self.core.sequences:
            name = self.rng.choice(list(self.core.sequences))
            self.core.abort(AbortRequest(name))
            for key in self.submitted:
                if key[0] == name:
                    self.ended.setdefault(key, "abort")
        self.check()

    def stop_string(self) -> None:
        going = [key for key in self.got if key not in self.ended and self.got[key]]
        if going:
            key = self.rng.choice(going)
            self.core.stop(StopSequence(*key, self.rng.randint(0, len(self.got[key]))))
            self.ended[key] = "stop string"
        self.check()

    def preempt(self) -> None:
        running = [*self.core.scheduler.prefilling, *self.core.scheduler.decoding]
        if running:
            self.core.scheduler.preempt(self.rng.choice(running))
        self.check()

    def flush(self) -> None:
        self.core.flush_cache()
        self._sweep_some()
        self.check()

    def _sweep_some(self) -> None:
        """Sweep a part, as the engine process does between two steps."""
        while self.cache.reclaimer.sweeping and self.rng.random() < 0.5:
            self.cache.reclaimer.sweep()

    def change_strategy(self, name: str) -> None:
        self.core.change_strategy(name)
        self.check()

    def change_eviction(self, policy: Policy) -> None:
        self.core.cache.change_eviction(policy)
        self.check()

    def quarantine(self, tokens: list[int], salt: str) -> None:
        """Withdraw what continues the whole pages of `tokens`, as if they had been found wrong."""
        page_size = self.setup.page_size
        prefix = np.array(tokens[: len(tokens) // page_size * page_size], np.int32)
        if len(prefix):
            before = self.cache.counters.quarantined
            withdrawn = self.cache.quarantine(prefix, salt)
            assert self.cache.counters.quarantined == before + len(withdrawn)
            for each in (prefix, *(each.token_ids for each in withdrawn)):
                longer = np.append(each, np.int32(1))
                match = self.cache.match(longer, salt, self.core.step_number + 9)
                assert match.resumable < len(prefix), "a quarantined checkpoint is resumed"
        self.check()

    def complete_fences(self, count: int) -> None:
        """Let launched steps finish on the device before anyone waits for them."""
        self.simulated.complete(count)
        self.check()

    def receive(self, tokens: list[int], salt: str, *, correct: bool = True) -> None:
        """Begin to receive the state of the whole pages of `tokens`."""
        page_size = self.setup.page_size
        whole = np.array(tokens[: len(tokens) // page_size * page_size], np.int32)
        if len(whole):
            self.network.receive(whole, salt, correct=correct)
        self.check()

    def export(self, tokens: list[int], salt: str) -> None:
        """Begin to export the deepest checkpoint of `tokens`."""
        self.network.export(np.array(tokens, np.int32), salt, self.core.step_number + 1)
        self.check()

    def network_event(self) -> None:
        """Let something happen to a writer or a reader outside the forward stream."""
        self.network.act(self.core.step_number + 1)
        self.check()

    def fail_next_step(self) -> None:
        how = self.rng.choice(["before", "half", "after"])
        self.runner.fail_steps[self.core.step_number + 1] = how

    def spoil_next_step(self, member: int) -> None:
        self.runner.spoil_steps[self.core.step_number + 1] = member

    def step(self) -> None:
        if not self.calm and self.rng.random() < self.setup.faults:
            self.fail_next_step()
        if not self.calm and self.rng.random() < self.setup.spoils:
            self.spoil_next_step(self.rng.randrange(8))
        self._sweep_some()
        for delta in self.core.step():
            key = (delta.request_id, delta.index)
            assert key not in self.ended, "a token after the end"
            self.got.setdefault(key, []).extend(delta.token_ids)
            if delta.finish_reason:
                self.ended[key] = delta.finish_reason
        assert not self.runner.violations, self.runner.violations[0]
        # While nothing new happens to it, what is kept changes little from step to step.
        if not self.calm or self.core.step_number % CALM_STEPS_A_CHECK == 0:
            self.check()

    # --- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the ledger, the truth of every checkpoint, and the promises of the scheduler."""
        ledger.check(self.cache)
        self.runner.check_tree()
        for reader in self.network.readers:
            self.network.read(reader)
        core, strategy = self.core, self.cache.strategy
        assert len(core._launched) <= int(self.setup.overlap), "O6"
        for sequence in core.scheduler.waiting:
            assert sequence.allocation is None, "W9"
            assert sequence.row == -1, "W9"
        for sequence in [*core.scheduler.prefilling, *core.scheduler.decoding]:
            allocation = sequence.allocation
            assert allocation is not None
            self.runner.check_ready(allocation, sequence.known_token_ids())
            state = self.runner.states[allocation.live]
            if allocation.last_step and not sequence.in_flight and state[0] >= 0:
                assert state[0] == allocation.depth - allocation.waiting, "live slot and what waits"
            assert not allocation.waiting or allocation.lane >= 0, "waiting inputs without a lane"
            writing = sum(each.decode for each in allocation.pending)
            tracking = len(allocation.spare) + len(allocation.ready) + writing
            assert tracking >= strategy.tracking_slots, "the reservation of a running sequence"
            if strategy.borrows and not writing:
                assert tracking == 1, "L2"
        for node in self.cache.tree.walk():
            assert node.depth % self.setup.page_size == 0, "P5"
            if node.slot and not node.state_lock:
                assert node.produced_step <= self.arena.completed, "O7"
        self._checks += 1
        if self._checks % 8 == 0:
            self._check_change_log()

    def hear(self) -> PrefixChanges | None:
        """Return the pending changes for the prefix index."""
        changes = self.core.tree_changes.take()
        if changes is not None:
            before = set(self.change_log.depths) if not changes.cleared else set()
            gained = set(entries_of(changes.gained)["hash"].tolist())
            lost = set(hashes_of(changes.lost).tolist())
            assert not gained & before, "told twice"
            assert lost <= before, "a loss of what was never told"
            pages = set(self.change_log.pages) if not changes.cleared else set()
            pages_gained, pages_lost = (
                set(hashes_of(each).tolist()) for each in (changes.pages_gained, changes.pages_lost)
            )
            assert not pages_gained & pages, "told twice"
            assert pages_lost <= pages, "a loss of what was never told"
            self.change_log.take(
                changes.epoch, cleared=changes.cleared, gained=changes.gained, lost=changes.lost,
                pages_gained=changes.pages_gained, pages_lost=changes.pages_lost,
            )  # fmt: skip
        return changes

    def _check_change_log(self) -> None:
        """Check that a follower of all changes knows the checkpoints and the pages of the tree.

        Both are compared by the hashes of their texts.
        """
        self.hear()
        tree = self.cache.tree
        chain = PageChain(tree.page_size, tree.fingerprint)
        depths: dict[int, int] = {}
        reached = set[int]()
        sums = {id(root): chain.start(root.salt) for root in tree.roots.values()}
        hashes, node = None, None
        for node in tree.walk():
            parent = node.parent
            assert parent is not None
            above = parent.depth // tree.page_size
            hashes = chain.hashes_after(sums[id(parent)], above, node.token_ids)
            sums[id(node)] = chain.extend(sums[id(parent)], above, node.token_ids)
            if node.epoch == tree.epoch:
                if node.slot:
                    depths[int(hashes[-1])] = node.depth
                reached.update(hashes[rungs(above, above + len(hashes)) - above - 1].tolist())
        assert self.change_log.depths == depths
        assert self.change_log.pages == reached
        if node is not None and hashes is not None:
            assert hashes[-1] == chain.hashes(prefix_of(node), node.salt)[-1], (
                "another hash of the whole text"
            )

    def close(self) -> int:
        """Let it run dry, check every answer and that nothing leaked. The number of engine steps."""
        self.calm = True
        self.network.close()
        for _ in range(5000):
            if self.core.idle and not self.audits.due:
                break
            self.step()
        assert self.core.idle, "the engine hangs"
        assert not self.audits.due, "an audit never ends"
        assert not self.audits.log.diverged, "a false alarm"
        assert not self.cache.allocations
        assert not self.cache._prefilling, "a prefill that never ends is remembered"
        assert not self.core.sequences
        assert self.cache.batch.free == self.cache.batch.rows, "a row leaked"
        assert self.cache.batch.free_lanes == self.lanes, "a lane leaked"
        self._check_answers()
        flush_and_sweep(self.cache)
        ledger.check(self.cache)
        account = ledger.account(self.cache)
        assert account.slots_free == account.slots_total, "memory leaked"
        assert not self.cache.tree.roots
        return self.core.step_number

    def _check_answers(self) -> None:
        for key, (prompt, params, form) in self.submitted.items():
            tokens = self.got.get(key, [])
            stop = frozenset() if params.ignore_eos else frozenset({0})
            alone = oracle(prompt, params.max_tokens, stop)[: form or None]
            assert tokens == alone[: len(tokens)], key
            reason = self.ended.get(key)
            assert reason, f"{key} was lost"
            if reason in {"stop", "length"}:
                assert tokens == alone, key


def true_continuation(sequence: Sequence, count: int) -> list[int]:
    """Return the tokens that the model samples behind the known ones."""
    return oracle(sequence.known_token_ids().tolist(), count)


def drive(seed: int, strategy: str, *, overlap: bool, events: int = 150, drafts: int = 0) -> EngineTrial:
    """Run one random engine under random load and close it; everything follows from the arguments."""
    rng = random.Random(f"{seed} {strategy} {overlap}")
    setup = replace(TrialSetup.random(rng, strategy, overlap=overlap), drafts=drafts)
    trial = EngineTrial(setup, rng)
    longest = rng.choice([20, 90, 300])
    stems = [np.array([rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, longest))]) for _ in "abc"]
    for _ in range(events):
        _act(trial, rng, stems)
        trial.step()
    trial.close()
    return trial


def _act(trial: EngineTrial, rng: random.Random, stems: list[np.ndarray]) -> None:
    kind = rng.random()
    if kind < 0.35 and len(trial.core.sequences) < 12:
        stem = rng.choice(stems).tolist()
        tail = [rng.randrange(1, VOCABULARY) for _ in range(rng.choice([0, 1, 3, 20]))]
        prompt = stem[: rng.randint(1, len(stem))] + tail
        trial.add(
            prompt, rng.choice([0, 1, 2, 9, 40, 90]), n=rng.choice([1, 1, 1, 3]),
            priority=rng.choice([0, 0, 1]), salt=rng.choice(["", "", "x"]),
            boundary=rng.choice([0, len(prompt) // 2]), ignore_eos=rng.random() < 0.5,
            form=rng.choice([0, 0, 0, 3, 20]),
        )  # fmt: skip
    elif kind < 0.40:
        trial.abort()
    elif kind < 0.44:
        trial.stop_string()
    elif kind < 0.48:
        trial.preempt()
    elif kind < 0.49:
        trial.flush()
    elif kind < 0.52:
        if rng.random() < 0.5:
            trial.change_strategy(rng.choice(STRATEGIES))
        else:
            trial.change_eviction(rng.choice(POLICIES))
    elif kind < 0.56:
        trial.complete_fences(rng.randint(1, 2))
    elif kind < 0.57:
        stem = rng.choice(stems).tolist()
        trial.quarantine(stem[: rng.randint(1, len(stem))], rng.choice(["", "", "x"]))
    elif kind < 0.80:
        _act_outside(trial, rng, stems)


def _act_outside(trial: EngineTrial, rng: random.Random, stems: list[np.ndarray]) -> None:
    """Let something happen outside the forward stream."""
    kind = rng.random()
    stem = rng.choice(stems).tolist()
    tokens, salt = stem[: rng.randint(1, len(stem))], rng.choice(["", "", "x"])
    if kind < 0.2 and len(trial.network.writers) < 3:
        trial.receive(tokens, salt, correct=rng.random() < 0.9)
    elif kind < 0.35:
        trial.export(tokens, salt)
    else:
        trial.network_event()
