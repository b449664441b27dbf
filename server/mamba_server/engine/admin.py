"""Answers of the engine to admin calls: plan, ledger, requests, flush, change of strategy."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mamba_planner.strategy import STRATEGIES
from mamba_server.cache import POLICIES
from mamba_server.engine.adapter_calls import AdapterCalls
from mamba_server.engine.scheduling.prefix_explanation import dry_run
from mamba_server.engine.speculation.model_drafts import ModelDrafts
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.transfers.departure import Departure
from mamba_server.engine.transfers.sessions import Sessions
from mamba_server.wire import AdminCall, AdminReply


class AdminCalls:
    """Answers `AdminCall`s between two steps of the engine. `plan` is the JSON form of the plan in force."""

    def __init__(
        self,
        core: EngineCore,
        plan: dict[str, Any],
        sessions: Sessions | None = None,
        departure: Departure | None = None,
        adapters: AdapterCalls | None = None,
    ) -> None:
        self._core = core
        self._longer = [each for each in (sessions, departure, adapters) if each is not None]
        self.plan = plan
        self._verbs: dict[str, Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]] = {
            "flush_cache": self._flush,
            "plan": lambda _: (200, self.plan),
            "strategy": self._strategy,
            "requests": self._requests,
            "audits": self._audits,
            "speculation": self._speculation,
            "release": self._release,
            "cached_depth": self._cached_depth,
            "explain": self._explain,
        }

    @property
    def epoch(self) -> int:
        """Number that rises when no published prefix is valid any more.

        A flush raises it; a change of strategy does not.
        """
        return self._core.tree_changes.epoch

    def begin(self, call: AdminCall) -> bool:
        """Begin a call that takes longer than a step; return False if `answer` answers it at once."""
        return any(each.begin(call) for each in self._longer)

    def take_replies(self) -> list[AdminReply]:
        """Return the replies to calls that were begun and have ended since."""
        return [reply for each in self._longer for reply in each.take_replies()]

    def answer(self, call: AdminCall, *, recounted: bool = False) -> AdminReply:
        """Return the reply to `call`; an unknown verb or a bad body is a 4xx.

        `recounted` says whether the memory was recounted and nothing has changed since.
        """
        if call.verb == "ledger":
            return AdminReply(call.call_id, 200, self._ledger(recounted=recounted))
        handler = self._verbs.get(call.verb)
        if handler is None:
            return AdminReply(call.call_id, 404, {"message": f"no admin call {call.verb!r}"})
        status, body = handler(call.body)
        return AdminReply(call.call_id, status, body)

    def _flush(self, _: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        lost = self._core.flush_cache()
        return 200, {"checkpointsDropped": lost, "epoch": self.epoch}

    def _ledger(self, *, recounted: bool) -> dict[str, Any]:
        account = self._core.cache.account().as_dict()
        return {
            **account,
            "running": self._core.scheduler.running,
            "waiting": self._core.scheduler.waiting_count,
            "checkpoints": self._core.cache.capacity.checkpoints,
            "pinned": self._core.cache.capacity.pinned,
            **self._draft_lanes(),
            "step": self._core.step_number,
            "recounted": recounted,
        }

    def _draft_lanes(self) -> dict[str, int]:
        """Check the lanes of the draft model and return how many are held; {} without a draft model."""
        speculation = self._core.speculation
        if speculation is None or not isinstance(source := speculation.drafts.source, ModelDrafts):
            return {}
        source.lanes.check()
        return {"draftLanes": source.lanes.held}

    def _release(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """End an export that nobody has opened, because the engine that was to fetch it will not.

        Return status and body of the reply.
        """
        transfers = self._core.transfers
        released = transfers is not None and transfers.release(str(body.get("export", "")))
        return 200, {"released": released}

    def _cached_depth(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body with the number of tokens of a prompt that a longer prompt would resume."""
        token_ids = np.append(np.frombuffer(body["token_ids"], np.int32), np.int32(0))
        match = self._core.cache.match(token_ids, str(body["salt"]), self._core.step_number + 1)
        return 200, {"depth": match.resumable}

    def _explain(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body with what a prompt of a client would resume; nothing is changed."""
        token_ids, core = np.frombuffer(body["token_ids"], np.int32), self._core
        salt, client = str(body["salt"]), str(body["client"])
        explanation = dry_run(core.cache, token_ids, salt, client, core.step_number + 1)
        return 200, {"explanation": msgspec.to_builtins(explanation)}

    def _strategy(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        cache, settings = self._core.cache, self._core.cache.settings
        page_size = cache.capacity.page_size
        name = body.get("strategy", settings.strategy.name)
        interval = body.get("trackInterval", settings.track_interval)
        cap = body.get("maxCheckpointsPerPath", settings.cap)
        eviction = body.get("eviction", settings.eviction)
        if eviction not in POLICIES:
            return 400, {"message": f"eviction {eviction!r} is not one of {', '.join(POLICIES)}"}
        if name not in STRATEGIES:
            return 400, {"message": f"strategy {name!r} is not one of {', '.join(STRATEGIES)}"}
        if type(interval) is not int or interval < 1 or interval % page_size:
            return 400, {
                "message": f"trackInterval {interval!r} must be a positive multiple of the page size "
                f"{page_size}"
            }
        if type(cap) is not int or cap < 1:
            return 400, {"message": f"maxCheckpointsPerPath {cap!r} must be an integer of at least 1"}
        after = {
            "strategy": name,
            "trackInterval": interval,
            "maxCheckpointsPerPath": cap,
            "eviction": eviction,
            "epoch": self.epoch,
        }
        before = {
            "strategy": settings.strategy.name,
            "trackInterval": settings.track_interval,
            "maxCheckpointsPerPath": settings.cap,
            "eviction": settings.eviction,
        }
        changed = [f"{field} {after[field]}" for field in before if after[field] != before[field]]
        if not changed:
            return 200, after
        # With the memory of an audit, a refusal would hold for a moment only.
        self._core.audits.interrupt()
        refusal = self._core.change_strategy(name)
        if refusal is not None:
            return 409, {"message": refusal.message}
        cache.change_settings(track_interval=interval, cap=cap, eviction=eviction)
        self.plan = {
            **self.plan,
            "strategy": name,
            "slotsPerSequence": cache.capacity.slots_per_sequence,
            "reason": f"changed while serving: {', '.join(changed)}",
        }
        return 200, after

    def _audits(self, _: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"audits": self._core.audits.log.to_json()}

    def _speculation(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body that say whether steps have drafts; the call's body may switch them."""
        speculation = self._core.speculation
        if speculation is None:
            return 409, {
                "message": "this engine has no speculation: start it with --speculation auto, ngram, mtp "
                "or draft=URI"
            }
        drafts, on = speculation.drafts, body.get("on")
        if on is True:
            drafts.switch_on()
        elif on is False:
            drafts.switch_off("switched off by an admin call")
        return 200, {"on": drafts.is_on, "reason": drafts.reason}

    def _requests(self, _: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        requests = [
            {
                "id": sequence.request_id,
                "index": sequence.index,
                "phase": sequence.phase.value,
                "promptTokens": sequence.prompt_len,
                "outputTokens": sequence.outputs,
                "cachedTokens": sequence.cached_tokens,
                "missCause": sequence.miss_cause,
                "preemptions": sequence.preemptions,
            }
            for group in self._core.sequences.values()
            for sequence in group
        ]
        return 200, {"requests": requests}
