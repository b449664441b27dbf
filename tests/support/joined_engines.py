"""Whole engines in this process whose states move: between two of them, and to and from their tiers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec

from engines import Answer
from eventually import PATIENCE
from mamba_server.cache import ledger
from mamba_server.engine.boot import Engine
from mamba_server.engine.transfers import start
from mamba_server.engine.transfers.bundle_memory import DeviceBundleMemory
from mamba_server.engine.transfers.start import TransferEndpoint, start_transfers
from mamba_server.wire import AddRequest, Fetch, HandOver, SequenceDelta
from mamba_settings.engine_settings import EngineSettings


class Joined:
    """An engine with transfers, stepped by the test."""

    def __init__(self, engine: Engine, *, copies: bool = False, **settings: Any) -> None:
        """Start the transfers. `copies`: by copies on the forward stream, as on a device."""
        self.engine, self.core = engine, engine.core
        values = EngineSettings(model="builtin://tiny-recall", **{"transfer_port": 0, **settings})
        memory: Any = start.HostBundleMemory
        if copies:
            memory = partial(DeviceBundleMemory, stream=engine.stream, pinned=False)
        with mock.patch.object(start, "HostBundleMemory", memory):
            self.endpoint: TransferEndpoint = start_transfers(
                self.core, values, engine.stream, engine.memory, engine.state_layout, lambda: None
            )
        self.answers: dict[tuple[str, int], Answer] = {}
        self.handed: dict[str, HandOver] = {}

    def add(self, request: AddRequest) -> None:
        rejected = self.core.add(request)
        assert rejected is None, rejected

    def step(self) -> None:
        for delta in self.core.step():
            self._take(delta)
        assert not self.core.failed_steps, self.core.last_error
        if self.core.awaits_states or self.core.idle:
            time.sleep(0.0005)

    def _take(self, delta: SequenceDelta) -> None:
        answer = self.answers.setdefault((delta.request_id, delta.index), Answer())
        answer.tokens.extend(delta.token_ids)
        answer.logprobs.extend(delta.logprobs or [])
        answer.cached_tokens += delta.cached_tokens
        answer.prompt_logprobs = delta.prompt_logprobs or answer.prompt_logprobs
        answer.finish_reason = delta.finish_reason or answer.finish_reason
        if delta.hand_over is not None:
            self.handed[delta.request_id] = delta.hand_over

    def run(
        self, *requests: AddRequest, before_step: Callable[[int], object] = lambda _: None
    ) -> dict[tuple[str, int], Answer]:
        """Run until idle; return the answers of these requests."""
        for request in requests:
            self.add(request)
        names, number = {request.request_id for request in requests}, 0
        self.until(lambda: self.core.idle, before_step=lambda: before_step(number))
        return {key: answer for key, answer in self.answers.items() if key[0] in names}

    def until(self, condition: Callable[[], bool], *others: Joined, before_step: Any = lambda: None) -> None:
        """Step this engine, and `others`, until the condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            before_step()
            for each in (self, *others):
                each.step()
            assert time.monotonic() < deadline, "the engines hang"

    def outcomes(self, direction: str) -> dict[str, int]:
        """Return the number of transfers of a direction by outcome."""
        assert self.core.transfers is not None
        counters = self.core.transfers.counters()
        prefix = f"transfers_total{{direction={direction},outcome="
        return {
            key.removeprefix(prefix)[:-1]: int(value)
            for key, value in counters.items()
            if key.startswith(prefix)
        }

    def check_empty(self, *others: Joined) -> None:
        """Wait until nothing is held for transfers, and check the ledger."""
        capacity = lambda: self.core.cache.capacity  # noqa: E731
        self.until(
            lambda: not (capacity().receiving or capacity().exported or capacity().quarantined), *others
        )
        ledger.check(self.core.cache)

    def close(self, *, save: bool = True) -> None:
        """End the engine; `save`: as after a shutdown, and not after a failure."""
        assert self.core.transfers is not None
        self.core.transfers.close(save=save)
        self.engine.stream.close()


def hand_over(prefill: Joined, decode: Joined, requests: list[AddRequest]) -> dict[tuple[str, int], Answer]:
    """Compute the prompts at one engine, and the answers at the other."""
    asked = [msgspec.structs.replace(request, hand_over=True, n=1) for request in requests]
    prefill.run(*asked)
    for request in requests:
        decode.add(with_source(request, prefill))
    decode.until(lambda: decode.core.idle, prefill)
    names = {request.request_id for request in requests}
    return {key: answer for key, answer in decode.answers.items() if key[0] in names}


def with_source(request: AddRequest, prefill: Joined) -> AddRequest:
    """Return the request as the gateway sends it to a decode engine."""
    handed = prefill.handed[request.request_id]
    if not handed.depth:
        return request
    endpoint = prefill.endpoint
    fetch = Fetch(endpoint.address, endpoint.incarnation, handed.depth, handed.export)
    return msgspec.structs.replace(request, fetch=fetch)


@contextmanager
def joined(*engines: Joined) -> Iterator[None]:
    """Close the engines at the end."""
    try:
        yield
    finally:
        for engine in engines:
            engine.close()


def with_peer(request: AddRequest, peer: Joined, depth: int) -> AddRequest:
    """Return the request with the hint that `peer` has `depth` tokens of the prompt cached."""
    fetch = Fetch(peer.endpoint.address, peer.endpoint.incarnation, depth)
    return msgspec.structs.replace(request, fetch=fetch)
