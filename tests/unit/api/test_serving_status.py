"""`/v1/status` of an engine: its last numbers, what runs, the plan; whatever the engine process does."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi import ask
from mamba_api.serving_status import ServingStatus
from mamba_edge.api_keys import KeyFile
from mamba_server import wire
from mamba_server.api.engine_link.engine_state import EngineState
from scripted_engine import Api

STATS = wire.EngineStats(
    {"prompt_tokens_total": 100, "cached_tokens_total": 40, "generation_tokens_total": 7,
     "prefix_misses_total{cause=evicted}": 3, "prefix_misses_total{cause=new}": 2, "preemptions_total": 1},
    {"requests_running": 2, "requests_waiting": 1, "slots{owner=live}": 2, "slots{owner=cached}": 5,
     "slabs{owner=free}": 9, "slabs{owner=pages}": 4, "pages{owner=tree}": 16, "arena_usage": 0.25,
     "checkpoints": 5},
    [], [],
)  # fmt: skip
RUNNING = {"id": "the client's name", "index": 0, "phase": "decode", "promptTokens": 60, "outputTokens": 3,
           "cachedTokens": 32, "missCause": "", "preemptions": 0}  # fmt: skip


def answering(api: Api, **bodies: dict[str, Any]) -> None:
    """Let the engine answer these admin calls, and refuse all others."""

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AdminCall):
            found = bodies.get(message.verb)
            api.engine.send(wire.AdminReply(message.call_id, 200 if found else 404, found or {}))

    api.engine.process.react = react


async def status_of(api: Api) -> Any:
    asked = await ask(api.app, "GET", "/v1/status").done()
    assert asked.status == 200
    ServingStatus.model_validate(asked.json)
    [engine] = asked.json["engines"]
    return engine


async def test_an_engine_tells_its_memory_by_owner_what_it_resumed_and_why_not_more() -> None:
    api = Api()
    answering(api, requests={"requests": [RUNNING]}, plan={"strategy": "ExtraBuffer", "ledger": []})
    api.engine.send(STATS)
    engine = await status_of(api)
    assert (engine["status"], engine["model"], engine["running"], engine["waiting"]) == (
        "ready",
        "tiny",
        2,
        1,
    )
    assert engine["slots"] == {"live": 2, "cached": 5}
    assert (engine["slabs"], engine["pages"]) == ({"free": 9, "pages": 4}, {"tree": 16})
    assert (engine["prompt_tokens"], engine["cached_tokens"], engine["generated_tokens"]) == (100, 40, 7)
    assert engine["misses"] == {"evicted": 3, "new": 2}
    assert (engine["cache_usage"], engine["checkpoints"], engine["preemptions"]) == (0.25, 5, 1)
    assert engine["plan"]["strategy"] == "ExtraBuffer"


async def test_what_runs_is_listed_without_the_names_that_clients_gave() -> None:
    api = Api()
    answering(api, requests={"requests": [RUNNING] * 500})
    engine = await status_of(api)
    assert len(engine["requests"]) == 64
    assert engine["requests"][0] == {
        "phase": "decode", "prompt_tokens": 60, "output_tokens": 3, "cached_tokens": 32, "miss_cause": "",
        "preemptions": 0,
    }  # fmt: skip


async def test_before_the_engine_is_ready_it_tells_how_far_it_is() -> None:
    api = Api(ready=False)
    api.engine.client.state = EngineState("loading", "loading: weights", "weights", 3, 10)
    engine = await status_of(api)
    assert (engine["status"], engine["stage"], engine["done"], engine["total"]) == (
        "loading",
        "weights",
        3,
        10,
    )
    assert (engine["slots"], engine["requests"], engine["plan"], engine["running"]) == ({}, None, None, None)


async def test_an_engine_that_died_is_shown_without_the_numbers_of_the_dead() -> None:
    api = Api()
    api.engine.send(STATS)
    api.engine.dies()
    engine = await status_of(api)
    assert (engine["status"], engine["slots"], engine["running"]) == ("restarting", {}, None)
    assert engine["plan"] == {"strategy": "NoBuffer"}


async def test_an_engine_in_a_long_step_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mamba_server.api.serving_status.ASKING_SECONDS", 0.0)
    api = Api()
    api.engine.send(STATS)
    engine = await status_of(api)
    assert (engine["requests"], engine["running"], engine["plan"]) == (None, 2, {"strategy": "NoBuffer"})


async def test_many_pages_ask_the_engine_once() -> None:
    api = Api()
    answering(api, requests={"requests": []}, plan={"strategy": "NoBuffer"})
    for _ in range(3):
        await status_of(api)
    assert [call.verb for call in api.engine.messages(wire.AdminCall)] == ["requests", "plan"]


async def test_it_wants_a_key_where_keys_are_set_and_the_page_does_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    api = Api(keys=KeyFile(str(tmp_path / "keys"), "api_key_file"))
    assert (await ask(api.app, "GET", "/v1/status").done()).status == 401
    assert (await ask(api.app, "GET", "/ui").done()).status == 200
    assert (await ask(api.app, "GET", "/ui/app.js").done()).status == 200
    shown = await ask(api.app, "GET", "/v1/status", headers=[("Authorization", "Bearer key-1")]).done()
    assert shown.status == 200


async def test_wrong_answers_are_listed_by_their_lineage_and_end_speculation_with_a_reason() -> None:
    api = Api()
    ancestor = {"depth": 64, "origin": "device", "place": "", "step": 2, "request": "secret"}
    wrong = {
        "outcome": "diverged", "reason": "state of recurrent layer 1", "depth": 96, "origin": "peer",
        "lineage": [{**ancestor, "depth": 96, "place": "10.0.0.7:1", "step": 5}, ancestor], "quarantined": 3,
        "acceptedDrafts": 12, "request": "secret",
    }  # fmt: skip
    answering(
        api, audits={"audits": [wrong, {**wrong, "outcome": "ok"}]},
        speculation={"on": False, "reason": "an audit found a wrong answer"},
    )  # fmt: skip
    counted = {"audits_total{outcome=diverged,origin=peer}": 1}
    api.engine.send(msgspec.structs.replace(STATS, counters=counted, gauges={"speculation_on": 0}))
    engine = await status_of(api)
    assert engine["speculation"] == "an audit found a wrong answer"
    [listed] = engine["quarantined"]
    assert (listed["reason"], listed["place"], listed["ancestors"]) == (wrong["reason"], "10.0.0.7:1", [64])
    assert (listed["checkpoints"], listed["accepted_drafts"]) == (3, 12)
    assert "secret" not in str(engine)
