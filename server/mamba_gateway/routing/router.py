"""`Router`: routes a request by the pool, the prefix index and its own recent decisions, and records
decisions.

Called by the relay once per attempt, which also reports where the request was sent and how many tokens the
engine resumed. No I/O and no waiting: a decision takes well below a millisecond.
"""

import time
from collections.abc import Mapping
from random import Random

from mamba_gateway.admission.usage_meter import Usage
from mamba_gateway.clock import Clock
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import BYTES_PER_TOKEN, PromptPrefix
from mamba_gateway.routing.decision import NoCandidate, choose
from mamba_gateway.routing.recent_prefixes import RecentPrefixes
from mamba_gateway.routing.routing_record import RoutingLog, RoutingRecord
from mamba_gateway.routing.scoring import EVEN, Cost, RoutingRequest, RoutingWeights
from mamba_prefix.prefix_index import NOTHING, Depths, PrefixIndex

SEEN_SECONDS = 600.0
"""Seconds for which an engine is assumed to be able to resume a prompt that it was sent."""
BESIDE_INDEX_SECONDS = 60.0
"""The same while a prefix index follows the engines and would show the prompt."""


class Router:
    """Of one gateway."""

    def __init__(
        self,
        pool: Pool,
        metrics: GatewayMetrics,
        rng: Random,
        *,
        weights: RoutingWeights = EVEN,
        index: PrefixIndex | None = None,
        clock: Clock = time.monotonic,
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
        """Where the request goes, or why nowhere. Without `prompt` its length is guessed and load decides."""
        begin = time.perf_counter()
        snapshot = self._pool.snapshot()
        published = NOTHING
        if prompt is None:
            request = RoutingRequest(
                model, tried, body_bytes // BYTES_PER_TOKEN, allowed_addresses=allowed_addresses
            )
        else:
            published = self._published(prompt)
            known = self._known(prompt, published)
            request = RoutingRequest(
                model, tried, prompt.tokens, known.resumable, known.pages, prompt.home,
                self._index.state == "following", allowed_addresses,
            )  # fmt: skip
        found = choose(snapshot, request, self._rng, self._weights)
        if isinstance(found, NoCandidate):
            return found
        record = RoutingRecord(
            request_id, time.time(), snapshot, request, found, self._index.state,
            exact=prompt is not None and prompt.exact, published=published,
        )  # fmt: skip
        self.log.add(record)
        self._metrics.decided(found.reason, time.perf_counter() - begin)
        return record

    def sent(self, record: RoutingRecord, prompt: PromptPrefix | None, cost: Cost | None = None) -> int:
        """The request goes to the chosen engine, or to the one of `cost`; its ticket there."""
        request, chosen = record.request, cost or record.decision
        endpoint, known = chosen.endpoint, chosen.resumable
        if prompt is not None:
            self._recent.note(prompt, endpoint.name)
        tokens = float(request.prompt_tokens - known)
        if endpoint.speed is not None:
            tokens = endpoint.speed.work(known, request.prompt_tokens)
        return self._pool.begin(endpoint.url, tokens)

    def answered(
        self,
        record: RoutingRecord,
        prompt: PromptPrefix | None,
        usage: Usage | None,
        cost: Cost | None = None,
    ) -> None:
        """What the answer says that was resumed, which may be less than the index said of the engine."""
        if usage is None or usage.cached_tokens is None or prompt is None or record.index == "off":
            return
        if not prompt.exact or usage.prompt_tokens != prompt.tokens:
            return  # more prompts than the one that is known, or not as the engine reads it
        cost, resumed = cost or record.decision.cost, usage.cached_tokens
        engine = cost.endpoint.name
        promised = record.published.resumable.get(engine, 0)
        if resumed > max(promised, cost.resumable):
            self._metrics.promise("more").inc()
        elif resumed < promised:
            # What was sent there stays known: by now the engine has computed it.
            gone = self._index.withdraw(engine, prompt.token_ids, prompt.salt, resumed, record.published)
            self._metrics.promise("false" if gone else "outdated").inc()
        elif promised:
            self._metrics.promise("kept").inc()

    def _published(self, prompt: PromptPrefix) -> Depths:
        if not prompt.exact:
            return NOTHING
        found = self._index.depths(prompt.token_ids, prompt.salt)
        return Depths({}, found.pages, found.revision) if prompt.computed_whole else found

    def _known(self, prompt: PromptPrefix, published: Depths) -> Depths:
        """What the engines have published, and what they were sent since."""
        following = self._index.state == "following"
        sent = self._recent.resumable(prompt, BESIDE_INDEX_SECONDS if following else SEEN_SECONDS)
        resumable = {} if prompt.computed_whole else _deeper(published.resumable, sent)
        return Depths(resumable, _deeper(published.pages, sent))


def _deeper(published: Mapping[str, int], sent: Mapping[str, int]) -> Mapping[str, int]:
    out = dict(published)
    for engine, depth in sent.items():
        out[engine] = max(depth, out.get(engine, 0))
    return out
