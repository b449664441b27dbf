"""Transfers between a server and a client over real sockets: outcomes, aborts, expiry, and damage."""

from typing import Any

import msgspec
import pytest

from eventually import wait_until
from mamba_transfer import HotPrefix, Peer, TransferClient, Verdict, Wanted
from mamba_transfer.frames import Connection
from mamba_transfer.socket_transport import SocketTransport
from transfer_models import layout_of, mamba_model
from transfer_peers import (
    EXPORT,
    LAYOUT,
    PAGES,
    WANTED,
    HeldExports,
    bundle,
    fault,
    serving,
)

FAR = 1e9
"""A deadline that never comes."""


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_bundle_arrives_whole_and_only_there() -> None:
    _, buffers = bundle(seed=1)
    target, landing = bundle()
    source = HeldExports(buffers, 30, FakeClock())
    with serving(source) as (_, peer):
        outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR)
    size = LAYOUT.state_bytes + PAGES * LAYOUT.page_bytes
    assert (outcome.verdict, outcome.received, outcome.writer) == (Verdict.VALID, size, None)
    assert source.ends == [True]
    outside = bytearray(target)
    for mine, theirs in zip(landing, buffers, strict=True):
        assert mine == theirs
        mine[:] = bytes(mine.nbytes)
    assert outside != target
    assert not any(target), "bytes landed outside the bundle"


def test_pages_that_the_reader_has_do_not_travel() -> None:
    _, buffers = bundle(seed=1)
    size = LAYOUT.page_bytes
    last = [buffers[0], buffers[-1]]
    source = HeldExports(last, 30, FakeClock())
    pages = last[1].nbytes // size
    wanted = msgspec.structs.replace(WANTED, base=(PAGES - pages) * LAYOUT.page_size)
    landing = [memoryview(bytearray(each.nbytes)) for each in last]
    with serving(source) as (_, peer):
        outcome = TransferClient(LAYOUT).fetch(peer, wanted, landing, deadline=FAR)
    assert outcome.received == LAYOUT.state_bytes + pages * size
    assert landing == last


def test_a_prefix_that_is_asked_for_by_its_tokens_reaches_the_source() -> None:
    seen = []

    class Tree(HeldExports):
        def open(self, wanted: Wanted) -> None:
            seen.append((wanted.prefix(), wanted.salt, wanted.depth))

    wanted = Wanted.of_prefix(range(LAYOUT.page_size), "tenant")
    landing = [memoryview(bytearray(LAYOUT.state_bytes)), memoryview(bytearray(LAYOUT.page_bytes))]
    with serving(Tree([], 30, FakeClock())) as (_, peer):
        outcome = TransferClient(LAYOUT).fetch(peer, wanted, landing, deadline=FAR)
    assert outcome.verdict is Verdict.EXPIRED
    assert seen == [(tuple(range(LAYOUT.page_size)), "tenant", LAYOUT.page_size)]


def test_a_reader_with_more_ranks_gets_its_own_part() -> None:
    model = mamba_model(1, 1)
    whole, half = layout_of(model), layout_of(model, 1, 2)
    memory = [memoryview(bytearray(range(256)) * 64)[: whole.state_bytes]]
    landing = [memoryview(bytearray(half.state_bytes))]
    wanted = Wanted(depth=0, export=EXPORT)
    with serving(HeldExports(memory, 30, FakeClock()), layout=whole) as (_, peer):
        outcome = TransferClient(half).fetch(peer, wanted, landing, deadline=FAR)
    assert (outcome.verdict, outcome.received) == (Verdict.VALID, half.state_bytes)


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        (msgspec.structs.replace(LAYOUT, fingerprint="others"), "fingerprint"),
        (layout_of(mamba_model(1, 1)), "state.layers"),
    ],
)
def test_a_reader_that_does_not_fit_is_refused_with_the_field(layout: Any, field: str) -> None:
    source = HeldExports([], 30, FakeClock())
    landing = [memoryview(bytearray(layout.state_bytes))]
    with serving(source) as (_, peer):
        outcome = TransferClient(layout).fetch(peer, Wanted(0, export=EXPORT), landing, deadline=FAR)
    assert (outcome.verdict, source.opened) == (Verdict.REFUSED, 0)
    assert outcome.detail.startswith(field)


class ForeignTransport(SocketTransport):
    """A transport that only the reader has."""

    name = "nixl"


def test_a_source_without_the_readers_transport_refuses_it_by_name() -> None:
    _, landing = bundle()
    source = HeldExports([], 30, FakeClock())
    with serving(source) as (_, peer):
        client = TransferClient(LAYOUT, transport=ForeignTransport())
        outcome = client.fetch(peer, WANTED, landing, deadline=FAR)
    assert (outcome.verdict, source.opened) == (Verdict.REFUSED, 0)
    assert (
        "transport (sockets here, nixl there): give both engines one --transfer-transport" in outcome.detail
    )


def test_another_incarnation_and_an_unknown_export_are_expired() -> None:
    _, landing = bundle()
    source = HeldExports([], 30, FakeClock())
    with serving(source) as (_, peer):
        client = TransferClient(LAYOUT)
        other = client.fetch(Peer(peer.address, "second"), WANTED, landing, deadline=FAR)
        unknown = msgspec.structs.replace(WANTED, export="export-2")
        gone = client.fetch(peer, unknown, landing, deadline=FAR)
    assert (other.verdict, gone.verdict, source.opened) == (Verdict.EXPIRED, Verdict.EXPIRED, 0)


def test_a_peer_that_is_not_there_is_lost() -> None:
    _, landing = bundle()
    with serving(HeldExports([], 30, FakeClock())) as (_, peer):
        pass
    assert TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.LOST


def test_landing_memory_of_the_wrong_size_never_meets_a_byte() -> None:
    _, landing = bundle()
    with serving(HeldExports([], 30, FakeClock())) as (_, peer), pytest.raises(ValueError, match="landing"):
        TransferClient(LAYOUT).fetch(peer, WANTED, landing[:1], deadline=FAR)


@pytest.mark.parametrize(
    "point",
    [
        "before hello",
        "after ok",
        "before fetch",
        "after offer",
        "amid bytes",
        "after checksums",
        "before done",
    ],
)
def test_a_cancelled_fetch_ends_at_once_and_its_export_with_it(point: str) -> None:
    arena, landing = bundle()
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 600, FakeClock())
    cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        cancelled = True

    with serving(source) as (server, peer):
        with fault(point, cancel, server_side=False):
            outcome = TransferClient(LAYOUT).fetch(
                peer, WANTED, landing, deadline=FAR, cancelled=lambda: cancelled
            )
        before = bytes(arena)
        assert (outcome.verdict, outcome.writer) == (Verdict.CANCELLED, None)
        wait_until(lambda: server.connections == 0)
        assert source.ends == [False] * source.opened
    assert arena == before


@pytest.mark.parametrize("point", ["before offer", "amid bytes", "before checksums", "after done"])
def test_a_lease_that_ends_makes_no_fetch_valid(point: str) -> None:
    clock = FakeClock()
    _, landing = bundle()
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 30, clock)

    def expire() -> None:
        clock.seconds += 31

    with serving(source) as (server, peer):
        with fault(point, expire, server_side=True):
            outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR)
        wait_until(lambda: server.connections == 0)
    # Amid the bytes the source closes the connection; else it has the time to say so.
    assert outcome.verdict is (Verdict.LOST if point in ("before offer", "amid bytes") else Verdict.EXPIRED)
    assert source.ends == [False]


def test_a_reader_that_takes_bytes_renews_its_lease() -> None:
    clock = FakeClock()
    _, landing = bundle()
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 30, clock)
    with serving(source) as (_, peer):
        for point in ("amid bytes", "before checksums"):
            with fault(point, lambda: setattr(clock, "seconds", clock.seconds + 20), server_side=True):
                outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR)
            assert outcome.verdict is Verdict.VALID


def test_exports_that_wait_for_their_reader_are_renewed_by_name() -> None:
    source = HeldExports([], 30, FakeClock())
    with serving(source) as (_, peer):
        client = TransferClient(LAYOUT)
        assert client.renew(peer, [EXPORT, "export-2"], deadline=FAR) == {EXPORT}
        assert client.renew(Peer(peer.address, "second"), [EXPORT], deadline=FAR) == frozenset()
    assert source.renewed == [EXPORT, "export-2"]
    assert client.renew(peer, [EXPORT], deadline=FAR) == frozenset()


@pytest.mark.parametrize("place", ["first", "state", "last"])
def test_a_bit_that_flips_on_the_way_is_noticed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, landing = bundle()
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 30, FakeClock())
    target = {"first": (0, 0), "state": (0, LAYOUT.state_bytes // 2), "last": (-1, landing[-1].nbytes - 1)}[
        place
    ]
    receive = Connection.receive_into

    def flip(self: Connection, piece: memoryview, limit: Any) -> None:
        receive(self, piece, limit)
        buffer, offset = landing[target[0]], target[1]
        if piece.nbytes > 1 << 16 and not flipped and buffer[offset] == buffers[target[0]][offset]:
            buffer[offset] ^= 1
            flipped.append(True)

    flipped: list[bool] = []
    pieces = Connection.receive_pieces

    def flip_pieces(self: Connection, parts: Any, limit: Any) -> None:
        pieces(self, parts, limit)
        buffer, offset = landing[target[0]], target[1]
        if not flipped and buffer[offset] == buffers[target[0]][offset]:
            buffer[offset] ^= 1
            flipped.append(True)

    monkeypatch.setattr(Connection, "receive_into", flip)
    monkeypatch.setattr(Connection, "receive_pieces", flip_pieces)
    with serving(source) as (server, peer):
        outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR)
        wait_until(lambda: server.connections == 0)
    assert flipped
    assert outcome.verdict is Verdict.CORRUPT
    assert source.ends == [False]


def test_a_source_that_fails_is_lost_and_the_server_serves_on() -> None:
    _, landing = bundle()
    _, buffers = bundle(seed=1)

    class Failing(HeldExports):
        def open(self, wanted: Wanted) -> Any:
            if not self.renewed:
                self.renewed.append("failed")
                raise RuntimeError("the engine went away")
            return super().open(wanted)

    with serving(Failing(buffers, 30, FakeClock())) as (_, peer):
        client = TransferClient(LAYOUT)
        assert client.fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.LOST
        assert client.fetch(peer, WANTED, landing, deadline=FAR).verdict is Verdict.VALID


def test_closing_the_server_ends_a_transfer_and_its_export() -> None:
    _, landing = bundle()
    _, buffers = bundle(seed=1)
    source = HeldExports(buffers, 600, FakeClock())
    with serving(source) as (server, peer):
        with fault("amid bytes", server.close, server_side=False):
            outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=FAR)
        assert outcome.verdict is Verdict.LOST
        assert source.ends == [False]
        assert server.connections == 0


def hot(tokens: int) -> HotPrefix:
    return HotPrefix("salt", bytes(4 * tokens), 7)


def test_a_reader_that_knows_the_address_alone_learns_the_hottest_prefixes_and_who_has_them() -> None:
    source = HeldExports(bundle(seed=1)[1], 30, FakeClock())
    source.hot = [hot(depth) for depth in (16, 48, 32)]
    with serving(source) as (_, peer):
        client = TransferClient(LAYOUT)
        answer = client.hottest(peer.address, 2, deadline=FAR)
        assert answer is not None
        assert (answer.incarnation, [each.depth for each in answer.prefixes]) == (peer.incarnation, [16, 48])
        # The connection that asked is over, and the incarnation of the answer is good for a fetch.
        outcome = client.fetch(Peer(peer.address, answer.incarnation), WANTED, bundle()[1], deadline=FAR)
        assert outcome.verdict is Verdict.VALID


def test_an_answer_has_no_more_token_ids_than_a_reader_takes() -> None:
    source = HeldExports(bundle(seed=1)[1], 30, FakeClock())
    source.hot = [hot(1 << 20)] * 10
    with serving(source) as (_, peer):
        answer = TransferClient(LAYOUT).hottest(peer.address, 10, deadline=FAR)
    assert answer is not None
    assert len(answer.prefixes) == 4


def test_a_peer_of_another_layout_and_one_that_is_away_have_no_prefixes() -> None:
    source = HeldExports(bundle(seed=1)[1], 30, FakeClock())
    other = msgspec.structs.replace(LAYOUT, fingerprint="other")
    with serving(source) as (_, peer):
        assert TransferClient(other).hottest(peer.address, 1, deadline=FAR) is None
    assert TransferClient(LAYOUT).hottest(peer.address, 1, deadline=FAR) is None
