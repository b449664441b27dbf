"""An engine's log: who reads it in whatever pieces knows the checkpoints; the too slow take them whole."""

import asyncio
import contextlib
from random import Random

import msgspec
import pytest

from mamba_prefix.change_log import MAX_CHANGES, ChangeLog
from mamba_prefix.errors import ForeignMessage
from mamba_prefix.messages import VERSION, Change, Feed, Snapshot, pack, pack_entries, pack_hashes, unpack
from mamba_prefix.prefix_index import entries_of, hashes_of
from virtual_time import in_virtual_time

PAGES = {Change: ("pages_gained", "pages_lost"), Snapshot: ("pages",)}


def make() -> ChangeLog:
    names = iter("abcdefgh")
    log = ChangeLog("engine", wall=lambda: 1.5, new_incarnation=lambda: next(names))
    log.start("model", 16)
    return log


def gain(log: ChangeLog, *hashes: int) -> None:
    log.take(log.epoch, cleared=False, gained=pack_entries(dict.fromkeys(hashes, 16)), lost=b"")


def test_a_reader_gets_what_came_after_where_it_stopped() -> None:
    log = make()
    gain(log, 1)
    gain(log, 2)
    changes = log.since("a", 1)
    assert [(each.seq, hashes_of(each.lost).tolist()) for each in changes or ()] == [(2, []), (3, [])]
    assert log.since("a", 3) == []
    assert [each.seq for each in log.since("a", 0, 2) or ()] == [1, 2]


def test_who_read_another_incarnation_or_the_future_takes_a_snapshot() -> None:
    log = make()
    gain(log, 1)
    assert log.since("", 0) is None
    assert log.since("z", 1) is None
    assert log.since("a", 99) is None


def test_who_is_too_far_behind_takes_a_snapshot_and_nothing_grows_meanwhile() -> None:
    log = make()
    for number in range(1, MAX_CHANGES + 50):
        gain(log, number)
    assert log.since("a", 49) is None
    assert len(log.since("a", 50) or ()) == MAX_CHANGES
    assert len(entries_of(log.snapshot().entries)) == MAX_CHANGES + 49


def test_large_batches_are_kept_by_their_size() -> None:
    log = make()
    for number in range(20):
        gain(log, *range(number * 100_000 + 1, number * 100_000 + 50_001))
    kept = log.since(log.incarnation, log.seq - 5)
    assert kept is not None
    assert log.since(log.incarnation, log.seq - 10) is None


def test_the_first_batch_of_an_incarnation_voids_all_before_it() -> None:
    log = make()
    gain(log, 1)
    log.lose()
    (first,) = log.since("b", 0) or ()
    assert (first.cleared, first.seq, log.depths) == (True, 1, {})


@in_virtual_time
async def test_who_waits_is_woken_by_a_change_and_by_the_end() -> None:
    log = make()
    waiting = asyncio.create_task(log.wait_for_change())
    await asyncio.sleep(1)
    assert not waiting.done()
    gain(log, 1)
    await asyncio.wait_for(waiting, 1)
    waiting = asyncio.create_task(log.wait_for_change())
    await asyncio.sleep(0)
    log.close()
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(log.wait_for_change(), 1)


def test_every_message_comes_back_as_it_was() -> None:
    log = make()
    gain(log, 2**64 - 1, 1)
    log.take(
        2, cleared=True, gained=b"", lost=pack_hashes({1, 2**63}), pages_gained=pack_hashes({5, 2**64 - 1})
    )
    log.take(2, cleared=False, gained=b"", lost=b"", pages_lost=pack_hashes({5}))
    assert hashes_of(log.snapshot().pages).tolist() == [2**64 - 1]
    messages = [*(log.since("a", 0) or ()), log.heartbeat(), log.snapshot("5-1")]
    messages.append(Feed(log.heartbeat(), log.snapshot(), log.since("a", 1) or []))
    assert [unpack(pack(each)) for each in messages] == messages


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_torn_message_is_refused_in_words(cut: int) -> None:
    snapshot = Snapshot("e", "i", 1, 1, "f", 16, b"x" * cut)
    with pytest.raises(ForeignMessage):
        unpack(pack(snapshot))
    with pytest.raises(ForeignMessage):
        unpack(pack(Feed(make().heartbeat(), snapshot, [])))
    pages = Snapshot("e", "i", 1, 1, "f", 16, b"", pages=b"x" * cut)
    with pytest.raises(ForeignMessage):
        unpack(pack(Feed(make().heartbeat(), pages, [])))


def test_engines_and_gateways_of_the_version_before_understand_all_but_the_pages() -> None:
    log = make()
    log.take(1, cleared=False, gained=pack_entries({7: 16}), lost=b"", pages_gained=pack_hashes({5}))
    for message, since in ((log.snapshot(), 1), ((log.since("a", 1) or [])[0], 2)):
        fields = msgspec.msgpack.decode(pack(message))
        old = fields[:-since]  # what came behind the version is last
        assert old[-1] == VERSION
        heard = unpack(msgspec.msgpack.encode(old))
        assert heard == msgspec.structs.replace(message, **dict.fromkeys(PAGES[type(message)], b""))


def test_pages_alone_fill_the_log_as_checkpoints_do() -> None:
    log = make()
    for number in range(20):
        pages = pack_hashes(set(range(number * 100_000 + 1, number * 100_000 + 75_001)))
        log.take(1, cleared=False, gained=b"", lost=b"", pages_gained=pages)
    assert log.since("a", log.seq - 5) is not None
    assert log.since("a", log.seq - 10) is None
    log.lose()
    assert (log.incarnation, log.pages) == ("b", set())


def test_no_bytes_whatever_do_more_than_be_refused() -> None:
    rng, log = Random(0), make()
    raw = pack(Feed(log.heartbeat(), log.snapshot(), log.since("a", 0) or []))
    for _ in range(3000):
        changed = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        with contextlib.suppress(ForeignMessage):
            unpack(bytes(changed[: rng.randrange(len(raw) + 1)]))
