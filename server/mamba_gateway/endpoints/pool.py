"""The pool: which engines exist, what each reports, and how many of our requests each has in flight.

Sources say which targets exist, the prober and the relay report on them, routing reads a frozen snapshot.
Holds no connection and never decides where a request goes.
"""

import asyncio
import itertools
import time
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
class Target:
    """One engine that a source knows of."""

    url: str
    """Base URL, without a trailing slash."""
    name: str = ""
    """Pod name, or the URL's authority."""
    ready: bool = True
    """Readiness by the source (EndpointSlice condition); True for a static source, which has no opinion."""
    draining: bool = False
    """Whether the source says that the engine is going away."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of one probe. `models` holds the engine's `/v1/models` entries; None = unknown."""

    ready: bool
    draining: bool = False
    reason: str = ""
    models: tuple[dict[str, Any], ...] | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    speed: EngineSpeed | None = None
    """Speed that the engine measured; None = nothing yet, or the engine does not say."""
    prompt_tokens_waiting: float | None = None
    """Prompt tokens that the engine has yet to compute; None = it does not say."""
    room: float | None = None
    """Prompt tokens that the engine has memory for now; None = it does not say."""
    max_running: int | None = None
    """Largest number of requests that the engine runs at once; None = it does not say."""
    transfer: TransferReport | None = None
    """Endpoint of the engine for states that move between engines; None = it moves none."""


UNKNOWN = ProbeReport(ready=False, reason="not probed yet")
AVOIDED_SECONDS, LONGEST_AVOIDED_SECONDS = 0.5, 30.0
"""Time for which a full engine gets requests last, doubled each time until it takes one; longest such
time."""
SERVICE_SHARE = 0.1
"""Share of the difference by which a request moves the mean time of its endpoint's requests."""


@dataclass(slots=True)
class _EndpointRecord:
    target: Target
    report: ProbeReport = UNKNOWN
    in_flight: int = 0
    peak: int = 0
    """Largest number of our requests at once since the report before."""
    in_flight_at_report: int = 0
    suspect: str = ""
    outlier: OutlierEjection = field(default_factory=OutlierEjection)
    queue: PromptQueue = field(default_factory=PromptQueue)
    sent_at: dict[int, float] = field(default_factory=dict)
    """Callable[[], float] time at which each of our requests was sent, by ticket."""
    service_seconds: float = 1.0
    answered: int = 0
    failed: int = 0
    rejected: int = 0
    full: bool = False
    """Whether the engine told a request since the last report that it is full."""
    avoided: bool = False
    """Whether the engine was full lately, so that others are preferred."""
    avoided_until: float = 0.0
    """Callable[[], float] time after which the next report ends `avoided`."""
    names: frozenset[str] | None = None
    """Names of the models that the engine serves; None = unknown."""
    speed: EngineSpeed | None = None
    """Speed of the engine, pooled with the fleet; None = not measured yet, or not reported."""
    states_sent: int = 0
    """States that this gateway has sent to the engine since its last report."""
    frozen: Endpoint | None = None
    """Cached snapshot of the record; None = it has changed since."""
    base: Endpoint | None = None
    """Earlier snapshot from which only request counts differ; None = more has changed."""


class Pool:
    """Mutable register behind the snapshots; used from one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        expected_model: str | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`expected_model`: the model of the engines, where it is known before any of them is there.

        `on_change` is called after each change of targets or reports.
        """
        self._expected = frozenset() if expected_model is None else frozenset((expected_model,))
        self.synced = False
        """Whether a source has given its targets, and each of them was probed at least once."""
        self._targets_known = False
        self._records: dict[str, _EndpointRecord] = {}
        self._snapshot: tuple[Endpoint, ...] | None = None
        """Cached snapshot; None = an endpoint has changed, or time alone may change one."""
        self._changed = asyncio.Event()
        self._on_change = on_change
        self._clock = clock
        self._tickets = itertools.count(1)
        self._doubts = False
        """Whether some endpoint was ejected and has not answered successfully since."""
        self._names: frozenset[str] | None = None
        self._last_names: frozenset[str] = frozenset()
        """The value of `names` before the targets last changed."""

    def set_targets(self, targets: Iterable[Target]) -> tuple[set[str], set[str]]:
        """Replace the targets; return the URLs added and the URLs removed."""
        self._last_names = self.names
        current = {target.url: target for target in targets}
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
        """Take the result of a probe; unknown URLs (just removed) are ignored."""
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
        # The numbers are of some moment since the last report. Requests that ended since then would else
        # count as requests of others, and where many end together, as a full engine.
        record.in_flight_at_report, record.peak = record.peak, record.in_flight
        record.queue.report(report.prompt_tokens_waiting, self._clock())
        self._invalidate(record)
        self._notify()

    def suspect(self, url: str, reason: str) -> None:
        """Record that a request could not reach the endpoint: it is not chosen before a probe succeeds."""
        if record := self._records.get(url):
            record.suspect = reason
            self.fail(url, reason)

    def fail(self, url: str, reason: str) -> None:
        """Record a failed request.

        After several in a row the endpoint is left out for a while, whatever probes find; never more than
        half of the endpoints that answer requests are.
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
        """Record that the endpoint rejected a request like a mistake of a client; return how many in a row.

        `full`: it has too many requests. Then it gets none before its next report, and after each further
        such rejection for longer, as long as there are others.
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
        """Record that a request that the endpoint rejected goes to another one; `end_comparison` follows."""
        if record := self._records.get(url):
            record.outlier.compare(self._clock())
            self._update_doubts()
            self._invalidate(record)

    def end_comparison(self, url: str, *, took: bool | None) -> None:
        """Record whether the other endpoint `took` the request; None = unknown."""
        if record := self._records.get(url):
            record.outlier.comparisons = max(0, record.outlier.comparisons - 1)
            if took:
                self.fail(url, "it rejected a request that another engine took")
            self._update_doubts()
            self._invalidate(record)
            self._notify()

    def begin(self, url: str, tokens: float = 0.0) -> int:
        """Count a request as sent to the endpoint, with `tokens` to compute; return its ticket."""
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
        """Count a state as sent to the endpoint, which can take one less until its next report."""
        if record := self._records.get(url):
            record.states_sent += 1
            self._invalidate(record)

    def response_started(self, url: str, ticket: int, *, well: bool = True) -> None:
        """Record that the first byte of the response has arrived: the prompt is computed.

        `well`: the response is no failure.
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
        """Count a request to the endpoint as ended.

        `failed`: whether the endpoint failed it; None = unknown, as when the client cancelled it or made an
        error.
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
        """Return all endpoints, frozen."""
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
            # Nothing else is left: an engine that may fail is better than none.
            return tuple(
                msgspec.structs.replace(endpoint, ready=_ready(self._records[endpoint.url]))
                if endpoint.role != "prefill"
                else endpoint
                for endpoint in endpoints
            )
        return endpoints

    def capacity(self, model: str | None) -> float:
        """Return how many more requests for `model` the engines are given; see `engine_capacity`."""
        return engine_capacity(self.snapshot(), model)

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one endpoint, so that the prompt decides between them."""
        return len(self._records) > 1

    @property
    def names(self) -> frozenset[str]:
        """Names of the models that some endpoint serves; while none says so, those that were served last.

        Without engines (scaled to zero, or all of them replaced) requests still come for these.
        """
        if self._names is None:
            current = frozenset().union(*(record.names or () for record in self._records.values()))
            self._names = current or self._last_names or self._expected
        return self._names

    def serves(self, name: str) -> bool:
        """Return whether `names` has this model."""
        return name in self.names

    def may_serve(self, model: str | None) -> bool:
        """Return whether waiting for an engine can help a request for `model`.

        False where another model is expected and no engine says that it serves this one.
        """
        return model is None or not self._expected or model in self._expected or model in self.names

    def reasons(self) -> dict[str, str]:
        """Return by name of each endpoint that is not ready the reason."""
        return {
            record.target.name or url: record.suspect or _reason(record)
            for url, record in self._records.items()
            if not _freeze(record, self._clock()).ready
        }

    def model_entries(self) -> tuple[dict[str, Any], ...]:
        """Return the `/v1/models` entries of all endpoints, ready or not, one for each id.

        Without any there is an entry for the model that is expected, so that clients which list models before
        they send a request find it.
        """
        entries = (e for r in self._records.values() for e in r.report.models or () if "id" in e)
        listed = tuple({str(entry["id"]): entry for entry in entries}.values())
        return listed or tuple(
            {"id": name, "object": "model", "created": 0, "owned_by": "mambaserve"} for name in self._expected
        )

    def model_names(self) -> tuple[str, ...]:
        """Return the names of all models, ready or not."""
        return tuple(str(entry["id"]) for entry in self.model_entries())

    async def changed(self) -> None:
        """Return after the next change of targets or reports."""
        await self._changed.wait()

    def _pooled_speed(self, record: _EndpointRecord) -> EngineSpeed | None:
        # The others keep their speed: each is pooled again with its own next report.
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
        # Once true it stays true: an engine that joins later does not make the gateway unready.
        self.synced |= self._targets_known and all(r.report is not UNKNOWN for r in self._records.values())
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change()


def _ready(record: _EndpointRecord) -> bool:
    """Return the readiness without regard to outlier ejection."""
    return record.target.ready and record.report.ready and not record.suspect


def _role(record: _EndpointRecord) -> Role:
    return "unified" if record.report.transfer is None else record.report.transfer.role


def _reason(record: _EndpointRecord) -> str:
    if record.report.ready and record.outlier.comparisons:
        return "it rejected a request, which another engine is asked"
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
    """Return the result of `_make_endpoint` if only requests have begun and ended since `base` was made."""
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
        role=_role(record),
        transfer=report.transfer,
        credits=max(0, report.transfer.credits - record.states_sent) if report.transfer else 0,
    )
