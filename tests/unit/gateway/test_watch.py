"""The copy of the cluster's objects: through events in pieces, lost versions and servers that fail."""

import asyncio
import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_script import Answer, ApiScript, item, line, listed, watched
from mamba_gateway.endpoints.watch import LONGEST_BACKOFF, SHORTEST_WATCH, Objects, Watch, WatchExpired
from virtual_time import in_virtual_time


class Seen:
    """Calls of the watch: the names in each."""

    def __init__(self) -> None:
        self.tellings: list[list[str]] = []
        self.last: dict[str, Any] = {}

    def __call__(self, objects: Objects) -> None:
        self.tellings.append(sorted(objects))
        self.last = dict(objects)


def watch(script: ApiScript, seen: Seen) -> Watch:
    return Watch(script, "/apis/x/things", "app=x", seen)


async def follow(script: ApiScript, seen: Seen, seconds: float) -> None:
    """Follow for so long."""
    following = asyncio.create_task(watch(script, seen).follow(Random(5)))
    await asyncio.sleep(seconds)
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def versions(script: ApiScript) -> list[str | None]:
    """Return the version from which each watch started; None: a list."""
    return [asked["query"].get("resourceVersion") for asked in script.requests]


@in_virtual_time
async def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    seen = Seen()
    script = ApiScript(listed("7", item("a"), item("b")), watched(line("DELETED", item("a", "8")), hold=True))
    await follow(script, seen, 1)
    assert seen.tellings == [["a", "b"], ["b"]]
    first, second = script.requests
    assert first["query"] == {"labelSelector": "app=x"}
    assert second["query"]["resourceVersion"] == "7"
    assert (second["query"]["watch"], second["query"]["allowWatchBookmarks"]) == ("true", "true")
    assert second["timeout"] > int(second["query"]["timeoutSeconds"])


@in_virtual_time
async def test_events_add_change_and_remove() -> None:
    seen = Seen()
    events = [
        line("ADDED", item("b", "2")),
        line("MODIFIED", item("a", "3", spec="new")),
        line("DELETED", item("b", "4")),
        line("DELETED", item("never seen", "5")),
    ]
    await follow(ApiScript(listed("1", item("a")), watched(*events, hold=True)), seen, 1)
    assert seen.tellings == [["a"], ["a", "b"], ["a", "b"], ["a"], ["a"]]
    assert seen.last["a"]["spec"] == "new"


@in_virtual_time
async def test_a_watch_that_ends_goes_on_from_the_last_event_or_bookmark() -> None:
    seen = Seen()
    script = ApiScript(
        listed("1"),
        watched(line("ADDED", item("a", "5"))),
        watched(line("BOOKMARK", {"metadata": {"resourceVersion": "9"}})),
        watched(),
        watched(hold=True),
    )
    await follow(script, seen, 10)
    assert versions(script) == [None, "1", "5", "9", "9"]
    assert seen.tellings == [[], ["a"]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=8), st.booleans())
def test_events_may_come_in_pieces_of_any_size(places: list[int], torn: bool) -> None:
    text = b"".join(line("ADDED", item(f"p\u00e4\u4e16{number}", str(number))) for number in range(4))
    cuts = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    seen = Seen()
    script = ApiScript(watched(chunks=[*pieces, b'{"type": "ADDED", "obj'] if torn else pieces))
    assert asyncio.run(watch(script, seen).watch("0")) == "3"
    assert len(seen.tellings) == 4
    assert len(seen.last) == 4


@in_virtual_time
async def test_an_event_cut_off_by_the_end_of_the_watch_comes_with_the_next_one() -> None:
    seen = Seen()
    whole = line("ADDED", item("a", "5"))
    script = ApiScript(listed("1"), watched(whole[:-20]), watched(whole, hold=True))
    await follow(script, seen, 5)
    assert versions(script) == [None, "1", "1"]
    assert seen.tellings == [[], ["a"]]


GONE = line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


@pytest.mark.parametrize("stale", [Answer(410, b"{}"), watched(GONE)], ids=["status", "event"])
def test_a_version_that_is_gone_leads_to_a_new_list_that_forgets_what_went_meanwhile(stale: Answer) -> None:
    @in_virtual_time
    async def run() -> None:
        seen = Seen()
        script = ApiScript(
            listed("1", item("a"), item("b")), stale, listed("9", item("b")), watched(hold=True)
        )
        await follow(script, seen, 5)
        assert seen.tellings == [["a", "b"], ["b"]]
        assert versions(script) == [None, "1", None, "9"]

    run()


async def test_a_stale_watch_says_in_the_server_s_words_why() -> None:
    with pytest.raises(WatchExpired, match="410 Expired"):
        await watch(ApiScript(watched(GONE)), Seen()).watch("1")
    silent = line("ERROR", {"message": "etcd is away"})
    with pytest.raises(WatchExpired, match="etcd is away"):
        await watch(ApiScript(watched(silent)), Seen()).watch("1")


FAILURES: list[Answer | Exception] = [
    OSError("connection refused"),
    TimeoutError(),
    Answer(500, b"oops"),
    Answer(403, b'{"message": "forbidden"}'),
    Answer(200, b"<html>"),
    Answer(200, b'{"items": []}'),
    Answer(200, b'{"metadata": {"resourceVersion": "1"}, "items": [{"no": "metadata"}]}'),
    Answer(200, error=ConnectionResetError("reset")),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: str(getattr(one, "status", one)))
def test_a_list_that_fails_is_tried_again_and_what_was_known_stays(failure: Answer | Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        seen = Seen()
        script = ApiScript(
            listed("1", item("a")), watched(GONE), failure, listed("2", item("b")), watched(hold=True)
        )
        await follow(script, seen, 5)
        assert seen.tellings == [["a"], ["b"]]

    run()


@pytest.mark.parametrize(
    "failure",
    [
        Answer(500, b"oops"),
        Answer(401, b"who are you"),
        watched(b"no json\n"),
        watched(b'{"type": "ADDED"}\n'),
        watched(line("ADDED", {"metadata": {}})),
        Answer(200, line("ADDED", item("b", "2")), error=ConnectionResetError("reset")),
    ],
    ids=range(6),
)
def test_a_watch_that_fails_is_begun_again_with_a_list(failure: Answer) -> None:
    @in_virtual_time
    async def run() -> None:
        seen = Seen()
        script = ApiScript(listed("1", item("a")), failure, listed("5", item("c")), watched(hold=True))
        await follow(script, seen, 5)
        assert seen.tellings[0] == ["a"]
        assert seen.tellings[-1] == ["c"]
        assert versions(script) == [None, "1", None, "5"]
        assert all(answer.closed for answer in script.given[:3])

    run()


@in_virtual_time
async def test_waits_grow_while_the_server_is_away_and_start_again_small() -> None:
    script = ApiScript(*(OSError("refused") for _ in range(12)), listed("1"), OSError("again"), listed("2"))
    await follow(script, Seen(), 400)
    waits = [after - before for before, after in itertools.pairwise(script.times)]
    assert waits[0] <= 0.5
    assert all(later > earlier for earlier, later in zip(waits[:5], waits[2:7], strict=True))
    assert max(waits) <= LONGEST_BACKOFF
    assert waits[11] >= LONGEST_BACKOFF / 2
    assert waits[13] <= 0.5


@in_virtual_time
async def test_a_server_whose_every_watch_is_stale_is_not_asked_without_pause() -> None:
    answers = [answer for _ in range(1000) for answer in (listed("1"), watched(GONE))]
    script = ApiScript(*answers)
    await follow(script, Seen(), 10)
    assert 10 < len(script.requests) < 100


@in_virtual_time
async def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause() -> None:
    script = ApiScript(listed("1"), *(watched() for _ in range(1000)))
    await follow(script, Seen(), 10)
    assert len(script.requests) <= 10 / SHORTEST_WATCH + 2


@in_virtual_time
async def test_cancelling_closes_the_watch() -> None:
    script = ApiScript(listed("1"), watched(hold=True))
    await follow(script, Seen(), 1)
    assert [answer.closed for answer in script.given] == [True, True]
