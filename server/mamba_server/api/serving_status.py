"""`GET /v1/status` of an engine: readiness, its last statistics, running sequences, and the plan in force.

The engine process is asked for its sequences and its plan. It may be busy with a long step; after a second
the answer is sent without them.
"""

import asyncio
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from mamba_api.serving_status import EngineStatus, QuarantineStatus, RequestStatus, ServingStatus
from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import ApiError
from mamba_edge.status_page import CachedValue
from mamba_server.api.info import readiness
from mamba_server.api.metrics.engine_metrics import parse_key
from mamba_server.api.serving import Serving

ASKING_SECONDS = 1.0
"""Longest wait for the engine process."""
MAX_REQUESTS = 64
"""Maximum number of sequences that are listed."""
MAX_QUARANTINED = 8
"""Maximum number of wrong answers that are listed."""


class StatusEndpoint:
    """Answers `GET /v1/status` for one served model; concurrent calls share one answer."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._shared = CachedValue(self._collect)

    async def status(self) -> Response:
        """Report readiness, memory by owner, cache hits and misses, sequences and the plan in force."""
        return JsonResponse(await self._shared.get())

    async def _collect(self) -> bytes:
        serving = self._serving
        state, engine = readiness(serving), serving.engine
        stats = engine.stats
        counters, gauges = (stats.counters, stats.gauges) if stats else ({}, {})
        requests, plan = await asyncio.gather(self._ask("requests"), self._ask("plan"))
        wrong = None
        if any(count for key, count in counters.items() if key.startswith("audits_total{outcome=diverged")):
            wrong = await self._ask("audits")
        is_speculating = gauges.get("speculation_on")
        speculation = None if is_speculating is None else "on"
        if is_speculating == 0:
            speculation = ((await self._ask("speculation")) or {}).get("reason") or "off"
        status = EngineStatus(
            name=engine.changes.engine,
            status=state.status,
            reason=state.reason,
            stage=state.stage,
            done=state.done,
            total=state.total,
            model=serving.model_name,
            running=_count(gauges, "requests_running"),
            waiting=_count(gauges, "requests_waiting"),
            slabs=_by(gauges, "slabs", "owner"),
            slots=_by(gauges, "slots", "owner"),
            pages=_by(gauges, "pages", "owner"),
            cache_usage=gauges.get("arena_usage"),
            checkpoints=_count(gauges, "checkpoints"),
            prompt_tokens=_count(counters, "prompt_tokens_total"),
            cached_tokens=_count(counters, "cached_tokens_total"),
            generated_tokens=_count(counters, "generation_tokens_total"),
            first_tokens=serving.metrics.first_tokens,
            first_token_seconds=serving.metrics.first_token_seconds,
            finished=serving.metrics.sequences_ended,
            failed=serving.metrics.sequences_failed,
            misses=_by(counters, "prefix_misses", "cause"),
            preemptions=_count(counters, "preemptions_total"),
            restarts=engine.restarts,
            requests=None if requests is None else _requests(requests.get("requests")),
            speculation=speculation,
            quarantined=[] if wrong is None else _quarantined(wrong.get("audits")),
            plan=plan or (engine.ready.plan if engine.ready else None),
        )
        whole = ServingStatus(
            component="engine",
            version=importlib.metadata.version("mambaserve"),
            status=state.status,
            reason=state.reason,
            engines=[status],
        )
        return whole.model_dump_json().encode()

    async def _ask(self, verb: str) -> dict[str, Any] | None:
        """Return the engine's reply to an admin call, or None if there is none within `ASKING_SECONDS`."""
        try:
            reply = await self._serving.engine.admin(verb, {}, timeout=ASKING_SECONDS)
        except ApiError:
            return None
        return reply.body if reply.status == 200 else None


def _requests(body: object) -> list[RequestStatus]:
    # Request ids are left out: clients choose them, and other clients may read this answer.
    sequences = body if isinstance(body, list) else []
    return [
        RequestStatus(
            phase=sequence["phase"],
            prompt_tokens=sequence["promptTokens"],
            output_tokens=sequence["outputTokens"],
            cached_tokens=sequence["cachedTokens"],
            miss_cause=sequence["missCause"],
            preemptions=sequence["preemptions"],
        )
        for sequence in sequences[:MAX_REQUESTS]
    ]


def _quarantined(body: object) -> list[QuarantineStatus]:
    # Request ids are left out, as above.
    audits = [each for each in body if each["outcome"] == "diverged"] if isinstance(body, list) else []
    statuses = []
    for audit in audits[:MAX_QUARANTINED]:
        lineage = audit["lineage"]
        statuses.append(
            QuarantineStatus(
                reason=audit["reason"],
                depth=audit["depth"],
                origin=audit["origin"],
                place=lineage[0]["place"] if lineage else "",
                step=lineage[0]["step"] if lineage else None,
                ancestors=[each["depth"] for each in lineage[1:]],
                checkpoints=audit["quarantined"],
                accepted_drafts=audit["acceptedDrafts"],
            )
        )
    return statuses


def _count(values: Mapping[str, float], key: str) -> int | None:
    return int(values[key]) if key in values else None


def _by(values: Mapping[str, float], name: str, label: str) -> dict[str, int]:
    counts = {}
    for key, value in values.items():
        parsed = parse_key(key)
        if parsed is not None and parsed[0] == name and parsed[1][:1] and parsed[1][0][0] == label:
            counts[parsed[1][0][1]] = int(value)
    return counts
