"""`TextProcessors`: tokenizers of the served models, which the gateway fetches from the engines.

The tokenizer of each ready engine is fetched once, and checked for changes periodically with a conditional
request. Without a tokenizer, as with other inference servers, requests are routed by their text or by load.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import aiohttp
import structlog

from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.headers import bearer
from mamba_prefix.page_chain import PageTerms
from mamba_text.prompt import TextProcessor
from mamba_text.segment_cache import Beginning, EncodedText, SegmentCache
from mamba_text.text_archive import MOST_PACKED_BYTES, load_text_side

log = structlog.get_logger("mambaserve.gateway")

REFRESH_SECONDS = 300.0
"""Seconds until the tokenizer of a ready engine is checked for changes."""
RETRY_SECONDS = 30.0
"""Seconds until a failed fetch is repeated."""
ROUND_SECONDS = 1.0
"""Seconds between two rounds of fetches."""
TOKENIZER_SECONDS = 20.0
"""Longest time that the fetch of one tokenizer may take."""
MAX_UNUSED = 4
"""Number of tokenizers that are kept although no ready engine has them, in case a roll-out is rolled back."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """The chat template and the tokenizer of one model, as engines serve them."""

    processor: TextProcessor
    segments: SegmentCache
    _terms: WeakKeyDictionary[Beginning, PageTerms] = field(default_factory=WeakKeyDictionary, repr=False)

    def terms_of(self, encoded: EncodedText) -> PageTerms:
        """Return the terms of a prompt's pages; those of a known beginning are not computed again."""
        beginning, earlier = encoded.beginning, None
        if beginning is not None:
            earlier = self._terms.get(beginning)
        shared = {} if beginning is None or earlier is None else earlier.of_first(len(beginning.token_ids))
        terms = PageTerms(encoded.token_ids, shared)
        if encoded.next_beginning is not None:
            self._terms[encoded.next_beginning] = terms
        return terms


@dataclass(slots=True)
class _EngineTokenizer:
    fingerprint: str = ""
    """Identity of the engine's tokenizer; "" = the engine has none that the gateway can use."""
    refresh_at: float = 0.0
    """Time of the gateway's clock, in seconds, at which the engine is queried again."""


class TextProcessors:
    """Fetches and keeps the tokenizers of the models that ready engines serve.

    `key` returns the API key for engines.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        pool: Pool,
        clock: Callable[[], float],
        key: Callable[[], bytes] | None = None,
    ) -> None:
        self._session, self._pool, self._clock, self._key = session, pool, clock, key
        self._engines: dict[str, _EngineTokenizer] = {}
        self._texts: dict[str, ModelText] = {}

    def for_model(self, model: str | None) -> ModelText | None:
        """Return the tokenizer that most ready engines with `model` have; None = none is known yet."""
        counts = Counter(
            engine.fingerprint
            for endpoint in self._pool.snapshot()
            if endpoint.ready and endpoint.serves(model)
            if (engine := self._engines.get(endpoint.url)) is not None and engine.fingerprint
        )
        return self._texts.get(max(counts, key=lambda name: (counts[name], name))) if counts else None

    @property
    def all_queried(self) -> bool:
        """Whether every ready engine was queried at least once, whatever the result."""
        return all(endpoint.url in self._engines for endpoint in self._pool.snapshot() if endpoint.ready)

    async def work(self) -> None:
        """Fetch the tokenizers of ready engines until the task is cancelled.

        A round begins when the pool of engines changes, and at the latest `RETRY_SECONDS` after the last
        round.
        """
        while True:
            changed = asyncio.create_task(self._pool.changed())
            await self.refresh()
            await asyncio.wait((changed,), timeout=RETRY_SECONDS)
            changed.cancel()
            if self._texts:  # the first tokenizer is needed immediately, without waiting for the next round
                await asyncio.sleep(ROUND_SECONDS)

    async def refresh(self) -> None:
        """Query each ready engine that is new, or whose time to be queried again has come."""
        snapshot = self._pool.snapshot()
        ready = {endpoint.url for endpoint in snapshot if endpoint.ready}
        for url in self._engines.keys() - ready:
            del self._engines[url]  # another engine may get the same address later
        for endpoint in snapshot:
            engine = self._engines.get(endpoint.url)
            if endpoint.ready and (engine is None or self._clock() >= engine.refresh_at):
                self._engines[endpoint.url] = await self._refresh_endpoint(endpoint)
        self._forget()

    async def _refresh_endpoint(self, endpoint: Endpoint) -> _EngineTokenizer:
        try:
            fingerprint = await self._fetch(endpoint.url)
        except Exception as error:
            # If an engine sends anything invalid, requests are routed without its tokenizer.
            log.warning("no tokenizer", endpoint=endpoint.name, error=str(error) or type(error).__name__)
            return _EngineTokenizer(refresh_at=self._clock() + RETRY_SECONDS)
        return _EngineTokenizer(fingerprint, self._clock() + REFRESH_SECONDS)

    async def _fetch(self, url: str) -> str:
        headers = {"Authorization": bearer(self._key())} if self._key else {}
        if self._texts:
            headers["If-None-Match"] = ", ".join(f'"{fingerprint}"' for fingerprint in self._texts)
        timeout = aiohttp.ClientTimeout(total=TOKENIZER_SECONDS)
        async with self._session.get(f"{url}/v1/tokenizer", headers=headers, timeout=timeout) as answer:
            fingerprint = answer.headers.get("ETag", "").strip('"')
            if answer.status == 304 and fingerprint in self._texts:
                return fingerprint
            if answer.status == 404:  # another kind of inference server
                return ""
            if answer.status != 200 or not fingerprint:
                raise ValueError(f"/v1/tokenizer answered {answer.status}")
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > MOST_PACKED_BYTES:
                    raise ValueError(f"/v1/tokenizer sends more than {MOST_PACKED_BYTES} bytes")
        if fingerprint not in self._texts:
            side = await asyncio.to_thread(load_text_side, bytes(data))
            self._texts[fingerprint] = ModelText(side, SegmentCache(side.tokenizer))
            log.info("tokenizer", endpoint=url, fingerprint=fingerprint)
        return fingerprint

    def _forget(self) -> None:
        used = {engine.fingerprint for engine in self._engines.values()}
        unused = [fingerprint for fingerprint in self._texts if fingerprint not in used]
        for fingerprint in unused[: max(0, len(unused) - MAX_UNUSED)]:
            del self._texts[fingerprint]
