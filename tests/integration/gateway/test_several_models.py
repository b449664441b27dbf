"""Several models at one address: who serves a request, who may use which model, and who joins or leaves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

PATH = "/v1/completions"


def entry(name: str, engine: Any = None, **more: Any) -> dict[str, Any]:
    """Return the entry of a model with one engine, which gives up waiting for it soon."""
    own = {"backend": [engine.url] if engine is not None else ["http://127.0.0.1:9"]}
    return {"name": name, **more, "settings": {**own, **more.get("settings", {})}}


def write(file: Path, *models: dict[str, Any], **more: Any) -> str:
    file.write_text(json.dumps({"models": models, **more}))
    return str(file)


async def post(
    client: aiohttp.ClientSession, through: Any, model: str | None, key: str = "", **body: Any
) -> tuple[int, dict[str, Any], dict[str, str]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    named = {} if model is None else {"model": model}
    async with client.post(through.url + PATH, json={**named, "prompt": "x", **body}, headers=headers) as got:
        return got.status, await got.json(), dict(got.headers)


async def get(client: aiohttp.ClientSession, through: Any, path: str, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with client.get(through.url + path, headers=headers) as got:
        return got.status, await got.json()


async def test_each_name_reaches_the_engines_of_its_model_under_the_name_that_they_serve(
    engine, gateway, client, tmp_path
) -> None:
    nano = await engine("nano", models=("nano",))
    small = await engine("small", models=("v2/small",))
    file = write(
        tmp_path / "models.json",
        entry("nano", nano, aliases=["gpt-4o"]),
        entry("small", small, served_name="v2/small"),
        default="small",
    )
    through = await gateway(nano, small, backend=(), models_file=file)

    async def served(name: str | None) -> tuple[str, str, str | None]:
        counts = len(nano.bodies), len(small.bodies)
        status, _, headers = await post(client, through, name)
        assert status == 200
        by = nano if len(nano.bodies) > counts[0] else small
        assert (len(nano.bodies), len(small.bodies)) != counts
        return by.name, json.loads(by.bodies[-1])["model"], headers.get("x-mambaserve-model")

    assert await served("nano") == ("nano", "nano", None)
    assert await served("gpt-4o") == ("nano", "nano", "nano")
    assert await served("small") == ("small", "v2/small", None)
    assert await served("never-heard-of") == ("small", "v2/small", "small")
    assert await served(None) == ("small", "v2/small", "small")
    _, listed = await get(client, through, "/v1/models")
    shown = [(card["id"], card["state"], card.get("alias_of")) for card in listed["data"]]
    assert shown == [("nano", "ready", None), ("gpt-4o", "ready", "nano"), ("small", "ready", None)]
    assert (await get(client, through, "/v1/models/gpt-4o"))[1]["alias_of"] == "nano"
    numbers = await through.metrics(client)
    assert numbers['mambaserve_gateway_model_ready_engines{model="nano"}'] == 1
    counted = {name: value for name, value in numbers.items() if "gateway_requests_total" in name}
    assert sum(value for name, value in counted.items() if 'model="nano"' in name) == 2
    assert not any("gpt-4o" in name or "never" in name for name in counted)


async def test_a_key_without_rights_gets_403_and_learns_no_name(
    engine, gateway, client, wait_ready, tmp_path
) -> None:
    nano, small = await engine("nano", models=("nano",)), await engine("small", models=("small",))
    file = write(
        tmp_path / "models.json",
        entry("nano", nano, fallbacks=["small"]), entry("small", small, aliases=["tiny"]),
        default="small",
        access=[{"key": "all", "models": ["*"]}, {"key": "one", "models": ["nano"]}],
    )  # fmt: skip
    keys = tmp_path / "keys"
    keys.write_text("sk-all all\nsk-one one\nsk-none none\n")
    through = await gateway(nano, small, backend=(), models_file=file, api_key_file=str(keys))
    assert [(await post(client, through, name, "sk-all"))[0] for name in ("nano", "small", "other")] == [
        200
    ] * 3
    assert (await post(client, through, "nano", "sk-one"))[0] == 200
    # The only model of a key serves requests without a model, and the default is none of its models.
    assert (await post(client, through, None, "sk-one"))[2]["x-mambaserve-model"] == "nano"
    refusals = [await post(client, through, name, "sk-one") for name in ("small", "tiny", "no-such-model")]
    assert [status for status, _, _ in refusals] == [403] * 3
    assert len({json.dumps(body) for _, body, _ in refusals}) == 1
    assert refusals[0][1]["error"]["code"] == "model_forbidden"
    for name in (None, "nano", "small"):
        assert (await post(client, through, name, "sk-none"))[0] == 403
    assert (await get(client, through, "/v1/models", "sk-none")) == (200, {"object": "list", "data": []})
    _, listed = await get(client, through, "/v1/models", "sk-one")
    assert [card["id"] for card in listed["data"]] == ["nano"]
    hidden, absent = [await get(client, through, f"/v1/models/{name}", "sk-one") for name in ("tiny", "x")]
    assert (hidden[0], hidden) == (403, absent)
    for path in ("/v1/status", "/v1/routing/decisions"):
        assert (await get(client, through, path, "sk-one"))[0] == 403
        assert (await get(client, through, path, "sk-all"))[0] == 200
    # A model that the key may not use is no fallback for it.
    nano.ready = False
    await wait_ready(through, 1)
    refused = await post(client, through, "nano", "sk-one")
    assert (refused[0], "small" in json.dumps(refused[1])) == (503, False)
    readiness = (await get(client, through, "/readyz"))[1]
    assert (readiness["endpoints"], readiness["reasons"]) == ({"known": 2, "ready": 1}, {})


async def test_a_fallback_serves_only_while_its_model_has_no_ready_engine_and_says_so(
    engine, gateway, client, wait_ready, tmp_path
) -> None:
    large, small = await engine("large", models=("large",)), await engine("small", models=("small",))
    large.ready = False
    file = write(tmp_path / "m.json", entry("large", large, fallbacks=["small"]), entry("small", small))
    through = await gateway(large, small, backend=(), models_file=file)
    status, _, headers = await post(client, through, "large")
    assert (status, headers["x-mambaserve-model"]) == (200, "small")
    assert headers["x-mambaserve-fallback-for"] == "large"
    assert json.loads(small.bodies[0])["model"] == "small"
    _, listed = await get(client, through, "/v1/models")
    assert [card["state"] for card in listed["data"]] == ["starting", "ready"]
    large.ready = True
    await wait_ready(through, 2)
    status, _, headers = await post(client, through, "large")
    assert (status, len(large.bodies), "x-mambaserve-fallback-for" in headers) == (200, 1, False)
    numbers = await through.metrics(client)
    assert numbers['mambaserve_gateway_fallbacks_total{model="large",served_by="small"}'] == 1


async def test_requests_that_wait_for_one_model_take_no_place_of_another(
    engine, gateway, client, tmp_path
) -> None:
    asleep, awake = (
        await engine("asleep", models=("asleep",), ready=False),
        await engine("b", models=("awake",)),
    )
    few = {"max_in_flight": 2, "max_queue": 2, "hold_timeout": 600}
    file = write(
        tmp_path / "m.json", entry("asleep", asleep, settings=few), entry("awake", awake, settings=few)
    )
    through = await gateway(asleep, awake, backend=(), models_file=file, max_in_flight=2, max_queue=2)
    waiting = [asyncio.create_task(post(client, through, "asleep")) for _ in range(4)]
    for _ in range(500):
        if (await through.metrics(client))['mambaserve_gateway_model_queued{model="asleep"}'] == 4:
            break
        await asyncio.sleep(0.01)
    assert (await post(client, through, "asleep"))[0] == 429
    answers = await asyncio.gather(*(post(client, through, "awake") for _ in range(4)))
    assert [status for status, _, _ in answers] == [200] * 4
    assert not any(task.done() for task in waiting)
    asleep.ready = True
    assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200] * 4


async def test_models_join_and_leave_without_a_lost_request(engine, gateway, client, tmp_path) -> None:
    old, staying = await engine("old", models=("old",)), await engine("staying", models=("staying",))
    new, late = await engine("new", models=("new",)), await engine("late", models=("late",), ready=False)
    file = tmp_path / "m.json"
    patient = {"hold_timeout": 600}
    write(file, entry("old", old), entry("staying", staying), entry("late", late, settings=patient))
    # Each look at an engine is an instant that the clock of these tests stops at.
    through = await gateway(old, staying, backend=(), models_file=str(file), probe_interval=0.5)
    others: list[int] = []
    done = asyncio.Event()

    async def traffic() -> None:
        while not done.is_set():
            others.append((await post(client, through, "staying"))[0])
            await asyncio.sleep(0.5)

    asking = asyncio.create_task(traffic())
    held = asyncio.create_task(post(client, through, "late"))
    body = {"model": "old", "prompt": "x", "stream": True, "max_tokens": 8, "gap": 1.0}
    async with client.post(through.url + PATH, json=body) as stream:
        await stream.content.readany()
        write(file, entry("staying", staying, aliases=["s"]), entry("new", new))
        await asyncio.sleep(3)
        assert (await post(client, through, "new"))[0] == 200
        assert (await post(client, through, "old"))[0] == 404
        assert (await post(client, through, "s"))[0] == 200
        rest = await stream.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    late.ready = True  # also a request that waits for an engine of a model that has left is answered
    assert (await held)[0] == 200
    file.write_text('{"models": [{"name": "staying", "backends": []}]}')
    await asyncio.sleep(5)
    assert (await post(client, through, "new"))[0] == 200
    done.set()
    await asking
    assert set(others) == {200}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"models": [{"name": "a"}, {"name": "b", "aliases": ["a"]}]}, "'a' names two models"),
        ({"models": [{"name": "a", "fallbacks": ["b"]}]}, "the fallback 'b' is no name"),
        ({"models": [], "default": "a"}, "the default 'a'"),
        (
            {"models": [{"name": "a", "settings": {"port": 1}}]},
            "settings.port is no setting of a single model",
        ),
        ({"models": [{"name": "a"}]}, "a: give either --backend"),
    ],
)
async def test_a_wrong_document_ends_the_start_with_what_is_wrong(
    gateway, tmp_path, document: dict[str, Any], complaint: str
) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=complaint):
        await gateway(backend=(), models_file=str(file), wait=False)
