"""Long conversations of agents through a gateway: what 220 KB of prompt cost it, and the prefixes it finds.

Run as `python -m benchmarks.large_prompts [--kilobytes N] [--at-once N] [--turns N]`; writes JSON and
Markdown to benchmarks/results. The upstream answers at once and publishes a checkpoint for what it has seen,
as an engine does. Messages are parts of the documentation and the code of this checkout, as tools of coding
agents return them, and a vocabulary of 32,000 tokens is trained on other parts. CPU time is that of all
threads of the gateway, from the kernel's accounts.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from benchmarks.agent_text import AgentText, write_text_side
from benchmarks.cache.record import write
from benchmarks.http_cpu import cpu_seconds
from benchmarks.http_cpu_processes import ROOT, end_children_on_sigterm, started

from mamba_gateway.prompts.prompt_reader import prompt_of
from mamba_gateway.prompts.text_processors import ModelText
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Feed, pack, pack_entries
from mamba_prefix.page_chain import PageChain
from mamba_text.prompt import TextProcessor
from mamba_text.segment_cache import SegmentCache
from mamba_text.text_archive import TextArchive

PAGE, FINGERPRINT, MODEL = 16, "large-prompts", "m"
TURN_BYTES = 4_000
ANSWER = {
    "id": "x", "object": "chat.completion", "created": 0, "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


def turn(number: int, text: AgentText) -> list[dict[str, str]]:
    """Return a message of the user, like the output of a tool, and the answer to it."""
    return [
        {"role": "user", "content": f"turn {number}: {text.part(TURN_BYTES)}"},
        {"role": "assistant", "content": "ok"},
    ]


class Upstream:
    """An engine that answers at once and remembers the prompts that it was asked to remember."""

    def __init__(self, name: str, model: Path) -> None:
        self.model = model
        self.text = TextProcessor.load(model)
        self.segments = SegmentCache(self.text.tokenizer, 1 << 30)
        self.log = ChangeLog(name)
        self.log.start(FINGERPRINT, PAGE)
        self.chain = PageChain(PAGE, FINGERPRINT)

    def remember(self, messages: list[dict[str, Any]]) -> int:
        """Publish a checkpoint at the last page of a conversation, and return its tokens."""
        assert self.text.template is not None
        text = self.text.template.text(messages, generation_prompt=False)
        token_ids = self.segments.encode(text).token_ids
        hashes = self.chain.hashes(token_ids, "")
        depth = len(hashes) * PAGE
        entries = pack_entries({int(hashes[-1]): depth})
        self.log.take(1, cleared=False, gained=entries, lost=b"")
        return depth

    def app(self) -> web.Application:
        """Return the HTTP application."""
        archive = TextArchive.pack(self.model)
        card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "x"}

        async def changes(request: web.Request) -> web.Response:
            incarnation, since = request.query.get("incarnation", ""), int(request.query.get("since", 0))
            if (incarnation, since) == (self.log.incarnation, self.log.seq):
                await asyncio.sleep(0.2)
            batches = self.log.since(incarnation, since)
            snapshot = self.log.snapshot() if batches is None else None
            return web.Response(body=pack(Feed(self.log.heartbeat(), snapshot, batches or [])))

        async def answer(request: web.Request) -> web.Response:
            await request.read()
            return web.json_response(ANSWER)

        async def tokenizer(_: web.Request) -> web.Response:
            return web.Response(body=archive.data, headers={"ETag": f'"{archive.fingerprint}"'})

        async def ready(_: web.Request) -> web.Response:
            return web.json_response({"status": "ready"})

        async def models(_: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [card]})

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text="")

        app = web.Application(client_max_size=1 << 24)
        app.add_routes(
            [
                web.post("/v1/chat/completions", answer), web.get("/v1/prefix_changes", changes),
                web.get("/v1/tokenizer", tokenizer), web.get("/readyz", ready), web.get("/v1/models", models),
                web.get("/metrics", metrics), web.get("/livez", ready),
            ]
        )  # fmt: skip
        return app


async def measure(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Send the turns of all conversations, each round at once, and return what was found."""
    # A gateway reads prompts only where it has a choice, so there is a second engine, which knows nothing.
    upstream, runners, backends = Upstream("known", model), [], []
    for engine in (upstream, Upstream("empty", model)):
        runner = web.AppRunner(engine.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        backends.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    words = [word for url in backends for word in ("--backend", url)]
    command = [sys.executable, "-P", "-m", "mamba_cli", "gateway", *words, "--port", "0"]
    loop = asyncio.get_running_loop()
    context = started(command, "gateway ready", ROOT)
    pid, url = await loop.run_in_executor(None, context.__enter__)
    try:
        async with aiohttp.ClientSession() as session:
            return await _rounds(session, upstream, options, pid, (backends[0], url))
    finally:
        await loop.run_in_executor(None, context.__exit__, None, None, None)
        for runner in runners:
            await runner.cleanup()


async def _rounds(
    session: aiohttp.ClientSession,
    upstream: Upstream,
    options: argparse.Namespace,
    pid: int,
    urls: tuple[str, str],
) -> dict[str, Any]:
    words = AgentText(42)
    # Each round makes them a turn longer: in the middle one they have the size.
    turns = max(1, options.kilobytes * 1000 // TURN_BYTES - options.turns // 2)
    conversations = [
        [message for number in range(turns) for message in turn(number, words)]
        for _ in range(options.at_once)
    ]
    first: list[float] = []
    through: list[float] = []
    direct: list[float] = []
    spent: list[float] = []
    sizes: list[int] = []
    shares: list[float] = []
    for number in range(options.turns + 1):
        depths = [upstream.remember(messages) for messages in conversations]
        for messages in conversations:
            messages += turn(turns + number, words)[:1]
        bodies = [json.dumps({"model": MODEL, "messages": each, "max_tokens": 1}) for each in conversations]
        await asyncio.sleep(2.0)  # the gateway reads the new checkpoints
        cpu = cpu_seconds(pid)
        times = await _all(session, urls[1], bodies)
        cpu = cpu_seconds(pid) - cpu
        if not number:  # this round reads the conversations for the first time
            first = times
        else:
            through += times
            sizes += [len(body) for body in bodies]
            direct += await _all(session, urls[0], bodies)
            spent.append(cpu / len(bodies))
            shares.append(await _found(session, urls[1], depths))
        for messages in conversations:
            messages.append({"role": "assistant", "content": "ok"})
    millis = 1e3 * statistics.median(spent)
    return {
        "body_bytes": round(statistics.median(sizes)),
        "requests": len(through),
        "gateway_cpu_ms": millis,
        "requests_per_second_of_two_cores": 2e3 / millis,
        "first_median_ms": 1e3 * statistics.median(first),
        "through_median_ms": 1e3 * statistics.median(through),
        "direct_median_ms": 1e3 * statistics.median(direct),
        "found_share": statistics.fmean(shares),
        "prompts": await _outcomes(session, urls[1]),
    }


async def _all(session: aiohttp.ClientSession, url: str, bodies: Sequence[str]) -> list[float]:
    async def one(body: str) -> float:
        begin = time.perf_counter()
        async with session.post(
            f"{url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            if answer.status != 200:
                raise RuntimeError(f"not answered: {answer.status} {await answer.text()}")
            await answer.read()
        return time.perf_counter() - begin

    return list(await asyncio.gather(*(one(body) for body in bodies)))


async def _found(session: aiohttp.ClientSession, url: str, depths: Sequence[int]) -> float:
    """Return the share of the last requests for which the gateway found the checkpoint."""
    async with session.get(f"{url}/v1/routing/decisions?limit={len(depths)}") as answer:
        decisions = (await answer.json())["data"]
    found = [each["resumable"] for one in decisions for each in one["considered"]]
    return sum(depth in found for depth in depths) / len(depths)


def reading(kilobytes: int, model: Path, turns: int = 6) -> dict[str, float]:
    """Return the CPU milliseconds to read a conversation for the first time, and its next turns (median).

    A thread's own CPU time does not depend on what else the machine does.
    """
    processor = TextProcessor.load(model)
    text = ModelText(processor, SegmentCache(processor.tokenizer))
    words = AgentText(7)
    count = kilobytes * 1000 // TURN_BYTES
    messages = [message for number in range(count) for message in turn(number, words)]
    millis = []
    for number in range(turns + 1):
        messages += turn(count + number, words)[:1]
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1}).encode()
        begin = time.thread_time()
        prompt_of("/v1/chat/completions", body, text)
        millis.append(1e3 * (time.thread_time() - begin))
        messages.append({"role": "assistant", "content": "ok"})
    return {"first_cpu_ms": millis[0], "next_cpu_ms": statistics.median(millis[1:])}


async def _outcomes(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return how many prompts the gateway read, and how many it did not, by the reason."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    counts = (line.rsplit(" ", 1) for line in lines if line.startswith("mambaserve_gateway_prompts_total"))
    return {name.partition("{")[2].rstrip("}"): float(count) for name, count in counts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_prompts", description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=220, help="size of a prompt in the middle round")
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--turns", type=int, default=10, help="rounds of requests, each a turn longer")
    options = parser.parse_args(arguments)
    end_children_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        model = write_text_side(Path(folder))
        read = reading(options.kilobytes, model)
        found = asyncio.run(measure(options, model)) | read
    rows = [
        "| measure | |",
        "| --- | --- |",
        f"| bytes of a body, median | {found['body_bytes']:,} |",
        f"| CPU time to read a conversation for the first time, ms | {read['first_cpu_ms']:.0f} |",
        f"| CPU time to read its next turn, ms | {read['next_cpu_ms']:.1f} |",
        f"| CPU time of the gateway for a request, ms | {found['gateway_cpu_ms']:.1f} |",
        f"| requests a second of two cores by that | {found['requests_per_second_of_two_cores']:.0f} |",
        f"| median through the gateway at the first reading, ms | {found['first_median_ms']:.0f} |",
        f"| median through the gateway, ms | {found['through_median_ms']:.0f} |",
        f"| median at the upstream itself, ms | {found['direct_median_ms']:.0f} |",
        f"| requests whose checkpoint was found | {found['found_share']:.0%} |",
        *(f"| prompts with {name} | {count:.0f} |" for name, count in found["prompts"].items()),
    ]
    write("large-prompts", {"settings": vars(options), "result": found}, rows)


if __name__ == "__main__":
    main()
