"""`Router`: chooses engines by the pool, the prefix index and its own recent decisions.

The relay calls it once per attempt, and reports where the request was sent and how many tokens the engine
took from its cache. A decision does no I/O, does not wait, and takes well below a millisecond. `EndpointWait`
is the wait of a request while there is no engine, during a roll-out or a start from zero engines.
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
from mamba_gateway.conversation import is_chosen
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
"""Time to receive the pages of one token from another engine, as a share of the time to compute the token."""
SEEN_SECONDS = 600.0
"""Seconds for which an engine is assumed to have a prompt cached that it was sent."""
BESIDE_INDEX_SECONDS = 60.0
"""Seconds for that assumption while the prefix index is up to date, so that it would show the prompt."""
MAX_PREFIXES = 50_000
"""Maximum number of prefixes that are remembered; the least recently used is dropped first."""
MAX_ENGINES_OF_PREFIX = 4
"""Maximum number of engines that are remembered for one prefix; the oldest is dropped first."""


class RecentPrefixes:
    """Prompts that this gateway has sent recently, and the engines that they were sent to.

    An engine that was sent a prompt will soon have its prefixes cached. The gateway knows that before the
    engine publishes it, and also if engines publish nothing. It is a guess, so it is limited in size and
    time. A wrong guess costs time only: the engine computes what it does not have. It remembers at most
    `most` prefixes.
    """

    def __init__(self, clock: Callable[[], float], most: int = MAX_PREFIXES) -> None:
        self._clock, self._most = clock, most
        self._engines: OrderedDict[int, dict[str, float]] = OrderedDict()
        """Time of the clock, in seconds, at which each prefix (by its digest) was sent to each engine (by its
        name)."""

    def note(self, prompt: PromptPrefix, engine: str) -> None:
        """Record that the prompt is sent to `engine`, which will have its prefixes cached soon."""
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
        """Return, by engine, the tokens of the longest prefix that it was sent within `lifetime` seconds."""
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
        """Number of prompt tokens that the engine took from its cache; None = the engine reports none."""


class Router:
    """Chooses the engine of each request by the pool, the prefix index and the prompts sent recently."""

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
        conversation: int | None = None,
    ) -> RoutingRecord | NoCandidate:
        """Return the decision for a request, or the reason why no engine can take it.

        Args:
            model: name of the model at its engines; None = any.
            prompt: digests of the prompt; None = its length is estimated from `body_bytes`, and the load
                decides.
            body_bytes: size of the request's body.
            tried: URLs of engines at which this request failed.
            allowed_addresses: addresses that may be chosen; None = all.
            request_id: identifier of the request in the record.
            conversation: hash by which a canary chooses the revision; None = it chooses at random.
        """
        begin = time.perf_counter()
        snapshot = self._pool.snapshot()
        published = NOTHING
        share = self._pool.candidate_share
        candidate = None if share is None else is_chosen(conversation, share, self._rng)
        if prompt is None:
            request = RoutingRequest(
                model, tried, body_bytes // BYTES_PER_TOKEN,
                allowed_addresses=allowed_addresses, candidate=candidate,
            )  # fmt: skip
        else:
            published = self._published(prompt)
            depths = self._depths(prompt, published)
            request = RoutingRequest(
                model, tried, prompt.tokens, depths.resumable, depths.pages, prompt.home,
                self._index.state == "following", allowed_addresses, candidate=candidate,
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
        """Return the choice of a prefill engine for a request; `record` is its choice of a decode engine.

        The costs are computed as for any choice, but for prefill engines only.
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
        """Return the choice of a decode engine that continues from a state of `depth` tokens.

        `record` is the earlier choice for this request, and `prefill` the choice of the engine that has the
        state. `tried` are the URLs of decode engines at which the request failed.
        """
        snapshot = self._pool.snapshot()
        if prompt is not None:  # the load of the engines has changed while the prompt was computed
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
        """Return the engine that has most of the prompt cached, with the number of those tokens.

        The result is None if the chosen engine of `record` cannot fetch states, or if no ready engine with
        the same weights has at least `least` tokens more than it, according to the prefix index.
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
        """Return `record` with a choice for its request and snapshot, or the reason why there is none."""
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
        """Return the names of the engines whose fingerprint in the index differs from that of `name`.

        Args:
            name: name of an engine.
            snapshot: all engines.
            fingerprints: whether engines without a fingerprint are included.
        """
        views = self._index.engines()
        own = views[name].fingerprint if name in views else None
        return frozenset(
            endpoint.name
            for endpoint in snapshot
            if (views[endpoint.name].fingerprint != own if own and endpoint.name in views else fingerprints)
        )

    def sent(self, record: RoutingRecord, prompt: PromptPrefix | None, cost: Cost | None = None) -> int:
        """Record that the request is sent to the chosen engine, and return its ticket.

        With `cost`, the request is sent to the engine of `cost` instead.
        """
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
        """Correct the prefix index if the engine has taken fewer tokens from its cache than the index said.

        Args:
            record: the decision by which the request was sent.
            prompt: digests of the prompt; None = unknown, and nothing is corrected.
            usage: numbers of tokens that the engine reported; None = it reported none.
            cost: cost at the engine that got the request; None = the engine that was chosen.
            fetched: number of tokens whose state the engine has received from another one.
        """
        if usage is None or usage.cached_tokens is None or prompt is None or record.index == "off":
            return
        if not prompt.exact or usage.prompt_tokens != len(prompt.token_ids):
            return  # it has several prompts, was read in part, or the engine reads it differently
        cost, resumed = cost or record.decision.cost, usage.cached_tokens
        engine = cost.endpoint.name
        promised = record.published.resumable.get(engine, 0)
        if resumed > max(promised, cost.resumable, fetched):
            self._metrics.promise("more").inc()
        elif resumed < promised:
            # The recent prefixes are kept: the engine has computed them by now.
            gone = self._index.withdraw(engine, prompt.token_ids, prompt.salt, resumed, record.published)
            self._metrics.promise("false" if gone else "outdated").inc()
        elif promised:
            self._metrics.promise("kept").inc()

    def _published(self, prompt: PromptPrefix) -> Depths:
        if not prompt.exact:
            return NOTHING
        depths = self._index.depths(prompt.token_ids, prompt.salt, prompt.terms)
        return Depths({}, depths.pages, depths.revision) if prompt.computed_whole else depths

    def _depths(self, prompt: PromptPrefix, published: Depths) -> Depths:
        """Return the tokens that each engine has cached, by the index and by the recent decisions."""
        following = self._index.state == "following"
        sent = self._recent.resumable(prompt, BESIDE_INDEX_SECONDS if following else SEEN_SECONDS)
        resumable = {} if prompt.computed_whole else _deeper(published.resumable, sent)
        return Depths(resumable, _deeper(published.pages, sent))


def _with_state(own: int, depth: int) -> int:
    """Return the tokens that an engine need not compute after it has received a state of `depth` tokens.

    `own` is the number that it has cached. Receiving the others takes time, which counts as computing a few
    tokens.
    """
    return own if own >= depth else int(depth - TRANSFER_SHARE * (depth - own))


def _deeper(published: Mapping[str, int], sent: Mapping[str, int]) -> Mapping[str, int]:
    out = dict(published)
    for engine, depth in sent.items():
        out[engine] = max(depth, out.get(engine, 0))
    return out


Decide = Callable[[], RoutingRecord | NoCandidate]


class EndpointWait:
    """Lets requests wait until an engine can take them.

    `wake` is called while a request waits, to start an engine.
    """

    def __init__(self, pool: Pool, metrics: GatewayMetrics, wake: Callable[[], None]) -> None:
        self._pool, self._metrics, self._wake = pool, metrics, wake

    async def until_decided(
        self, decide: Decide, model: str | None, deadline: float, permit: Permit | None = None
    ) -> RoutingRecord:
        """Return the first decision for an engine, made before `deadline` (time of the event loop).

        Raises ModelNotFound; UpstreamLost if every engine was tried; NoEndpoint if no engine appeared; and
        TooManyRequests if engines appeared, but none had room in time.
        """
        outcome = decide()
        return self.decided(outcome) or await self.wait(outcome, decide, model, deadline, permit)

    def decided(self, outcome: RoutingRecord | NoCandidate) -> RoutingRecord | None:
        """Return the decision if it is for an engine; None = the request must `wait`."""
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
        """Wait as `until_decided` does, after the first decision `outcome` has found no engine.

        The request returns its permit meanwhile. Requests that have waited together are then sent to a new
        engine as fast as it has room, and fairly among API keys. `deadline` is a time of the event loop in
        seconds.
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
                self._wake()  # not before: an unknown model must start no engine
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
