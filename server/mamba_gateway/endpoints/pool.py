"""The pool: which engines exist, what each reports, and how many requests of this gateway each has.

Sources (the command line or Kubernetes) set the engines; the prober and the relay report about them; routing
reads an immutable snapshot. The pool holds no connections and does not choose engines.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from mamba_api.choices import Role
from mamba_gateway.endpoints.endpoint import Endpoint, OutlierEjection, PromptQueue, engine_capacity
from mamba_gateway.endpoints.engine_speed import EngineSpeed, pooled_speed
from mamba_gateway.hand_over import TransferReport


@dataclass(frozen=True, slots=True)
class Shadow:
    """Says which conversations are copied to the candidates of a canary."""

    share: float
    """Share of the conversations, 0 to 1."""
    max_in_flight: int
    """Largest number of copies at once."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine's address and state, as the command line or Kubernetes reports it."""

    url: str
    """Base URL without a slash at its end."""
    name: str = ""
    """Name of the pod, or host and port of the URL."""
    ready: bool = True
    """Whether the source reports the engine as ready (EndpointSlice condition); always True for a fixed
    list."""
    draining: bool = False
    """Whether the source reports that the engine is shutting down."""
    candidate_share: float | None = None
    """Share of the conversations that the engines of a canary's new revision get, 0 to 1, if this is one of
    them; None = it is not."""
    shadow: Shadow | None = None
    """Copies that a candidate gets; None = it gets none."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Holds what one probe found out about an engine.

    `models` are the entries of the engine's `/v1/models`; None = unknown.
    """

    ready: bool
    draining: bool = False
    reason: str = ""
    models: tuple[dict[str, Any], ...] | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Used share of the engine's cache memory, 0 to 1."""
    speed: EngineSpeed | None = None
    """Speed that the engine has measured; None = none yet, or the engine reports none."""
    prompt_tokens_waiting: float | None = None
    """Number of prompt tokens that the engine has yet to compute; None = not reported."""
    room: float | None = None
    """Number of prompt tokens that fit into the engine's memory now; None = not reported."""
    max_running: int | None = None
    """Maximum number of requests that the engine runs at once; None = not reported."""
    transfer: TransferReport | None = None
    """Server from which other engines can fetch states of this engine; None = there is none."""


UNKNOWN = ProbeReport(ready=False, reason="not probed yet")
AVOIDED_SECONDS, LONGEST_AVOIDED_SECONDS = 0.5, 30.0
"""Seconds for which other engines are preferred to a full one, doubled until it accepts a request; and the
longest such time."""
SERVICE_SHARE = 0.1
"""Weight of the newest request in the running average of the duration of an engine's requests."""


@dataclass(slots=True)
class _EndpointRecord:
    target: Target
    report: ProbeReport = UNKNOWN
    in_flight: int = 0
    peak: int = 0
    """Largest number of this gateway's requests at the engine since the previous report."""
    in_flight_at_report: int = 0
    suspect: str = ""
    outlier: OutlierEjection = field(default_factory=OutlierEjection)
    queue: PromptQueue = field(default_factory=PromptQueue)
    sent_at: dict[int, float] = field(default_factory=dict)
    """Time of the clock, in seconds, at which each request of this gateway was sent, by ticket."""
    service_seconds: float = 1.0
    answered: int = 0
    failed: int = 0
    rejected: int = 0
    full: bool = False
    """Whether the engine has rejected a request since its last report because it had too many."""
    avoided: bool = False
    """Whether the engine was full recently, so that other engines are preferred."""
    avoided_until: float = 0.0
    """Time of the clock, in seconds, after which the next report ends `avoided`."""
    names: frozenset[str] | None = None
    """Names of the models that the engine serves; None = unknown."""
    speed: EngineSpeed | None = None
    """Speed of the engine, corrected by the speeds of the fleet; None = not measured, or not reported."""
    states_sent: int = 0
    """Number of states that this gateway has sent to the engine since its last report."""
    frozen: Endpoint | None = None
    """Cached snapshot of this record; None = the record has changed since."""
    base: Endpoint | None = None
    """Earlier snapshot that differs only in the numbers of requests; None = more has changed."""


class Pool:
    """Keeps what the gateway knows of each engine, and hands it out as snapshots.

    One event loop uses it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        expected_model: str | None = None,
        on_change: Callable[[], None] = lambda: None,
        expected_adapters: Iterable[str] = (),
    ) -> None:
        """Create an empty pool.

        `expected_model` is the name of the engines' model, if it is known before any engine exists, and
        `expected_adapters` are the names of its adapters.
        `on_change` is called after each change of the engines or their reports.
        """
        self._expected_model = expected_model
        self._names: frozenset[str] | None = None
        """Cached `names`; None = they may have changed."""
        self._last_names: frozenset[str] = frozenset()
        """The value of `names` before the targets last changed."""
        self.expect_adapters(expected_adapters)
        self.synced = False
        """Whether a source has set the engines, and each of them was probed at least once."""
        self._targets_known = False
        self._records: dict[str, _EndpointRecord] = {}
        self._snapshot: tuple[Endpoint, ...] | None = None
        """Cached snapshot; None = an engine has changed, or the passage of time may have changed one."""
        self._changed = asyncio.Event()
        self._on_change = on_change
        self._clock = clock
        self._tickets = itertools.count(1)
        self._doubts = False
        """Whether an engine was ejected and has not answered successfully since."""
        self.candidate_share: float | None = None
        """Share of the conversations that candidates of a canary get, 0 to 1; None = there is none."""
        self.shadow: Shadow | None = None
        """Copies that candidates of a canary get; None = they get none."""

    def set_targets(self, targets: Iterable[Target]) -> tuple[set[str], set[str]]:
        """Replace the engines; return the URLs that were added and those that were removed."""
        self._last_names = self.names
        current = {target.url: target for target in targets}
        shares = [one.candidate_share for one in current.values() if one.candidate_share is not None]
        self.candidate_share = max(shares, default=None)
        self.shadow = next((one.shadow for one in current.values() if one.shadow is not None), None)
        added, removed = current.keys() - self._records.keys(), self._records.keys() - current.keys()
        for url in removed:
            del self._records[url]
        for url, target in current.items():
            if url in self._records:
                self._records[url].target = target
                self._invalidate(self._records[url])
            else:
                self._records[url] = _EndpointRecord(target)
        self._snapshot = self._names = None
        self._targets_known = True
        self._update_doubts()
        self._notify()
        return set(added), set(removed)

    def report(self, url: str, report: ProbeReport) -> None:
        """Record the result of a probe; a URL that was just removed is ignored."""
        if (record := self._records.get(url)) is None:
            return
        if report.models is None:  # the models do not change while an engine is busy or restarting
            report = replace(report, models=record.report.models)
        if not report.ready:  # an engine that restarts or drains keeps its role
            report = replace(report, transfer=record.report.transfer)
        record.report, record.suspect, record.names = report, "", _names(report)
        record.states_sent = 0
        record.full, record.avoided = False, record.avoided and self._clock() < record.avoided_until
        record.speed = self._pooled_speed(record)
        self._names = None
        # The reported numbers are of some moment since the last report. Requests that have ended since then
        # would otherwise count as those of other gateways and, if there are many, make the engine look full.
        record.in_flight_at_report, record.peak = record.peak, record.in_flight
        record.queue.report(report.prompt_tokens_waiting, self._clock())
        self._invalidate(record)
        self._notify()

    def suspect(self, url: str, reason: str) -> None:
        """Record that a request could not reach the engine, which is not chosen until a probe succeeds."""
        if record := self._records.get(url):
            record.suspect = reason
            self.fail(url, reason)

    def fail(self, url: str, reason: str) -> None:
        """Record a failed request.

        After several consecutive failures the engine is ejected for a while, whatever its probes report. At
        most half of the engines that answer requests are ejected.
        """
        if record := self._records.get(url):
            record.outlier.fail(reason, self._clock(), may_eject=self._may_eject(record))
            self._update_doubts()
            self._invalidate(record)

    def _may_eject(self, record: _EndpointRecord) -> bool:
        if _role(record) == "prefill":
            return True  # decode engines compute prompts, too
        alike = [other for other in self._records.values() if _role(other) != "prefill"]
        doubted = sum(other.outlier.doubted for other in alike if other is not record)
        return doubted + 1 <= len(alike) // 2

    def reject(self, url: str, *, full: bool) -> int:
        """Record that the engine rejected a request with a status 4xx; return the number of these in a row.

        `full` says whether the engine has too many requests. It then gets none until its next report, and for
        longer after each further such rejection, as long as there are other engines.
        """
        if (record := self._records.get(url)) is None:
            return 0
        record.outlier.rejections += 1
        record.rejected += 1
        if full:
            record.full = record.avoided = True
            seconds = AVOIDED_SECONDS * 2.0 ** (record.outlier.rejections - 1)
            record.avoided_until = self._clock() + min(LONGEST_AVOIDED_SECONDS, seconds)
        self._invalidate(record)
        return record.outlier.rejections

    def begin_comparison(self, url: str) -> None:
        """Record that a request which the engine rejected goes to another; `end_comparison` must follow."""
        if record := self._records.get(url):
            record.outlier.compare(self._clock())
            self._update_doubts()
            self._invalidate(record)

    def end_comparison(self, url: str, *, took: bool | None) -> None:
        """Record whether the other engine accepted the request (`took`); None = unknown."""
        if record := self._records.get(url):
            record.outlier.comparisons = max(0, record.outlier.comparisons - 1)
            if took:
                self.fail(url, "it rejected a request that another engine took")
            self._update_doubts()
            self._invalidate(record)
            self._notify()

    def begin(self, url: str, tokens: float = 0.0) -> int:
        """Record that a request with `tokens` to compute is sent to the engine; return its ticket."""
        ticket = next(self._tickets)
        if record := self._records.get(url):
            now = self._clock()
            record.in_flight += 1
            record.peak = max(record.peak, record.in_flight)
            record.sent_at[ticket] = now
            if record.outlier.doubted and record.outlier.trial is None:
                record.outlier.trial = ticket
            record.queue.send(ticket, tokens, now)
            self._invalidate_counts(record)
        return ticket

    def send_state(self, url: str) -> None:
        """Record that a state is sent to the engine, which can receive one less until its next report."""
        if record := self._records.get(url):
            record.states_sent += 1
            self._invalidate(record)

    def response_started(self, url: str, ticket: int, *, well: bool = True) -> None:
        """Record that the first byte of the answer has arrived, so that the prompt is computed.

        `well`: the answer is no failure.
        """
        if record := self._records.get(url):
            record.queue.answer(ticket)
            outlier = record.outlier
            if well and (outlier.failures or outlier.rejections or outlier.doubted):
                record.outlier.answer()
                self._update_doubts()
                self._invalidate(record)
            else:
                self._invalidate_counts(record)

    def end(self, url: str, ticket: int, *, failed: bool | None = None) -> None:
        """Record that a request at the engine has ended.

        `failed`: whether the engine failed it; None = unknown, for instance after a cancellation or a mistake
        of the client.
        """
        # An address that was removed and came back in between starts again at zero.
        if (record := self._records.get(url)) and (begun := record.sent_at.pop(ticket, None)) is not None:
            record.in_flight -= 1
            record.answered += failed is False
            record.failed += failed is True
            if record.outlier.trial == ticket:
                record.outlier.trial = None
            record.queue.answer(ticket)
            record.service_seconds += SERVICE_SHARE * (self._clock() - begun - record.service_seconds)
            self._invalidate_counts(record)

    def snapshot(self) -> tuple[Endpoint, ...]:
        """Return all engines, as immutable snapshots."""
        if self._snapshot is not None:
            return self._snapshot
        now = self._clock()
        endpoints = tuple([record.frozen or _freeze(record, now) for record in self._records.values()])
        if not self._doubts:
            self._snapshot = endpoints
            return endpoints
        answering = [endpoint for endpoint in endpoints if endpoint.role != "prefill"]
        usable = any(endpoint.ready and not endpoint.draining for endpoint in answering)
        if not usable and any(endpoint.ejected for endpoint in answering):
            # All engines are ejected: one that may fail is better than none.
            return tuple(
                msgspec.structs.replace(endpoint, ready=_ready(self._records[endpoint.url]))
                if endpoint.role != "prefill"
                else endpoint
                for endpoint in endpoints
            )
        return endpoints

    def capacity(self, model: str | None) -> float:
        """Return how many more requests for `model` may be sent to the engines; see `engine_capacity`."""
        endpoints = self.snapshot()
        if self.candidate_share == 0.0:
            # Candidates that get no requests have no places for them, unless nothing else serves.
            endpoints = tuple(one for one in endpoints if not one.candidate) or endpoints
        return engine_capacity(endpoints, model)

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one engine, so that reading the prompt can improve the choice."""
        return len(self._records) > 1

    @property
    def names(self) -> frozenset[str]:
        """Names of the models that an engine serves; while no engine reports any, the last known names.

        Requests for these models continue to arrive while there is no engine (scaled to zero, or all
        replaced).
        """
        if self._names is None:
            current = frozenset().union(*(record.names or () for record in self._records.values()))
            self._names = current or self._last_names or self._expected
        return self._names

    def expect_adapters(self, names: Iterable[str]) -> None:
        """Wait for engines that serve these adapters beside the expected model, and for no earlier ones."""
        self._expected_adapters = tuple(names) if self._expected_model is not None else ()
        own = () if self._expected_model is None else (self._expected_model,)
        self._expected = frozenset((*own, *self._expected_adapters))
        self._names, self._last_names = None, frozenset()

    def serves(self, name: str) -> bool:
        """Return whether `names` contains this model."""
        return name in self.names

    def may_serve(self, model: str | None) -> bool:
        """Return whether a request for `model` should wait for an engine.

        False if the pool expects another model and no engine reports this one.
        """
        return model is None or not self._expected or model in self._expected or model in self.names

    def reasons(self) -> dict[str, str]:
        """Return the reason for each engine that is not ready, by its name."""
        return {
            record.target.name or url: record.suspect or _reason(record)
            for url, record in self._records.items()
            if not _freeze(record, self._clock()).ready
        }

    def model_entries(self) -> tuple[dict[str, Any], ...]:
        """Return the `/v1/models` entries of all engines, ready or not, one for each id.

        If there are none, the list contains the expected model and its adapters, for clients that list the
        models before they send a request.
        """
        entries = (e for r in self._records.values() for e in r.report.models or () if "id" in e)
        listed = tuple({str(entry["id"]): entry for entry in entries}.values())
        if listed or self._expected_model is None:
            return listed
        plain = {"object": "model", "created": 0, "owned_by": "mambaserve"}
        parent = self._expected_model
        adapters = ({**plain, "id": name, "parent": parent} for name in self._expected_adapters)
        return ({**plain, "id": parent}, *adapters)

    def adapter_of(self, model: str | None) -> str:
        """Return the fingerprint of the adapter that most engines serve under a name; "" = it is none."""
        cards = (
            entry
            for record in self._records.values()
            if model and record.names is not None and model in record.names
            for entry in record.report.models or ()
            if entry.get("id") == model
        )
        counts = Counter(card["fingerprint"] for card in cards if isinstance(card.get("fingerprint"), str))
        return max(counts, key=lambda fingerprint: (counts[fingerprint], fingerprint)) if counts else ""

    def model_names(self) -> tuple[str, ...]:
        """Return the names of all models, ready or not."""
        return tuple(str(entry["id"]) for entry in self.model_entries())

    async def changed(self) -> None:
        """Wait for the next change of the engines or their reports."""
        await self._changed.wait()

    def _pooled_speed(self, record: _EndpointRecord) -> EngineSpeed | None:
        # The speeds of the other engines are corrected with their own next reports.
        if record.report.speed is None:
            return None
        alike = (other.report.speed for other in self._records.values() if other.names == record.names)
        return pooled_speed(record.report.speed, [speed for speed in alike if speed is not None])

    def _update_doubts(self) -> None:
        self._doubts = any(record.outlier.uncertain for record in self._records.values())

    def _invalidate(self, record: _EndpointRecord) -> None:
        record.frozen = record.base = self._snapshot = None

    def _invalidate_counts(self, record: _EndpointRecord) -> None:
        # Each request does this three times, and reports come twice a second.
        record.frozen = self._snapshot = None

    def _notify(self) -> None:
        # This stays true: an engine that is added later does not make the gateway unready.
        self.synced |= self._targets_known and all(r.report is not UNKNOWN for r in self._records.values())
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change()


def _ready(record: _EndpointRecord) -> bool:
    """Return whether the engine is ready, disregarding whether it was ejected."""
    return record.target.ready and record.report.ready and not record.suspect


def _role(record: _EndpointRecord) -> Role:
    return "unified" if record.report.transfer is None else record.report.transfer.role


def _reason(record: _EndpointRecord) -> str:
    if record.report.ready and record.outlier.comparisons:
        return "it rejected a request, and another engine is asked whether the request is wrong"
    if record.report.ready and record.outlier.doubted:
        return f"{record.outlier.failures} requests failed in a row: {record.outlier.reason}"
    return record.report.reason or "not ready"


def _freeze(record: _EndpointRecord, now: float) -> Endpoint:
    if record.frozen is not None:
        return record.frozen
    if record.base is not None:
        record.frozen = endpoint = _with_counts(record, record.base)
        return endpoint
    endpoint = _make_endpoint(record, now)
    # Time alone may change an endpoint that is left out.
    record.frozen = record.base = None if record.outlier.uncertain else endpoint
    return endpoint


def _names(report: ProbeReport) -> frozenset[str] | None:
    if report.models is None:
        return None
    return frozenset(str(entry["id"]) for entry in report.models if "id" in entry)


def _with_counts(record: _EndpointRecord, base: Endpoint) -> Endpoint:
    """Return `base` with the present numbers of requests, if nothing else has changed since `base`."""
    endpoint: Endpoint = base.__copy__()  # type: ignore[attr-defined]  # a fifth of the cost of `copy`
    force_setattr(endpoint, "in_flight", record.in_flight)
    force_setattr(endpoint, "service_seconds", record.service_seconds)
    force_setattr(endpoint, "answered", record.answered)
    force_setattr(endpoint, "failed", record.failed)
    force_setattr(endpoint, "rejected", record.rejected)
    if base.queued_tokens is not None:
        force_setattr(endpoint, "queued_tokens", record.queue.tokens)
    endpoint.__post_init__()
    return endpoint


def _make_endpoint(record: _EndpointRecord, now: float) -> Endpoint:
    target, report = record.target, record.report
    ejected = record.outlier.excludes(now)
    return Endpoint(
        url=target.url,
        name=target.name or target.url,
        ready=_ready(record) and not ejected,
        ejected=ejected,
        draining=target.draining or report.draining,
        models=record.names,
        running=report.running,
        waiting=report.waiting,
        kv_usage=report.kv_usage,
        in_flight=record.in_flight,
        in_flight_at_report=record.in_flight_at_report,
        speed=record.speed,
        queued_tokens=None if report.prompt_tokens_waiting is None else record.queue.tokens,
        room=report.room,
        max_running=report.max_running,
        service_seconds=record.service_seconds,
        answered=record.answered,
        failed=record.failed,
        rejected=record.rejected,
        full=record.full,
        avoided=record.avoided,
        candidate=target.candidate_share is not None,
        role=_role(record),
        transfer=report.transfer,
        credits=max(0, report.transfer.credits - record.states_sent) if report.transfer else 0,
    )
