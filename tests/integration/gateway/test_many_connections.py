"""More connections than a server takes: probes are answered all the while, and honest clients lose nothing.

`benchmarks/hostile_clients.py` does the same with thousands, for times.
"""

import asyncio
from pathlib import Path

from crowd import PROBES, TEXT, Crowd, ask, idle, senseless, slow_bodies, slow_heads, unread_offers
from engine_api import serving
from tiny_model import write_model

REAL_TIME = True
MOST = 20


async def nothing_is_lost_beside_a_crowd(url: str) -> None:
    async with Crowd(url) as crowd:
        for kind, count in ((idle, 2 * MOST), (slow_heads, MOST), (slow_bodies, MOST // 4)):
            await crowd.come(kind, count)
        for _ in range(2):
            await asyncio.gather(crowd.come(senseless, MOST), crowd.come(unread_offers, MOST))
            assert [await ask(url, path) for path in PROBES] == [200] * len(PROBES)
            statuses = await asyncio.gather(*(ask(url, TEXT) for _ in range(8)))
            assert statuses == [200] * 8


async def test_a_gateway_s_probes_and_honest_clients_lose_nothing_beside_a_crowd(engine, spawn) -> None:
    limits = ("--max-connections", str(MOST), "--max-in-flight", "20", "--max-queue", "10")
    _, url = await spawn("--backend", (await engine()).url, *limits)
    await nothing_is_lost_beside_a_crowd(url)


async def test_an_engine_s_probes_and_honest_clients_lose_nothing_beside_a_crowd(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "tiny"), max_connections=MOST) as running:
        await nothing_is_lost_beside_a_crowd(running.url)
