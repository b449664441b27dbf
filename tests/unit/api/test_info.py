"""The endpoints that only tell, and the admin application, in every state of the engine."""

from pathlib import Path
from typing import Any

import pytest

from asgi import ask
from eventually import until
from mamba_edge.api_keys import KeyFile
from mamba_server import wire
from mamba_server.api.engine_link.engine_state import EngineState
from mamba_server.api.requests.errors import AdminTimeout, EngineLost
from mamba_text.text_archive import load_text_side
from scripted_engine import READY, TOKENIZER, Api, Engine

JSON = [("Content-Type", "application/json")]
STATES = [
    EngineState("loading", "loading: weights", "weights", 3, 10),
    EngineState("restarting", "the engine process was killed by signal 9"),
    EngineState("failed", "needs 12 GiB, has 8"),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.phase)
@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_an_engine_that_is_not_ready_is_503_with_the_reason_and_how_far(
    path: str, state: EngineState
) -> None:
    api = Api()
    api.engine.client.state = state
    asked = await ask(api.app, "GET", path).done()
    assert asked.status == 503
    assert (asked.json["status"], asked.json["reason"]) == (state.phase, state.reason)
    assert (asked.json["stage"], asked.json["done"], asked.json["total"]) == (
        state.stage,
        state.done,
        state.total,
    )
    assert int(asked.headers["retry-after"]) >= 1
    assert (await ask(api.app, "GET", "/livez").done()).status == 200


async def test_a_drain_hides_every_other_state() -> None:
    api = Api(ready=False)
    api.serving.drain.draining = True
    asked = await ask(api.app, "GET", "/readyz").done()
    assert (asked.status, asked.json["status"]) == (503, "draining")
    assert asked.json["reason"] == "draining: 0 requests are finishing"


async def test_the_model_is_listed_before_it_is_loaded_and_its_length_after() -> None:
    api = Api(ready=False)
    [card] = (await ask(api.app, "GET", "/v1/models").done()).json["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", None)
    api.engine.send(READY)
    assert (await ask(api.app, "GET", "/v1/models/tiny").done()).json["max_model_len"] == 128


@pytest.mark.parametrize("name", ["other", "tiny/", "TINY", "x" * 5000])
async def test_a_model_that_is_not_served_is_not_found_and_not_echoed_at_length(name: str) -> None:
    asked = await ask(Api().app, "GET", f"/v1/models/{name}").done()
    assert (asked.status, asked.error["code"], asked.error["param"]) == (404, "model_not_found", "model")
    assert "serves 'tiny'" in asked.error["message"]
    assert len(asked.body) < 500


async def test_keys_guard_what_is_below_v1_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    api = Api(keys=KeyFile(str(tmp_path / "keys"), "api_key_file"))
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/v1/made/up")):
        assert (await ask(api.app, method, path).done()).status == 401
    for path in ("/livez", "/readyz", "/metrics", "/version", "/openapi.json"):
        assert (await ask(api.app, "GET", path).done()).status == 200
    allowed = await ask(api.app, "GET", "/v1/models", headers=[("AUTHORIZATION", "BEARER key-1")]).done()
    assert allowed.status == 200


async def admin(api: Api, method: str, path: str, body: Any = b"", **more: Any) -> Any:
    return await ask(api.admin, method, f"/admin/{path}", body, **{"headers": JSON, **more}).done()


async def test_draining_twice_is_draining_once_and_undraining_ends_it() -> None:
    api = Api()
    for _ in range(2):
        assert (await admin(api, "POST", "drain")).json == {"draining": True, "underWay": 0}
    for _ in range(2):
        assert (await admin(api, "POST", "undrain")).json == {"draining": False, "underWay": 0}
    assert (await ask(api.app, "GET", "/readyz").done()).status == 200


async def test_a_drain_needs_no_engine_and_an_operation_on_it_does() -> None:
    api = Api(ready=False)
    assert (await admin(api, "POST", "drain")).status == 200
    refused = await admin(api, "GET", "plan")
    assert (refused.status, refused.error["code"]) == (503, "not_ready")
    assert "retry-after" in refused.headers


async def test_a_strategy_is_in_force_when_the_engine_agreed() -> None:
    api = Api()
    heard: list[str] = []
    api.serving.on_strategy = heard.append
    api.engine.process.react = lambda message: api.engine.send(
        wire.AdminReply(message.call_id, 200, {"said": message.body})  # type: ignore[union-attr]
    )
    answer = await admin(api, "PUT", "strategy", {"strategy": "NoBuffer"})
    assert (answer.status, answer.json) == (200, {"said": {"strategy": "NoBuffer"}})
    assert heard == ["NoBuffer"]


@pytest.mark.parametrize(("status", "code"), [(400, "invalid_value"), (404, "not_found"), (409, "refused")])
async def test_what_the_engine_refuses_is_told_as_every_error_and_not_in_force(
    status: int, code: str
) -> None:
    api = Api()
    heard: list[str] = []
    api.serving.on_strategy = heard.append
    api.engine.process.react = lambda message: api.engine.send(
        wire.AdminReply(message.call_id, status, {"message": "19 more slots"})  # type: ignore[union-attr]
    )
    answer = await admin(api, "PUT", "strategy", {"strategy": "NoBuffer"})
    assert answer.status == status
    assert answer.json == {
        "error": {"message": "19 more slots", "type": "invalid_request_error", "param": None, "code": code}
    }
    assert heard == []


async def test_a_change_of_nothing_is_told_what_may_be_changed() -> None:
    answer = await admin(Api(), "PUT", "strategy", {"trackinterval": 5})
    assert (answer.status, answer.error["message"]) == (
        400, "strategy: give a strategy, trackInterval, maxCheckpointsPerPath or eviction",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("Authorization", "Bearer wrong")], 401),
        ([("Authorization", "Bearer t-1"), ("Origin", "http://evil.example")], 200),
        ([("authorization", "bearer t-1")], 200),
    ],
)
async def test_with_a_token_it_alone_decides(
    headers: list[tuple[str, str]], status: int, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t-1\n")
    api = Api(token=KeyFile(str(tmp_path / "token"), "admin_token_file"))
    assert (await admin(api, "POST", "drain", headers=headers)).status == status
    assert api.serving.drain.draining == (status == 200)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", ""])
async def test_without_a_token_no_page_in_a_browser_may_drain(origin: str) -> None:
    api = Api()
    refused = await admin(api, "POST", "drain", headers=[("ORIGIN", origin)])
    assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert not api.serving.drain.draining


async def test_an_operation_the_engine_does_not_answer_is_given_up_and_its_late_reply_dropped() -> None:
    engine = Engine()
    with pytest.raises(AdminTimeout, match=r"'plan' within 0\.02 s") as caught:
        await engine.client.admin("plan", {}, timeout=0.02)
    assert (caught.value.status, caught.value.code) == (504, "engine_timeout")
    [call] = engine.messages(wire.AdminCall)
    engine.send(wire.AdminReply(call.call_id, 200, {"late": True}))
    engine.process.react = lambda message: engine.send(
        wire.AdminReply(message.call_id, 200, {"of": message.call_id})  # type: ignore[union-attr]
    )
    reply = await engine.client.admin("ledger", {})
    assert reply.body == {"of": call.call_id + 1}


async def test_the_end_of_the_engine_ends_an_operation_under_way() -> None:
    api = Api()
    asked = ask(api.admin, "GET", "/admin/ledger")
    await until(lambda: api.engine.messages(wire.AdminCall))
    api.engine.dies()
    await asked.done()
    assert (asked.status, asked.error["code"]) == (503, EngineLost.code)
    assert "signal 9" in asked.error["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8001", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:8001", 200),
        ("10.0.0.7", 200),
        ("evil.example", 403), ("evil.example:8001", 403), ("127.0.0.1.evil.example", 403),
        ("evil@127.0.0.1", 403), ("", 403), ("[::1", 403),
    ],
)  # fmt: skip
async def test_without_a_token_a_foreign_name_of_this_host_opens_nothing(host: str, status: int) -> None:
    answer = await admin(Api(), "POST", "drain", headers=[("Host", host)])
    assert answer.status == status


async def test_with_a_token_the_host_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    api = Api(token=KeyFile(str(tmp_path / "token"), "admin_token_file"))
    headers = [("Host", "engine.example"), ("Authorization", "Bearer t")]
    assert (await admin(api, "POST", "drain", headers=headers)).status == 200


async def test_the_tokenizer_is_given_to_whom_has_not_the_same_already(tmp_path: Path) -> None:
    api = Api(ready=False)
    early = await ask(api.app, "GET", "/v1/tokenizer").done()
    assert (early.status, early.error["code"]) == (503, "not_ready")
    TOKENIZER.rust.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 5000}')
    api.serving.text_files = tmp_path

    given = await ask(api.app, "GET", "/v1/tokenizer").done()

    assert (given.status, given.headers["content-type"]) == (200, "application/zip")
    assert load_text_side(given.body).tokenizer.encode("a b") == TOKENIZER.encode("a b")
    tag = given.headers["etag"]
    for known, status in ((tag, 304), (f'"other", {tag}', 304), ('"other"', 200)):
        again = await ask(api.app, "GET", "/v1/tokenizer", headers=[("If-None-Match", known)]).done()
        assert (again.status, again.headers["etag"]) == (status, tag)
        assert again.body == (given.body if status == 200 else b"")


async def test_the_tokenizer_is_below_the_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k\n")
    api = Api(keys=KeyFile(str(tmp_path / "keys"), "api_key_file"))
    assert (await ask(api.app, "GET", "/v1/tokenizer").done()).status == 401
