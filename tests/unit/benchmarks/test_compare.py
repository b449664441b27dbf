"""The comparison of two servers: what the ratio and its interval say, and that both get the same prompts."""

import asyncio
import io
import math
from typing import Any

import pytest
from benchmarks import compare
from rich.console import Console

from mamba_cli.bench.run import LoadPlan


def test_the_interval_holds_the_ratio_of_servers_that_differ_by_a_constant() -> None:
    noisy = [(100.0, 210.0), (90.0, 170.0), (120.0, 245.0), (110.0, 215.0)]
    middle, low, high = compare.ratio(noisy)
    assert low < 2 < high
    assert middle == pytest.approx(1.98, abs=0.02)
    assert compare.ratio([(1.0, 2.0), (50.0, 100.0)]) == pytest.approx((2.0, 2.0, 2.0))
    assert compare.ratio([(1.0, 3.0)])[1:] == (0.0, math.inf)


def test_each_round_sends_both_servers_the_same_new_prompts_and_changes_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, list[tuple[int, ...]]]] = []

    async def execute(plan: LoadPlan, _: Console) -> dict[str, Any]:
        sent.append((plan.url, [prompt.token_ids for prompt in plan.prompts()]))
        speed = {"http://one": 10.0, "http://two": 20.0}[plan.url]
        times = {name: None if name == "tpot" else {"p50": 1 / speed, "p99": 2 / speed}
                 for name in ("ttft", "tpot", "e2e")}  # fmt: skip
        return {
            "url": plan.url, "model": "m", "interrupted": False, "date": "2026-11-29T07:00:00+00:00",
            "requests": {"failed": 0}, "tokens": {"cached": 0, "prompt": 6}, "latency_ms": times,
            "rates": {"output_tokens_per_second": speed, "requests_per_second": speed},
        }  # fmt: skip

    monkeypatch.setattr(compare, "execute", execute)
    machine = {"processor": "p", "cores": 2, "system": "s"}
    monkeypatch.setattr(compare, "facts", lambda: machine)
    words = ["http://one", "http://two", "--rounds", "3", "--requests", "2", "--input-tokens", "40"]
    arguments = compare._parser().parse_args(words)
    document = asyncio.run(compare.compare(arguments, Console(file=io.StringIO())))
    assert [url for url, _ in sent] == [
        f"http://{name}" for name in ("one", "two", "two", "one", "one", "two")
    ]
    prompts = [each for _, each in sent]
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3]
    assert len({ids for each in prompts for ids in each}) == 6
    text = compare.markdown(document)
    assert "| output tokens/s | 10.0 | 20.0 | 2.000 | 2.000 to 2.000 |" in text
    # A measure that a server does not have is left out instead of compared with nothing.
    assert "TPOT" not in text
