"""The status page in a browser: it follows engine and gateway, chats, and asks nothing of other machines."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from browser import BROWSER, Page, browser_page
from mamba_edge.api_keys import KeyFile
from mamba_edge.usage.usage_sum import UsageSum
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.usage.ledger_store import LedgerEntry
from mamba_server import wire
from scripted_engine import TOKENIZER, Api
from served_app import PREFIX, behind_prefix, served

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no browser on this machine: install chromium"),
    pytest.mark.asyncio(loop_scope="module"),
]
PLAN = {
    "strategy": "ExtraBuffer", "stateDtype": "float32", "reason": "the one that fits best",
    "budgetBytes": 100,
    "ledger": [{"item": "weights", "bytes": 60}, {"item": "slots of checkpoints", "bytes": 40}],
    "rejected": [{"strategy": "NoBuffer", "stateDtype": "float32", "reason": "no <b>checkpoints</b>"}],
    "oneSizeDown": {"memory": "15Gi", "fits": False, "reason": "weights 16.6Gi need <i>more</i>"},
    "oneSizeUp": {
        "memory": "97887Mi", "fits": True, "strategy": "ExtraBufferLazy", "stateDtype": "float32",
        "slots": 900, "pages": 7000, "maxRunningRequests": 1024, "maxModelLen": 131072,
        "checkpoints": 410, "resumed": "48%",
    },
}  # fmt: skip
RUNNING = {"id": "a", "index": 0, "phase": "prefill", "promptTokens": 512, "outputTokens": 0,
           "cachedTokens": 448, "missCause": "no_state", "preemptions": 0}  # fmt: skip
SEND = "document.getElementById('chat-text').focus()"
SENT = "!document.getElementById('chat-send').disabled"
HIGHEST = """Math.min(...[...document.querySelector('.history').querySelectorAll('polygon')].flatMap(
    (area) => area.getAttribute('points').split(' ').map((point) => Number(point.split(',')[1]))))"""


def text_of(name: str) -> str:
    return f"document.getElementById('{name}').innerText"


def makes(api: Api, thought: str = "") -> None:
    """Let the engine answer requests with two words, behind the thought.

    Nothing of the first request and 7 tokens of each other are resumed.
    """

    def react(message: wire.ToEngine) -> None:
        match message:
            case wire.AdminCall(call_id, verb):
                body = {"plan": PLAN, "requests": {"requests": [RUNNING]}}[verb]
                api.engine.send(wire.AdminReply(call_id, 200, body))
            case wire.AddRequest():
                of = len(api.engine.requests) - 1
                api.engine.delta(f"{thought}green ", of=of, cached_tokens=7 if of else 0)
                api.engine.delta("tea", of=of, finish_reason="stop")

    api.engine.process.react = react
    api.engine.send(numbers(live=2, cached=3))


def numbers(*, live: int, cached: int) -> wire.EngineStats:
    counters = {"prompt_tokens_total": 200, "cached_tokens_total": 150, "generation_tokens_total": 9,
                "prefix_misses_total{cause=evicted}": 5}  # fmt: skip
    slabs = {"slabs{owner=free}": 8, "slabs{owner=live}": live, "slabs{owner=cached}": cached}
    gauges = {**slabs, "pages{owner=tree}": 6, "requests_running": 1, "requests_waiting": 0}
    return wire.EngineStats(counters, gauges, [], [])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with browser_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page) -> AsyncIterator[Page]:
    """Yield a page on a light desktop that contacts no other host and breaks no policy."""
    await browser.size(1280, 1000)
    browser.asked.clear()
    browser.complaints.clear()
    yield browser
    here = await browser.run("location.origin")
    await browser.open("about:blank")
    assert [url for url in browser.asked if not url.startswith((f"{here}/", "data:", "about:"))] == []
    # What was refused for want of a key, or because the server was away, is said by the browser, too.
    assert [said for said in browser.complaints if "Failed to load resource" not in said] == []


async def chat(page: Page, text: str) -> str:
    """Send a turn and return the text of the page after it."""
    await page.run(SEND)
    await page.type(text, "Enter")
    await page.until(SENT)
    return str(await page.run(text_of("chat-log")))


@pytest.mark.slow
async def test_through_a_gateway_it_shows_engines_and_chats_with_what_was_resumed(page: Page) -> None:
    api = Api()
    makes(api)
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with served(api.app) as engine:
        settings = GatewaySettings(port=0, backend=(engine,), probe_interval=0.05)
        gateway = asyncio.create_task(serve(settings, url.set_result, stop=stop))
        try:
            await page.open(f"{await url}/ui")
            shown = str(await page.until(f"/ExtraBuffer/.test({text_of('engines')}) && {text_of('serving')}"))
            for words in ("1 of 1", "live 2", "cached 3", "free 8", "tree 6", "75 %", "150 of 200", "evicted",
                          "prefill", "448", "no_state"):  # fmt: skip
                assert words in shown
            await page.run("document.querySelector('summary').click()")
            plan = str(await page.until("document.querySelector('details[open]')?.innerText"))
            assert "the one that fits best" in plan
            assert "NoBuffer, float32: no <b>checkpoints</b>" in plan
            assert "down, 15 GiB: does not fit: weights 16.6Gi need <i>more</i>" in plan
            [up] = [line for line in plan.splitlines() if line.startswith("up, ")]
            for words in ("96 GiB", "ExtraBufferLazy", "1,024", "131,072", "410", "48%"):
                assert words in up

            said = await chat(page, "What is in the cup?")
            assert "green tea" in said
            assert "0 of" in said
            assert "7 of" in await chat(page, "And in the pot?")
            first, second = api.engine.requests
            # The second turn brought the first, and the first answer, along.
            assert len(second.token_ids) > len(first.token_ids) + len("green tea")
            # On the arena's own scale: 5 of its 13 slabs are in use, of a chart that is 40 high.
            assert await page.run(HIGHEST) == pytest.approx(40 * 8 / 13, abs=0.01)
            traffic = str(await page.until(f"/\\d m?s/.test({text_of('traffic')}) && {text_of('traffic')}"))
            for words in ("requests\u200b/s", "errors\u200b/s", "tokens\u200b/s", "first byte"):
                assert words in traffic
            api.engine.send(numbers(live=0, cached=5))
            await page.until(f"/live 0.*cached 5/s.test({text_of('engines')})")
        finally:
            stop.set()
            await gateway


def ledger_file(path: Path) -> str:
    """Write the ledger of a gateway: today eight keys used the model, each more than the one before.

    Tomorrow has the same entries, for a test that begins before midnight.
    """
    days = [(datetime.now(UTC).date() + timedelta(days)).isoformat() for days in (0, 1)]
    hour = 3600 * 10**9
    entries = [
        LedgerEntry(
            "one", "m", f"key <{number}>", "", 1, UsageSum(number, 250_000 * number, 0, 7, hour * number)
        )
        for number in range(1, 9)
    ]
    path.write_bytes(msgspec.json.encode({"version": 1, "days": dict.fromkeys(days, entries)}))
    return str(path)


async def test_use_and_cost_of_the_largest_keys_and_of_all_are_on_the_page_of_a_gateway(
    page: Page, tmp_path: Path
) -> None:
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = GatewaySettings(
        port=0, backend=("http://127.0.0.1:1",), usage_file=ledger_file(tmp_path / "ledger"),
        price_device_hour=2.5, price_currency="EUR",
    )  # fmt: skip
    gateway = asyncio.create_task(serve(settings, url.set_result, stop=stop))
    try:
        await page.open(f"{await url}/ui")
        shown = str(await page.until(f"/all/.test({text_of('usage-table')}) && {text_of('usage-table')}"))
        rows = [line.split("\t") for line in shown.splitlines() if "\t" in line]
        assert rows[1] == ["key <8>", "8", "2.00M", "0", "7", "8 h", "€20.00", "€0.00"]
        assert [row[0] for row in rows[2:]] == [
            *(f"key <{n}>" for n in (7, 6, 5, 4, 3)),
            "all, 2 not shown",
        ]
        assert rows[-1][1:] == ["36", "9.00M", "0", "56", "36 h", "€90.00", "€0.00"]
        await page.run(
            "const by = document.getElementById('usage-by'); by.value = 'model'; \
            by.dispatchEvent(new Event('change'))"
        )
        await page.until(f"/^deployment/m.test({text_of('usage-table')})")
    finally:
        stop.set()
        await gateway


async def test_many_engines_show_their_numbers_and_the_rest_when_opened(page: Page) -> None:
    api = Api()
    makes(api)
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with served(api.app) as engine:
        silent = tuple(f"http://127.0.0.1:{port}" for port in (1, 2, 3))
        settings = GatewaySettings(port=0, backend=(engine, *silent), probe_interval=0.05)
        gateway = asyncio.create_task(serve(settings, url.set_result, stop=stop))
        try:
            await page.open(f"{await url}/ui")
            shown = str(await page.until(f"/first token/.test({text_of('engines')}) && {text_of('engines')}"))
            assert shown.count("unreachable") >= 3
            assert "evicted" not in shown
            ready = (
                "[...document.querySelectorAll('#engines .panel')].find((one) => one.querySelector('.good'))"
            )
            await page.until(f"{ready} !== undefined")
            await page.run(f"{ready}.querySelector('button').click()")
            assert "evicted" in await page.run(f"{ready}.innerText")
        finally:
            stop.set()
            await gateway


async def test_with_keys_it_asks_for_one_and_forgets_it_with_the_page(page: Page, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    api = Api(keys=KeyFile(str(tmp_path / "keys"), "api_key_file"))
    makes(api)
    async with served(api.app) as url:
        await page.open(f"{url}/ui")
        await page.until("document.activeElement.id === 'key'")
        assert "ExtraBuffer" not in await page.run("document.body.innerText")
        await page.type("key-2", "Enter")
        await page.until(f"/not accepted/.test({text_of('trouble')})")
        await page.type("key-1", "Enter")
        await page.until(f"/ExtraBuffer/.test({text_of('engines')})")
        assert "green tea" in await chat(page, "Hello")
        kept = await page.run(
            "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        )
        assert "key-1" not in kept
        await page.open(f"{url}/ui?again")
        await page.until("document.activeElement.id === 'key'")


async def test_what_the_model_thinks_is_shown_apart_and_goes_along_with_the_next_turn(page: Page) -> None:
    shown = "{{ m.content }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %} "
    opening = "{% if add_generation_prompt %}<think>{# </think> #}{% endif %}"
    api = Api(template=f"{{% for m in messages %}}{shown}{{% endfor %}}{opening}")
    makes(api, "Which? </think>")
    async with served(api.app) as url:
        await page.open(f"{url}/ui")
        await page.until(f"/ExtraBuffer/.test({text_of('engines')})")
        assert "Which?" in await chat(page, "What is in the cup?")
        parts = "[...document.querySelectorAll('.turn.assistant p')].map((each) => each.innerText)"
        assert await page.run(parts) == ["Which?", "green tea"]
        await chat(page, "And now?")
        assert "green tea(Which?)" in TOKENIZER.decode(list(api.engine.requests[1].token_ids))


ANSWER = """# Two ways

1. **Boil** it, or
2. *wait*:
   - with `tea & <b>`
   - [a page](https://example.com/x), [a trap](javascript:alert(1))

```python
print("<i>**kept**</i>")
```

| cup | tea |
| --- | --- |
| 1 | green |

> <img src=x onerror=alert(1)>

a * b * c, snake_case_name"""
SHOWN = """[...document.querySelectorAll('.said')].map((said) => [...said.querySelectorAll('*')].map(
    (each) => each.tagName.toLowerCase()).join(' '))"""


async def test_an_answer_in_markdown_is_shown_as_such_and_its_markup_as_text(page: Page) -> None:
    api = Api()
    pieces = [ANSWER[at : at + 7] for at in range(0, len(ANSWER), 7)]

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            of = len(api.engine.requests) - 1
            for at, piece in enumerate(pieces, 1):
                api.engine.delta(piece, of=of, finish_reason="stop" if at == len(pieces) else None)

    api.engine.process.react = react
    async with served(api.app) as url:
        await page.open(f"{url}/ui")
        await page.until(SENT)
        text = await chat(page, "How?")
        for words in ("tea & <b>", "<i>**kept**</i>", "<img src=x onerror=alert(1)>",
                      "[a trap](javascript:alert(1))", "a * b * c, snake_case_name"):  # fmt: skip
            assert words in text
        [elements] = await page.run(SHOWN)
        assert elements.split() == [
            "h3", "ol", "li", "b", "li", "em", "ul", "li", "code", "li", "a",
            "figure", "figcaption", "span", "button", "pre", "code",
            "div", "table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td", "blockquote", "p", "p",
        ]  # fmt: skip
        link = await page.run("(({href, rel}) => [href, rel])(document.querySelector('.said a'))")
        assert link == ["https://example.com/x", "noopener noreferrer"]
        button, field = "document.querySelector('.code button')", "document.getElementById('chat-text')"
        # The second time as at an address without TLS, where browsers offer no clipboard.
        for change in ("", "Object.defineProperty(navigator, 'clipboard', { value: undefined })"):
            await page.run(f"{field}.value = ''; {button}.textContent = 'Copy'; {button}.focus(); {change}")
            await page.type("", "Enter")
            await page.until(f"{button}.textContent === 'Copied'")
            await page.run(f"{field}.focus()")
            await page.call(
                "Input.dispatchKeyEvent", type="keyDown", key="v", modifiers=2, commands=["paste"]
            )
            assert await page.until(f"{field}.value") == 'print("<i>**kept**</i>")'

        await page.run("['chat-new', 'plain'].forEach((id) => document.getElementById(id).click())")
        assert "1. **Boil** it" in await chat(page, "How?")


async def test_a_system_prompt_and_parameters_go_along_once_they_are_valid(page: Page) -> None:
    api = Api()
    makes(api)
    fill = "document.getElementById('{}').value = '{}'"
    async with served(api.app) as url:
        await page.open(f"{url}/ui")
        await page.until(SENT)
        await chat(page, "Hello")
        for name, value in (
            ("system", "Be brief."),
            ("temperature", "3"),
            ("max_tokens", "5"),
            ("seed", "7"),
        ):
            await page.run(fill.format(name, value))
        await chat(page, "Too hot?")
        assert len(api.engine.requests) == 1
        assert await page.run("document.querySelector('#chat details').open")
        await page.run(fill.format("temperature", "0.5"))
        await page.run(SEND)
        await page.type("", "Enter")
        await page.until("document.querySelectorAll('.turn.assistant small').length === 2")
        default, chosen = api.engine.requests
        assert "Be brief." in TOKENIZER.decode(list(chosen.token_ids))
        assert "Be brief." not in TOKENIZER.decode(list(default.token_ids))
        assert (chosen.params.temperature, chosen.params.max_tokens, chosen.params.seed) == (0.5, 5, 7)
        assert (default.params.temperature, default.params.seed) != (0.5, 7)


async def test_behind_a_prefix_it_works_and_tells_of_errors_and_of_a_server_that_went(page: Page) -> None:
    api = Api()
    makes(api)
    async with served(behind_prefix(api.app)) as url:
        await page.open(f"{url}{PREFIX}/ui/", lands=f"{url}{PREFIX}/ui")
        await page.until(f"/ExtraBuffer/.test({text_of('engines')})")
        # An engine has no ledger.
        assert await page.run("document.getElementById('usage').hidden")
        assert "green tea" in await chat(page, "Hello")
        api.engine.dies()
        assert "not ready" in await chat(page, "Anybody there?")
        assert await page.run("document.getElementById('chat-text').value") == "Anybody there?"
        await page.until("document.getElementById('state').innerText === 'restarting'")
        assert await page.run("document.getElementById('state').className") == "pill wait"
    await page.until("document.getElementById('state').innerText === 'away'")
    assert "does not answer" in await page.run(text_of("trouble"))
    assert "killed by signal 9" in await page.run(text_of("engines"))
    assert "last seen restarting" in await page.run(text_of("engines"))


@pytest.mark.slow
async def test_a_page_that_nobody_looks_at_asks_nothing_and_goes_on_when_it_is_seen(page: Page) -> None:
    api = Api()
    makes(api)
    hide = "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {hidden}}}); \
            document.dispatchEvent(new Event('visibilitychange'))"

    def asked() -> int:
        return sum(one.endswith("/v1/status") for one in page.asked)

    async with served(api.app) as url:
        await page.open(f"{url}/ui")
        await page.until(f"/ExtraBuffer/.test({text_of('engines')})")
        await page.run(hide.format(hidden="true"))
        before = asked()
        await page.run("new Promise((over) => setTimeout(over, 1500))")  # the page's own pace is a second
        assert asked() == before
        await page.run(hide.format(hidden="false"))
        async with asyncio.timeout(60):
            while asked() == before:  # noqa: ASYNC110 - what the browser does
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_it_fits_a_small_screen_and_both_themes_and_can_be_reached_by_keys(
    page: Page,
) -> None:
    api = Api()
    makes(api)
    background = "getComputedStyle(document.body).backgroundColor"
    async with served(api.app) as url:
        await page.size(360, 640, "dark")
        await page.open(f"{url}/ui")
        await page.until(f"/ExtraBuffer/.test({text_of('engines')})")
        assert await page.run("document.scrollingElement.scrollWidth") <= 360
        dark = await page.run(background)
        await page.run("document.getElementById('theme').click()")
        light = await page.run(background)
        assert dark != light
        await page.size(360, 640, "light")
        assert await page.run(background) == light
        reached = []
        for _ in range(13):
            await page.type("", "Tab")
            reached.append(await page.run("document.activeElement.id || document.activeElement.tagName"))
        assert {"theme", "SUMMARY", "model", "chat-new", "chat-log", "chat-text", "chat-send"} <= set(reached)
