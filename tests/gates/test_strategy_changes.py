"""The strategy is changed again and again under load: no request fails and no token differs."""

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gate_cases import LARGE, STRATEGIES
from servers import Server, call

STREAMS, CHANGES, OUTPUTS = (64, 100, 40) if LARGE else (16, 12, 16)


@pytest.fixture
def server(random_model: Path) -> Iterator[Server]:
    options = ["--batch-invariant", "--arena-bytes", "256Mi", "--max-running-requests", "64"]
    with Server(random_model, *options, "--max-model-len", "512", "--track-interval", "32") as running:
        yield running


def stream(server: Server, prompt: list[int]) -> list[int]:
    """Return the token ids of one streamed completion; raise if it fails."""
    body = {
        "model": server.model, "prompt": prompt, "max_tokens": OUTPUTS, "temperature": 0, "stream": True,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    tokens: list[int] = []
    reason = None
    with urllib.request.urlopen(request, timeout=240) as answer:
        for line in answer:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                reason = choice["finish_reason"] or reason
    assert reason == "length"
    assert len(tokens) == OUTPUTS
    return tokens


@pytest.mark.slow
@pytest.mark.timeout(1800 if LARGE else 300)
def test_changing_the_strategy_under_load_fails_nothing_and_changes_no_token(server: Server) -> None:
    rng = random.Random(3)
    stem = [rng.randrange(256) for _ in range(100)]
    prompts = [stem[: rng.randint(20, 100)] + [rng.randrange(256) for _ in range(8)] for _ in range(STREAMS)]
    truth = [stream(server, prompt) for prompt in prompts]
    done = threading.Event()
    wrong: list[int] = []
    passes = 0
    refusals: list[object] = []

    def load() -> None:
        nonlocal passes
        with ThreadPoolExecutor(STREAMS) as pool:
            while not done.is_set():
                for index, tokens in enumerate(pool.map(lambda each: stream(server, each), prompts)):
                    if tokens != truth[index]:
                        wrong.append(index)
                passes += 1

    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(load)
        try:
            for number in range(CHANGES):
                body = {"strategy": STRATEGIES[number % 3]}
                status, answer = call(f"{server.admin}/admin/strategy", body, method="PUT")
                if status != 200:
                    refusals.append(answer)
                done.wait(0.05 if LARGE else 0.15)
        finally:
            done.set()
        loading.result()
    assert passes >= 1
    assert not wrong
    assert not refusals
    ledger = server.ledger()
    assert ledger["running"] == ledger["waiting"] == 0
