"""Reports of a gateway about the prefix index: lasting trouble, repeatedly, and its end."""

import asyncio
from datetime import UTC, datetime

from api_script import Answer, ApiScript
from mamba_api import names
from mamba_gateway.operator_note import IndexReporter, OperatorNote
from virtual_time import in_virtual_time

AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Story:
    """A reporter at work whose trouble the test sets."""

    def __init__(self, script: ApiScript) -> None:
        self.script = script
        self.trouble: str | None = None
        note = OperatorNote(script, "models", "nano")
        self.task = asyncio.create_task(IndexReporter(note, lambda: self.trouble, lambda: AT).work())

    async def end(self) -> None:
        assert not self.task.done()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def written(self) -> list[str | None]:
        return [each["body"]["data"][names.INDEX_TROUBLE_KEY] for each in self.script.requests]


@in_virtual_time
async def test_a_trouble_that_lasts_is_told_again_and_again_and_taken_back() -> None:
    story = Story(ApiScript(*(Answer(200, b"{}") for _ in range(9))))
    await asyncio.sleep(20)
    assert story.written == []
    story.trouble = "Redis is away"
    await asyncio.sleep(81)
    assert story.written == ["2026-01-02T03:04:05+00:00 Redis is away"] * 3
    assert [
        after - before for before, after in zip(story.script.times, story.script.times[1:], strict=False)
    ] == [
        30,
        30,
    ]
    story.trouble = None
    await asyncio.sleep(60)
    assert story.written[3:] == [None]
    await story.end()


@in_virtual_time
async def test_a_trouble_of_a_moment_is_not_told() -> None:
    story = Story(ApiScript(Answer(200, b"{}")))
    for _ in range(5):
        story.trouble = "Redis is away"
        await asyncio.sleep(8)
        story.trouble = None
        await asyncio.sleep(8)
    assert story.written == []
    await story.end()


@in_virtual_time
async def test_an_api_server_that_fails_is_told_later() -> None:
    answers = [
        OSError("refused"),
        Answer(403, b"x"),
        Answer(200, b"{}"),
        OSError("refused"),
        Answer(200, b"{}"),
    ]
    story = Story(ApiScript(*answers))
    story.trouble = "Redis is away"
    await asyncio.sleep(80)
    assert len(story.written) == 3
    story.trouble = None
    await asyncio.sleep(20)
    assert story.written[3:] == [None, None]
    await story.end()
