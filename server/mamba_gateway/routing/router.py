"""`Router`: routes requests by the pool, the prefix index and its own recent decisions, which it records.

Called by the relay once per attempt, which also reports where the request was sent and how many tokens the
engine resumed. A decision does no I/O, does not wait, and takes well below a millisecond. `EndpointWait` is
the wait of a request for which there is no engine: a rollout or a wake from zero takes a moment.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from msgspec.structs import replace

from mamba_edge.errors import ModelNotFound
from mamba_gateway.admission.admission import Permit
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.errors import NO_ANSWER, NoEndpoint, UpstreamLost
from mamba_gateway.hand_over import TransferReport
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import BYTES_PER_TOKEN, PromptPrefix
from mamba_gateway.routing.decision import NoCandidate, RoutingLog, RoutingRecord, choose, no_such_model
from mamba_gateway.routing.scoring import EVEN, Cost, RoutingRequest, RoutingWeights
from mamba_prefix.prefix_index import NOTHING, Depths, PrefixIndex

TRANSFER_SHARE = 0.05
"""Time to receive the pages of a token from another engine, as a share of the time to compute the token."""
SEEN_SECONDS = 600.0
"""Seconds for which an engine is assumed to be able to resume a prompt that it was sent."""
BESIDE_INDEX_SECONDS = 60.0
"""The same while a prefix index follows the engines and would show the prompt."""
MAX_PREFIXES = 50_000
"""Number of prefixes that are remembered; the least recently used go first."""
MAX_ENGINES_OF_PREFIX = 4
"""Number of engines that are remembered for one prefix; the oldest goes first."""


class RecentPrefixes:
    """The prompts that one gateway sent lately, and the engines, by the names of their endpoints.

    An engine that got a prompt will soon be able to resume its prefixes: this knowledge comes ahead of what
    engines publish, and in its place where nothing is published. It is a guess, so it is bounded and expires;
    the engine looks for itself in any case.
    """

    def __init__(self, clock: Callable[[], float], most: int = MAX_PREFIXES) -> None:
        self._clock, self._most = clock, most
        self._engines: OrderedDict[bytes, dict[str, float]] = OrderedDict()
        """Callable[[], float] time at which each prefix, by its digest, was sent to an engine."""

    def note(self, prompt: PromptPrefix, engine: str) -> None:
        """Record that `engine` gets the prompt."""
        now = self._clock()
        for _, digest in prompt.digests:
            engines = self._engines.setdefault(digest, {})
            engines.pop(engine, None)
            engines[engine] = now
            if len(engines) > MAX_ENGINES_OF_PREFIX:
                del engines[next(iter(engines))]
            self._engines.move_to_end(digest)
        while len(self._engines) > self._most:
            self._engines.popitem(last=False)

    def resumable(self, prompt: PromptPrefix, lifetime: float) -> dict[str, int]:
        """Return by engine the tokens of the longest prefix that it got within `lifetime` seconds."""
        since = self._clock() - lifetime
        depths: dict[str, int] = {}
        for depth, digest in reversed(prompt.digests):
            for engine, sent_at in self._engines.get(digest, {}).items():
                if sent_at > since:
                    depths.setdefault(engine, depth)
        return depths

    def __len__(self) -> int:
        return len(self._engines)


class TokenCounts(Protocol):
    """Token counts of one prompt, as an engine reports them."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the engine resumed; None = the engine does not say."""


class Router:
    """The router of one gateway."""

    def __init__(
        self,
        pool: Pool,
        metrics: GatewayMetrics,
        rng: Random,
        *,
        weights: RoutingWeights = EVEN,
        index: PrefixIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._metrics, self._rng, self._weights = pool, metrics, rng, weights
        self._index = index or PrefixIndex(off=True)
        self._recent = RecentPrefixes(clock)
        self.log = RoutingLog()

    def decide(
        self,
        model: str | None,
        prompt: PromptPrefix | None,
        *,
        body_bytes: int = 0,
        tried: tuple[str, ...] = (),
        allowed_addresses: frozenset[str] | None = None,
        request_id: str = "",
    ) -> RoutingRecord | NoCandidate:
        """Return where the request goes, or why nowhere.

        Without `prompt` its length is estimated from `body_bytes`, and load decides.
        """
        begin = time.perf_counter()
        snapshot = self._pool.snapshot()
        published = NOTHING
        if prompt is None:
            request = RoutingRequest(
                model, tried, body_bytes // BYTES_PER_TOKEN, allowed_addresses=allowed_addresses
            )
        else:
            published = self._published(prompt)
            depths = self._depths(prompt, published)
            request = RoutingRequest(
                model, tried, prompt.tokens, depths.resumable, depths.pages, prompt.home,
                self._index.state == "following", allowed_addresses,
            )  # fmt: skip
        decision = choose(snapshot, request, self._rng, self._weights)
        if isinstance(decision, NoCandidate):
            return decision
        record = RoutingRecord(
            request_id, time.time(), snapshot, request, decision, self._index.state,
            exact=prompt is not None and prompt.exact, published=published,
        )  # fmt: skip
        self.log.add(record)
        self._metrics.decided(decision.reason, time.perf_counter() - begin)
        return record

    def decide_prefill(self, record: RoutingRecord, tried: tuple[str, ...]) -> RoutingRecord | NoCandidate:
        """Return which prefill engine computes the prompt of a request; `record` is for a decode engine.

        The costs are those of any choice, over the prefill engines.
        """
        request = replace(
            record.request, stage="prompt", tried=tried,
            other_weights=self._of_other_weights(record.decision.endpoint.name, record.snapshot),
        )  # fmt: skip
        return self._choose(replace(record, request=request, snapshot=self._pool.snapshot()))

    def decide_answer(
        self,
        record: RoutingRecord,
        prefill: RoutingRecord,
        depth: int,
        prompt: PromptPrefix | None,
        tried: tuple[str, ...],
    ) -> RoutingRecord | NoCandidate:
        """Return which decode engine answers the request of `record` from a state at `depth` tokens.

        `prefill`: the choice of the engine that holds the state.
        """
        snapshot = self._pool.snapshot()
        if prompt is not None:  # engines have computed other prompts meanwhile
            published = self._published(prompt)
            depths = self._depths(prompt, published)
            record = replace(record, published=published)
        else:
            depths = NOTHING
        own, readers = depths.resumable, [one.name for one in snapshot if one.transfer is not None]
        request = replace(
            record.request, stage="answer", tried=tried, home=None,
            resumable={**own, **{name: _with_state(own.get(name, 0), depth) for name in readers}},
            seen=_deeper(depths.pages, dict.fromkeys(readers, depth)),
            other_weights=self._of_other_weights(prefill.decision.endpoint.name, snapshot),
        )  # fmt: skip
        return self._choose(
            replace(record, request=request, snapshot=snapshot, prefill=prefill, handed_over=depth)
        )

    def peer_of(self, record: RoutingRecord, least: int) -> tuple[TransferReport, int] | None:
        """Return the engine that can give the chosen one most of the prompt, and the tokens it has cached.

        None = no engine of the same weights has at least `least` tokens more, as far as the index shows.
        """
        published, chosen = record.published.resumable, record.decision.endpoint
        if not published or chosen.transfer is None:
            return None
        if max(published.values()) - record.decision.resumable < least:
            return None
        others = self._of_other_weights(chosen.name, record.snapshot, fingerprints=True)
        peers = [
            (endpoint.transfer, published[endpoint.name])
            for endpoint in record.snapshot
            if endpoint.name in published
            and endpoint.ready
            and endpoint.transfer is not None
            and endpoint.name not in others
        ]
        peer = max(peers, key=lambda one: one[1], default=None)
        return None if peer is None or peer[1] - record.decision.resumable < least else peer

    def _choose(self, record: RoutingRecord) -> RoutingRecord | NoCandidate:
        """Return `record` with the choice for its request and snapshot, or why there is none."""
        begin = time.perf_counter()
        decision = choose(record.snapshot, record.request, self._rng, self._weights)
        if isinstance(decision, NoCandidate):
            return decision
        record = replace(record, decision=decision, at=time.time(), index=self._index.state)
        self.log.add(record)
        self._metrics.decided(decision.reason, time.perf_counter() - begin)
        return record

    def _of_other_weights(
        self, name: str, snapshot: tuple[Endpoint, ...], *, fingerprints: bool = False
    ) -> frozenset[str]:
        """Return the names of the endpoints whose fingerprint differs from that of `name` in the index.

        Args:
            name: name of an endpoint.
            snapshot: all endpoints.
            fingerprints: whether endpoints without a fingerprint are included.
        """
        views = self._index.engines()
        own = views[name].fingerprint if name in views else None
        return frozenset(
            endpoint.name
            for endpoint in snapshot
            if (views[endpoint.name].fingerprint != own if own and endpoint.name in views else fingerprints)
        )

    def sent(self, record: RoutingRecord, prompt: PromptPrefix | None, cost: Cost | None = None) -> int:
        """Record that the request goes to the chosen engine, or to that of `cost`; return its ticket."""
        request, chosen = record.request, cost or record.decision
        endpoint, resumable = chosen.endpoint, chosen.resumable
        if prompt is not None:
            self._recent.note(prompt, endpoint.name)
        if request.stage == "answer":
            self._pool.send_state(endpoint.url)
        tokens = float(request.prompt_tokens - resumable)
        if endpoint.speed is not None:
            tokens = endpoint.speed.work(resumable, request.prompt_tokens)
        return self._pool.begin(endpoint.url, tokens)

    def answered(
        self,
        record: RoutingRecord,
        prompt: PromptPrefix | None,
        usage: TokenCounts | None,
        cost: Cost | None = None,
        *,
        fetched: int = 0,
    ) -> None:
        """Correct the index by the number of resumed tokens in the answer, which may be less than it said.

        `fetched`: tokens whose state the engine got from another one.
        """
        if usage is None or usage.cached_tokens is None or prompt is None or record.index == "off":
            return
        if not prompt.exact or usage.prompt_tokens != prompt.tokens:
            return  # more prompts than the one that was read, or not as the engine reads it
        cost, resumed = cost or record.decision.cost, usage.cached_tokens
        engine = cost.endpoint.name
        promised = record.published.resumable.get(engine, 0)
        if resumed > max(promised, cost.resumable, fetched):
            self._metrics.promise("more").inc()
        elif resumed < promised:
            # The recent prefixes stay: by now the engine has computed them.
            gone = self._index.withdraw(engine, prompt.token_ids, prompt.salt, resumed, record.published)
            self._metrics.promise("false" if gone else "outdated").inc()
        elif promised:
            self._metrics.promise("kept").inc()

    def _published(self, prompt: PromptPrefix) -> Depths:
        if not prompt.exact:
            return NOTHING
        depths = self._index.depths(prompt.token_ids, prompt.salt)
        return Depths({}, depths.pages, depths.revision) if prompt.computed_whole else depths

    def _depths(self, prompt: PromptPrefix, published: Depths) -> Depths:
        """Return what the engines have published of the prompt, with what they were sent since."""
        following = self._index.state == "following"
        sent = self._recent.resumable(prompt, BESIDE_INDEX_SECONDS if following else SEEN_SECONDS)
        resumable = {} if prompt.computed_whole else _deeper(published.resumable, sent)
        return Depths(resumable, _deeper(published.pages, sent))


def _with_state(own: int, depth: int) -> int:
    """Return the tokens that an engine with `own` tokens need not compute once it has received `depth`.

    The tokens that it has to receive count as a few that it computes.
    """
    return own if own >= depth else int(depth - TRANSFER_SHARE * (depth - own))


def _deeper(published: Mapping[str, int], sent: Mapping[str, int]) -> Mapping[str, int]:
    out = dict(published)
    for engine, depth in sent.items():
        out[engine] = max(depth, out.get(engine, 0))
    return out


Decide = Callable[[], RoutingRecord | NoCandidate]


class EndpointWait:
    """The wait for engines of one gateway. `wake` is called while a request waits."""

    def __init__(self, pool: Pool, metrics: GatewayMetrics, wake: Callable[[], None]) -> None:
        self._pool, self._metrics, self._wake = pool, metrics, wake

    async def until_decided(
        self, decide: Decide, model: str | None, deadline: float, permit: Permit | None = None
    ) -> RoutingRecord:
        """Return the first decision for an engine, by `deadline` in the loop's time.

        Raises ModelNotFound, UpstreamLost when every engine was tried, NoEndpoint, and TooManyRequests when
        engines came and none had a place in time.
        """
        outcome = decide()
        return self.decided(outcome) or await self.wait(outcome, decide, model, deadline, permit)

    def decided(self, outcome: RoutingRecord | NoCandidate) -> RoutingRecord | None:
        """Return the decision if it is for an engine; None = the request has to `wait`."""
        if not isinstance(outcome, RoutingRecord):
            return None
        if outcome.decision.endpoint.draining:
            self._wake()  # no other engine is left, and perhaps no other request asks for one
        return outcome

    async def wait(
        self,
        outcome: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None = None,
    ) -> RoutingRecord:
        """Wait as `until_decided` does, where the first `outcome` was no engine.

        The request has no permit meanwhile: requests that waited together go to a new engine as fast as it
        has places, and the keys take turns.
        """
        while not isinstance(outcome, RoutingRecord):
            outcome = await self._engine(outcome, decide, model, deadline, permit)
            if permit is not None:
                await permit.resume(max(0.0, deadline - asyncio.get_running_loop().time()))
                outcome = decide()
        return outcome

    async def _engine(
        self,
        outcome: RoutingRecord | NoCandidate,
        decide: Decide,
        model: str | None,
        deadline: float,
        permit: Permit | None,
    ) -> RoutingRecord | NoCandidate:
        with self._metrics.held.track_inprogress():
            while not isinstance(outcome, RoutingRecord):
                if outcome is NoCandidate.MODEL_UNKNOWN or not self._pool.may_serve(model):
                    raise ModelNotFound(no_such_model(model, self._pool.model_names()), param="model")
                self._wake()  # only here, where an engine would help: an unknown model starts none
                if outcome is NoCandidate.ALL_TRIED:
                    raise UpstreamLost(NO_ANSWER)
                if outcome is NoCandidate.NONE_ASKED_FOR:
                    raise self._no_endpoint(outcome)
                changed = self._pool.changed()
                try:
                    async with asyncio.timeout_at(deadline):
                        await (changed if permit is None else permit.while_held(changed))
                except TimeoutError:
                    raise self._no_endpoint(outcome) from None
                outcome = decide()
        return outcome

    def _no_endpoint(self, outcome: NoCandidate) -> NoEndpoint:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(self._pool.reasons().items())[:3])
        return NoEndpoint(f"{outcome.value}; retry later" + (f" ({listed})" if listed else ""), retry_after=2)
