"""Routing of the engine's messages to requests, without a process."""

import asyncio

import pytest

from mamba_edge.errors import NotReady
from mamba_prefix.messages import pack_entries, pack_hashes
from mamba_server import wire
from mamba_server.api.engine_link.engine_client import MAX_UNREAD, EngineClient
from mamba_server.api.engine_link.inbox import Inbox
from mamba_server.api.requests.errors import EngineLost, EngineRefused

READY = wire.Ready(100, 64, (2,), {})


def add(request_id: str) -> wire.AddRequest:
    return wire.AddRequest(request_id, [1, 2], wire.SamplingParams(max_tokens=4))


def delta(request_id: str) -> wire.Outputs:
    return wire.Outputs([wire.SequenceDelta(request_id, 0, [5])])


@pytest.fixture
def client() -> EngineClient:
    made = EngineClient()
    made._route(READY)
    return made


def test_before_ready_nothing_is_taken() -> None:
    with pytest.raises(NotReady, match="starting"):
        EngineClient().submit([add("a")], Inbox())


def test_progress_is_the_state(client: EngineClient) -> None:
    fresh = EngineClient()
    fresh._route(wire.Progress("weights", 3, 10))
    assert (fresh.state.phase, fresh.state.stage, fresh.state.done, fresh.state.total) == (
        "loading", "weights", 3, 10,
    )  # fmt: skip
    client._route(wire.Progress("weights", 3, 10))
    assert client.state.phase == "restarting"


async def test_deltas_reach_the_inbox_of_their_request_and_no_other(client: EngineClient) -> None:
    one, two = Inbox(), Inbox()
    client.submit([add("a")], one)
    client.submit([add("b")], two)
    client._route(delta("b"))
    assert [item.request_id for item in await two.take()] == ["b"]
    assert client.waiting == 1
    assert client.open == 2


class Wire:
    """Messages sent to the engine."""

    def __init__(self, client: EngineClient) -> None:
        self.sent: list[wire.ToEngine] = []
        client._process = self  # type: ignore[assignment]

    def send(self, message: wire.ToEngine) -> None:
        self.sent.append(message)


async def test_what_is_given_up_before_the_engine_reads_costs_it_little_and_counts(
    client: EngineClient,
) -> None:
    sent = Wire(client)
    for number in range(1000):
        client.submit([add(str(number))], Inbox())
        client.close(str(number), abort=True)
    client.submit([add("live")], Inbox())
    assert len(sent.sent) == 2 * MAX_UNREAD
    assert (client.waiting, client.open) == (MAX_UNREAD + 1, 1)
    client._route(wire.Taken([str(number) for number in range(MAX_UNREAD)]))
    assert sent.sent[-1] == add("live")
    assert (client.waiting, client.open) == (1, 1)


def test_deltas_of_forgotten_requests_are_dropped(client: EngineClient) -> None:
    client.submit([add("a")], Inbox())
    client.close("a", abort=True)
    client._route(delta("a"))
    assert (client.open, client.waiting) == (0, 0)


async def test_a_rejection_ends_the_request(client: EngineClient) -> None:
    inbox = Inbox()
    client.submit([add("a")], inbox)
    client._route(wire.RequestRejected("a", 400, "invalid_request_error", "too_long", "no", None))
    with pytest.raises(EngineRefused) as caught:
        await inbox.take()
    assert (caught.value.status, caught.value.code) == (400, "too_long")
    assert client.open == 0


async def test_a_rejection_for_load_always_says_when_to_come_back(client: EngineClient) -> None:
    inbox = Inbox()
    client.submit([add("a")], inbox)
    client._route(wire.RequestRejected("a", 429, "rate_limit_error", "full", "no", None))
    with pytest.raises(EngineRefused) as caught:
        await inbox.take()
    assert caught.value.headers() == {"retry-after": "1"}


async def test_the_end_of_the_engine_ends_every_open_request(client: EngineClient) -> None:
    inboxes = [Inbox() for _ in range(5)]
    for number, inbox in enumerate(inboxes):
        client.submit([add(str(number))], inbox)
    client._fail_open_requests("the engine process was killed by signal 9")
    for inbox in inboxes:
        with pytest.raises(EngineLost, match="signal 9"):
            await inbox.take()
    assert client.open == client.waiting == 0
    with pytest.raises(NotReady):
        client.require_ready()


async def test_admin_calls_are_refused_until_ready() -> None:
    with pytest.raises(NotReady):
        await EngineClient().admin("plan", {})


def test_replies_nobody_waits_for_are_dropped(client: EngineClient) -> None:
    client._route(wire.AdminReply(77, 200, {}))
    assert client.state.phase == "ready"


def test_what_the_engine_has_cached_is_kept_for_gateways_until_it_ends(client: EngineClient) -> None:
    client._route(wire.Ready(100, 64, (2,), {}, fingerprint="model", page_size=16))
    first = client.changes.incarnation
    client._route(wire.PrefixChanges(1, False, pack_entries({7: 16, 9: 32}), b""))
    client._route(wire.PrefixChanges(1, False, b"", pack_hashes({7})))
    client._route(wire.PrefixChanges(2, True, pack_entries({5: 48}), b"", pack_hashes({5, 6, 8})))
    client._route(wire.PrefixChanges(2, False, b"", b"", pack_hashes({4}), pack_hashes({6})))
    assert (client.changes.depths, client.changes.epoch) == ({5: 48}, 2)
    assert client.changes.pages == {4, 5, 8}
    assert (client.changes.fingerprint, client.changes.page_size) == ("model", 16)
    client._fail_open_requests("killed")
    assert client.changes.depths == {}
    assert client.changes.incarnation != first


async def test_a_caller_that_is_cancelled_as_the_answer_comes_is_cancelled(client: EngineClient) -> None:
    asking = asyncio.create_task(client.admin("plan", {}))
    await asyncio.sleep(0)
    client._route(wire.AdminReply(next(iter(client._calls)), 200, {}))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not client._calls
