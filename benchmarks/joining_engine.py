"""Hit rate of an engine that joins two others under load, in its first requests, beside that of its peers.

Run as `python -m benchmarks.joining_engine`; writes JSON and Markdown to benchmarks/results. Conversations on
shared documents come through one gateway to engines of the shipped model. After a while a third engine
starts, warm (it fetches prefixes from its peers before it is ready) or cold. A hit rate is the share of
prompt tokens that were resumed, so other load on the machine hardly matters.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
from benchmarks.cache.record import write
from benchmarks.engine import running_command

from mamba_cli.local.ports import free_ports

MODEL = "builtin://tiny-recall"
DOCUMENTS, DOCUMENT_TOKENS, QUESTION_TOKENS, TURNS, OUTPUTS = 40, 448, 24, 4, 8
FIRST = 100
"""Requests of the new engine that count."""
MOST = 800
"""Requests of its peers after which a new engine that gets fewer than that is left."""
CLIENTS = 6
EXPLAIN = "x-mambaserve-explain"


@dataclass(slots=True)
class Hits:
    """Requests that one engine answered: prompt tokens and resumed tokens, in order."""

    requests: list[tuple[int, int]] = field(default_factory=list)

    def rate(self, start: int = 0, stop: int | None = None) -> float:
        """Return the share of the prompt tokens that were resumed."""
        part = self.requests[start:stop]
        return sum(cached for _, cached in part) / max(1, sum(tokens for tokens, _ in part))


@dataclass(slots=True)
class Play:
    """The load, and what it has come to."""

    door: str
    seed: int
    by_engine: dict[str, Hits] = field(default_factory=dict)
    failed: int = 0

    async def client(self, session: aiohttp.ClientSession, number: int) -> None:
        """Hold one conversation after the other, until it is cancelled."""
        rng = Random(f"{self.seed} {number}")
        while True:
            document = min(int(rng.paretovariate(0.7)) - 1, 10**6) % DOCUMENTS
            words = Random(f"document {document}")
            prompt = [words.randrange(5, 250) for _ in range(DOCUMENT_TOKENS)]
            for _ in range(TURNS):
                prompt += [rng.randrange(5, 250) for _ in range(QUESTION_TOKENS)]
                await self.ask(session, prompt)

    async def ask(self, session: aiohttp.ClientSession, prompt: list[int]) -> None:
        """Send one request, and count it for the engine that answered."""
        body = {
            "model": "tiny-recall", "prompt": prompt, "max_tokens": OUTPUTS, "ignore_eos": True,
            "temperature": 0, "logprobs": 0,
        }  # fmt: skip
        async with session.post(f"{self.door}/v1/completions", json=body, headers={EXPLAIN: "1"}) as answer:
            reply = await answer.json()
        if answer.status != 200:
            self.failed += 1
            await asyncio.sleep(0.1)
            return
        engine = json.loads(answer.headers[EXPLAIN])["engine"]
        usage = reply["usage"]
        counts = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
        self.by_engine.setdefault(engine, Hits()).requests.append(counts)
        # The next turn goes on with other words than the answer, of as many tokens.
        prompt += [7] * OUTPUTS


@contextlib.contextmanager
def engine(port: int, transfer: int, arena: int, *options: str) -> Iterator[str]:
    """Run one engine."""
    with running_command(
        "serve", "--model", MODEL, "--admin-port", "0", "--device", "cpu", "--arena-bytes", str(arena),
        "--transfer-port", str(transfer), *options, variables={"OMP_NUM_THREADS": "1"}, port=port,
    ) as url:  # fmt: skip
        yield url


async def joined(play: Play, ports: Sequence[int], transfers: Sequence[int], warm: bool, options: Any) -> int:
    """Load two engines, let the third join, and return how often each peer had answered until then."""
    peers = ",".join(f"127.0.0.1:{port}" for port in transfers[:2])
    settings = ("--warm-peers", peers, "--warm-seconds", "10") if warm else ()
    timeout, third = aiohttp.ClientTimeout(total=300), f"127.0.0.1:{ports[2]}"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        clients = [asyncio.create_task(play.client(session, number)) for number in range(CLIENTS)]
        while sum(len(hits.requests) for hits in play.by_engine.values()) < options.before:  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.1)
        running = engine(ports[2], transfers[2], options.arena, *settings)
        await asyncio.to_thread(running.__enter__)
        try:
            before = {name: len(hits.requests) for name, hits in play.by_engine.items()}
            while len(play.by_engine.get(third, Hits()).requests) < FIRST and _meanwhile(play, before) < MOST:
                if all(client.done() for client in clients):
                    raise RuntimeError(f"the clients ended: {clients[0].exception()}")
                await asyncio.sleep(0.05)
            after = {name: len(hits.requests) for name, hits in play.by_engine.items()}
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            await asyncio.to_thread(running.__exit__, None, None, None)
    for name, hits in play.by_engine.items():
        hits.requests = hits.requests[before.get(name, 0) : after[name]]
    return min(count for name, count in before.items() if name != third)


def _meanwhile(play: Play, before: dict[str, int]) -> int:
    """Return the requests since the third engine was ready."""
    return sum(len(hits.requests) - before.get(name, 0) for name, hits in play.by_engine.items())


def measure(warm: bool, seed: int, options: Any) -> dict[str, Any]:
    """Return the hit rates of one run."""
    ports, transfers = free_ports(3), free_ports(3)
    with contextlib.ExitStack() as stack:
        for port, transfer in zip(ports[:2], transfers[:2], strict=True):
            stack.enter_context(engine(port, transfer, options.arena))
        backends = [word for port in ports for word in ("--backend", f"http://127.0.0.1:{port}")]
        door = stack.enter_context(
            running_command("gateway", *backends, "--hand-over-tokens", str(options.peer_tokens))
        )
        play = Play(door, seed)
        before = asyncio.run(joined(play, ports, transfers, warm, options))
    new = play.by_engine.pop(f"127.0.0.1:{ports[2]}", Hits())
    others = [request for hits in play.by_engine.values() for request in hits.requests]
    own, theirs = new.rate(0, FIRST), Hits(others).rate()
    return {
        "warm": warm, "seed": seed, "requests_of_a_peer_before": before, "failed": play.failed,
        "requests": len(new.requests[:FIRST]), "new": round(own, 4), "peers": round(theirs, 4),
        "requests_of_peers_meanwhile": len(others),
        "share": round(own / theirs, 3),
        "new_by_tens": [round(new.rate(n, n + 10), 3) for n in range(0, FIRST, 10)],
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joining_engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=int, default=600, help="requests until the third engine starts")
    parser.add_argument("--arena", type=int, default=24 << 20, help="bytes of each arena")
    parser.add_argument("--peer-tokens", type=int, default=128, help="tokens for which a peer is asked")
    options = parser.parse_args(arguments)
    rows = [measure(warm, seed, options) for seed in range(options.rounds) for warm in (True, False)]
    columns = ("seed", "requests", "new", "peers", "share", "requests_of_peers_meanwhile", "failed")
    lines = [
        "",
        f"- {DOCUMENTS} documents of {DOCUMENT_TOKENS} tokens, {TURNS} turns each, {CLIENTS} clients",
        f"- the first {FIRST} requests of the new engine beside those of its two peers in the same time",
        f"- a cold engine gets few: gateways prefer engines that have the prompt, so it is left after {MOST}",
        "",
        f"| start | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"| --- | {' | '.join('---:' for _ in columns)} |",
        *(
            f"| {'warm' if row['warm'] else 'cold'} | {' | '.join(str(row[column]) for column in columns)} |"
            for row in rows
        ),
    ]
    write("joining-engine", {"rows": rows}, lines)


if __name__ == "__main__":
    main()
