"""Requests whose state is on its way: they wait without a turn, and are answered right whatever happens."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE
from joined_engines import Joined, hand_over, joined, with_peer, with_source
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.boot import BootOverrides
from mamba_server.engine.transfers import importer
from mamba_server.wire import AbortRequest, AddRequest, AdminCall, Fetch
from mamba_transfer import HotPrefix, OpenExport, TransferServer, Wanted

PROMPT = list(range(100))
REQUEST = greedy("held", PROMPT, 6)


class StallingSource:
    """A source of which nobody gets an answer before `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = threading.Event()

    def open(self, request: Wanted) -> OpenExport | None:
        self.asked.set()
        self.go.wait(60)
        return None

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        raise AssertionError("nothing was opened")

    def hottest(self, count: int) -> Sequence[HotPrefix]:
        return []

    def release(self, export: str) -> bool:
        return False

    def renew(self, export: str) -> bool:
        return False


@contextmanager
def stalled(engine: Joined) -> Iterator[tuple[StallingSource, Fetch]]:
    """Serve a source that stalls; yield it, and the hint that leads to it."""
    source = StallingSource()
    server = TransferServer(engine.engine.state_layout, "stalls", source)
    address = server.start("127.0.0.1", 0)
    try:
        yield source, Fetch(str(address), "stalls", 96, "x")
    finally:
        source.go.set()
        server.close()


@pytest.fixture(scope="module")
def expected(random_model: Path) -> Answer:
    return run(boot(random_model), [REQUEST])["held", 0]


def boot(path: Path, **settings: Any) -> Any:
    return make_engine(path, **{"page_size": 16, "batch_invariant": True, **settings})


def held_request(fetch: Fetch, **fields: Any) -> AddRequest:
    return AddRequest("held", REQUEST.token_ids, REQUEST.params, fetch=fetch, **fields)


def assert_answered(engine: Joined, expected: Answer) -> None:
    answer = engine.answers["held", 0]
    assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)


def test_others_run_while_a_state_arrives_and_the_request_counts_as_waiting(
    random_model: Path, expected: Answer
) -> None:
    engine = Joined(boot(random_model))
    core = engine.core
    core._max_waiting = 2
    with joined(engine), stalled(engine) as (source, fetch):
        engine.add(held_request(fetch, n=2))
        engine.until(source.asked.is_set)
        answers = AdminCalls(core, {})
        listed = answers.answer(AdminCall(1, "requests")).body["requests"]
        assert [sequence["phase"] for sequence in listed] == ["arriving", "arriving"]
        assert answers.answer(AdminCall(2, "ledger")).body["waiting"] == 2
        assert not core.idle
        rejected = core.add(greedy("third", [1, 2], 1))
        assert rejected is not None
        assert rejected.status == 429
        core._max_waiting = 10
        engine.add(greedy("other", [5, 6, 7], 8))
        engine.until(
            lambda: ("other", 0) in engine.answers and bool(engine.answers["other", 0].finish_reason)
        )
        assert len(engine.answers["other", 0].tokens) == 8
        assert ("held", 0) not in engine.answers
        source.go.set()
        engine.until(lambda: core.idle)
        assert_answered(engine, expected)
        assert engine.outcomes("in") == {"expired": 1}
        engine.check_empty()


def test_an_aborted_request_leaves_nothing_once_its_reader_has_ended(random_model: Path) -> None:
    engine = Joined(boot(random_model))
    with joined(engine), stalled(engine) as (source, fetch):
        engine.add(held_request(fetch))
        engine.until(source.asked.is_set)
        engine.core.abort(AbortRequest("held"))
        assert engine.core.cache.capacity.quarantined == 1
        assert engine.core.idle
        engine.check_empty()
        assert engine.outcomes("in") == {"cancelled": 1}
        assert not engine.answers


def test_a_request_that_waits_for_a_place_can_be_aborted_too(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MOST_RECEPTIONS", 1)
    engine = Joined(boot(random_model))
    with joined(engine), stalled(engine) as (source, fetch):
        engine.add(held_request(fetch))
        engine.add(AddRequest("second", REQUEST.token_ids, REQUEST.params, fetch=fetch))
        engine.until(source.asked.is_set)
        engine.core.abort(AbortRequest("second"))
        engine.core.abort(AbortRequest("held"))
        engine.check_empty()
        assert engine.core.idle


def test_a_state_that_does_not_come_in_time_is_computed(random_model: Path, expected: Answer) -> None:
    engine = Joined(boot(random_model), transfer_lease=0.2)
    with joined(engine), stalled(engine) as (_, fetch):
        engine.run(held_request(fetch))
        assert_answered(engine, expected)
        assert sum(engine.outcomes("in").values()) == 1
        assert "valid" not in engine.outcomes("in")
        engine.check_empty()


def test_where_memory_is_short_the_state_is_not_awaited(random_model: Path, expected: Answer) -> None:
    engine = Joined(boot(random_model, trial=BootOverrides(fail=lambda site: site.value == "receive")))
    with joined(engine), stalled(engine) as (source, fetch):
        engine.run(held_request(fetch))
        assert_answered(engine, expected)
        assert engine.outcomes("in") == {"no_memory": 1}
        assert not source.asked.is_set()
        engine.check_empty()


def test_a_prompt_that_is_cached_already_fetches_nothing(random_model: Path, expected: Answer) -> None:
    engine = Joined(boot(random_model))
    with joined(engine), stalled(engine) as (source, fetch):
        engine.run(greedy("before", PROMPT, 1))
        engine.run(held_request(fetch))
        assert_answered(engine, expected)
        assert not source.asked.is_set()


PLACES = (0, 3, 40, 600, 2_000, 5_000, 20_000, 40_000)
"""Bytes of the answer of a transfer server: greetings, descriptions, and pages and states behind them."""


class DamagingProxy:
    """A relay to a transfer server that flips one bit of what it sends, or ends the connection there."""

    def __init__(self, port: int, place: int, *, cuts: bool) -> None:
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port, self._place = port, place
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        end, _ = self._listener.accept()
        with end, socket.create_connection(("127.0.0.1", self._port)) as far:
            asking = threading.Thread(target=self._relay, args=(end, far, -1))
            asking.start()
            self._relay(far, end, self._place)
            asking.join()

    def _relay(self, source: socket.socket, sink: socket.socket, place: int) -> None:
        count = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if count <= place < count + len(data):
                    if self._cuts:
                        sink.sendall(data[: place - count])
                        sink.shutdown(socket.SHUT_RDWR)
                        source.shutdown(socket.SHUT_RDWR)
                        return
                    data[place - count] ^= 0x10
                count += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    ("place", "cuts"),
    [
        *((place, False) for place in (PLACES if LARGE else PLACES[1::3])),
        *((place, True) for place in (PLACES if LARGE else PLACES[::4])),
    ],
)
def test_damage_on_the_way_is_never_used(
    random_model: Path, expected: Answer, place: int, cuts: bool
) -> None:
    prefill, decode = (Joined(boot(random_model), transfer_lease=1.5) for _ in range(2))
    proxy = DamagingProxy(int(prefill.endpoint.address.rpartition(":")[2]), place, cuts=cuts)
    with joined(prefill, decode):
        prefill.run(msgspec.structs.replace(REQUEST, hand_over=True))
        request = with_source(REQUEST, prefill)
        assert request.fetch is not None
        damaged = msgspec.structs.replace(request.fetch, address=proxy.address)
        decode.add(msgspec.structs.replace(request, fetch=damaged))
        decode.until(lambda: decode.core.idle, prefill)
        assert_answered(decode, expected)
        assert decode.answers["held", 0].cached_tokens == 0
        assert "valid" not in decode.outcomes("in")
        proxy.close()
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


def test_a_fetch_from_another_model_is_refused_by_name(
    random_model: Path,
) -> None:
    prefill = Joined(boot(random_model, state_dtype="float16"))
    decode = Joined(boot(random_model, state_dtype="float32"))
    with joined(prefill, decode), capture_logs() as lines:
        got = hand_over(prefill, decode, [REQUEST])
        assert got["held", 0].cached_tokens == 0
        assert decode.outcomes("in") == {"refused": 1}
        assert any("fingerprint" in line.get("peer", "") for line in lines)


def test_the_end_of_the_process_does_not_wait_for_a_state(random_model: Path) -> None:
    engine = Joined(boot(random_model))
    with stalled(engine) as (source, fetch):
        engine.add(held_request(fetch))
        engine.until(source.asked.is_set)
        engine.close()
        assert not source.go.is_set()


def test_an_export_lives_on_while_its_reader_waits_for_a_place(
    random_model: Path, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MOST_RECEPTIONS", 1)
    prefill, decode = Joined(boot(random_model), transfer_lease=2.0), Joined(boot(random_model))
    decode.core.transfers._importer._lease_seconds = 4.0  # type: ignore[union-attr]
    with joined(prefill, decode), stalled(decode) as (source, fetch):
        prefill.run(msgspec.structs.replace(REQUEST, hand_over=True))
        decode.add(AddRequest("first", PROMPT[::-1], REQUEST.params, fetch=fetch))
        decode.until(source.asked.is_set)
        decode.add(with_source(REQUEST, prefill))
        end = time.monotonic() + 3.0
        decode.until(lambda: time.monotonic() >= end, prefill)
        assert ("held", 0) not in decode.answers
        source.go.set()
        decode.until(lambda: decode.core.idle, prefill)
        assert_answered(decode, expected)
        assert decode.answers["held", 0].cached_tokens == 96
        for each in (prefill, decode):
            each.check_empty(prefill, decode)


def test_a_peer_that_is_slower_than_computing_is_not_asked(random_model: Path, expected: Answer) -> None:
    peer, engine = (Joined(boot(random_model)) for _ in range(2))
    with joined(peer, engine):
        peer.run(greedy("before", PROMPT, 1), msgspec.structs.replace(REQUEST, hand_over=True))
        engine.run(greedy("others", PROMPT[::-1], 1))
        assert engine.core.speed.tokens_per_second
        assert engine.core.transfers is not None
        engine.core.transfers._importer.bandwidth.observe("peer", 1, 1e6)
        engine.run(with_peer(REQUEST, peer, 96))
        assert_answered(engine, expected)
        assert engine.outcomes("in") == {"slower": 1}
        # A hand-over was computed for this engine.
        engine.core.flush_cache()
        engine.answers.clear()
        engine.add(with_source(REQUEST, peer))
        engine.until(lambda: engine.core.idle, peer)
        assert engine.answers["held", 0].cached_tokens == 96
        for each in (peer, engine):
            each.check_empty(peer, engine)


def offered_credits(engine: Joined) -> int:
    assert engine.core.transfers is not None
    return int(engine.core.transfers.gauges()["transfer_credits"])


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBuffer"])
def test_an_engine_offers_the_places_that_its_plan_counts(random_model: Path, strategy: str) -> None:
    slab = boot(random_model).state_layout.slab_bytes
    engine = Joined(boot(random_model, strategy=strategy, arena_bytes=16 * slab, max_model_len=128))
    with joined(engine), stalled(engine) as (source, fetch):
        slots, each = engine.core.cache.capacity.slabs, engine.core.cache.capacity.slots_per_sequence
        assert offered_credits(engine) == min(importer.MOST_RECEPTIONS, slots // each)
        engine.add(held_request(fetch))
        engine.until(source.asked.is_set)
        # The pages of the state that arrives are no slots any more.
        slots = engine.core.cache.capacity.free_slots + 1
        assert offered_credits(engine) == min(importer.MOST_RECEPTIONS - 1, slots // each - 1)
        source.go.set()
        engine.until(lambda: engine.core.idle)
