"""Answers of an engine to a gateway that requests its checkpoints."""

import asyncio
from pathlib import Path

import pytest

from asgi import ask
from mamba_edge.api_keys import KeyFile
from mamba_prefix.messages import Feed, pack_entries, unpack
from mamba_prefix.prefix_index import entries_of
from scripted_engine import Api
from virtual_time import in_virtual_time


def started() -> Api:
    api = Api()
    changes = api.serving.engine.changes
    changes.engine = "pod-1"
    changes.start("model", 16)
    changes.take(1, cleared=False, gained=pack_entries({5: 16, 7: 32}), lost=b"")
    return api


async def feed(api: Api, query: str = "") -> Feed:
    answer = await ask(api.app, "GET", "/v1/prefix_changes", query=query).done()
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack")
    message = unpack(answer.body)
    assert isinstance(message, Feed)
    return message


async def test_who_knows_nothing_gets_a_snapshot_and_then_what_has_changed() -> None:
    api = started()
    first = await feed(api)
    assert first.snapshot is not None
    assert sorted(entries_of(first.snapshot.entries)["hash"].tolist()) == [5, 7]
    assert (first.heartbeat.engine, first.heartbeat.page_size, first.snapshot.seq) == ("pod-1", 16, 2)
    changes = api.serving.engine.changes
    changes.take(1, cleared=False, gained=pack_entries({9: 48}), lost=b"")
    second = await feed(api, f"incarnation={first.snapshot.incarnation}&since=2")
    assert second.snapshot is None
    assert [each.seq for each in second.changes] == [3]


@in_virtual_time
async def test_who_is_up_to_date_waits_for_the_next_change_and_no_longer_than_it_said() -> None:
    api = started()
    changes = api.serving.engine.changes
    query = f"incarnation={changes.incarnation}&since={changes.seq}&wait=4"
    waiting = asyncio.create_task(feed(api, query))
    await asyncio.sleep(2)
    assert not waiting.done()
    changes.take(1, cleared=False, gained=pack_entries({9: 48}), lost=b"")
    assert len((await waiting).changes) == 1
    loop = asyncio.get_running_loop()
    began = loop.time()
    query = f"incarnation={changes.incarnation}&since={changes.seq}&wait=4"
    assert (await feed(api, query)).changes == []
    assert loop.time() - began == pytest.approx(4, abs=0.5)


@in_virtual_time
async def test_who_waits_when_the_server_ends_is_let_go() -> None:
    api = started()
    changes = api.serving.engine.changes
    waiting = asyncio.create_task(feed(api, f"incarnation={changes.incarnation}&since={changes.seq}&wait=30"))
    await asyncio.sleep(1)
    changes.close()
    await asyncio.wait_for(waiting, 1)


@in_virtual_time
async def test_a_new_engine_process_is_told_at_once_with_what_it_has() -> None:
    api = started()
    changes = api.serving.engine.changes
    waiting = asyncio.create_task(feed(api, f"incarnation={changes.incarnation}&since={changes.seq}&wait=30"))
    await asyncio.sleep(1)
    changes.lose()
    told = await asyncio.wait_for(waiting, 1)
    assert told.snapshot is not None
    assert told.snapshot.entries == b""


@pytest.mark.parametrize("query", ["since=-1", "wait=31", "wait=nan", "wait=x", "incarnation=" + "x" * 65])
async def test_a_wrong_parameter_is_refused_by_name(query: str) -> None:
    answer = await ask(started().app, "GET", "/v1/prefix_changes", query=query).done()
    assert answer.status == 400
    assert query.partition("=")[0] in answer.json["error"]["message"]


async def test_it_needs_a_key_where_the_others_do(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    api = Api(keys=KeyFile(tmp_path / "keys", "api_key_file"))
    assert (await ask(api.app, "GET", "/v1/prefix_changes").done()).status == 401


@pytest.mark.parametrize(
    ("keys", "statuses"),
    [
        ("one\n", {"one": 200, "none": 401}),
        ("one team\nnew team\n", {"one": 200, "new": 200}),
        ("one\ntwo gateway\n", {"one": 403, "two": 200}),
        ("one team\ntwo other\n", {"one": 403, "two": 403}),
    ],
)
async def test_clients_beside_others_cannot_ask_what_is_cached_and_gateways_can(
    tmp_path: Path, keys: str, statuses: dict[str, int]
) -> None:
    (tmp_path / "keys").write_text(keys)
    api = Api(keys=KeyFile(tmp_path / "keys", "api_key_file"))
    for key, status in statuses.items():
        headers = [("authorization", f"Bearer {key}")]
        answer = await ask(api.app, "GET", "/v1/prefix_changes", headers=headers).done()
        assert answer.status == status
        if status == 403:
            assert "KEY gateway" in answer.json["error"]["message"]
        models = await ask(api.app, "GET", "/v1/models", headers=headers).done()
        assert models.status == (401 if status == 401 else 200)
