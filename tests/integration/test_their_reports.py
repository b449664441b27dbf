"""GuideLLM and `mambaserve bench` on one server: each reports what a proxy measured of its own requests.

GuideLLM has an environment of its own, which `make clients` makes; MAMBASERVE_GUIDELLM names its program.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prefork import FORK_SERVER
from servers import Server
from timed_proxy import timed_proxy

PROGRAM = os.environ.get("MAMBASERVE_GUIDELLM", "")
BUILTIN = Path(__file__).parents[2] / "server/mamba_server/builtin/tiny-recall"
MODEL, REQUESTS, STREAMS, PROMPT, OUTPUT = "tiny-recall", 24, 2, 300, 32
RATIO, SLACK_MS = 3.0, 250.0
"""Bounds on two medians of the same requests: a client on a busy machine learns of a token later."""
pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(not PROGRAM, reason="GuideLLM is not installed: make clients"),
]


def guidellm(url: str, folder: Path) -> dict[str, Any]:
    """Run GuideLLM as the page on tools of others does, and return the numbers of its one benchmark."""
    path = folder / "guidellm.json"
    ran = subprocess.run(
        [
            PROGRAM, "run", "--output", f"kind=json,path={path}",
            "--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions",
            "--profile", f"kind=concurrent,streams={STREAMS}",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--tokenizer", f"kind=huggingface_auto,model={BUILTIN}",
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
        ],
        capture_output=True, text=True, timeout=600, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    [benchmark] = json.loads(path.read_text())["benchmarks"]
    metrics: dict[str, Any] = benchmark["metrics"]
    return metrics


def bench(url: str) -> dict[str, Any]:
    ran = FORK_SERVER.run(
        *("-m", "mamba_cli", "bench", "serve", url, "--requests", str(REQUESTS), "--warmup", "0"),
        *("--concurrency", str(STREAMS), "--input-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)),
        *("--output", "json"),
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def assert_same(client: Mapping[str, float], wire: Mapping[str, float]) -> None:
    """Check the medians of a client against those of its requests on the wire."""
    # A client begins to measure before the wire does, and sees a token after it.
    assert wire["ttft"] - 1 <= client["ttft"] <= wire["ttft"] * RATIO + SLACK_MS, (client, wire)
    assert wire["tpot"] / RATIO <= client["tpot"] <= wire["tpot"] * RATIO, (client, wire)


def medians(report: dict[str, Any]) -> dict[str, float]:
    return {name: report["latency_ms"][name]["p50"] for name in ("ttft", "tpot")}


@pytest.mark.timeout(900)
def test_both_report_the_requests_that_passed(tmp_path: Path) -> None:
    with Server(f"builtin://{MODEL}") as server, timed_proxy(server.url) as proxy:
        theirs = guidellm(proxy.url, tmp_path)
        of_theirs = proxy.report()
        ours = bench(proxy.url)
        of_ours = proxy.report()
    done = {name: theirs[name]["successful"] for name in theirs if "successful" in (theirs[name] or {})}
    assert theirs["request_totals"]["successful"] == theirs["request_totals"]["total"] == REQUESTS
    assert ours["requests"]["ok"] == of_ours["requests"]["ok"] == of_theirs["requests"]["ok"] == REQUESTS
    assert done["output_token_count"]["total_sum"] == REQUESTS * OUTPUT
    assert done["prompt_token_count"]["total_sum"] == of_theirs["tokens"]["prompt"]
    assert ours["tokens"]["output"] == of_ours["tokens"]["output"] == REQUESTS * OUTPUT
    assert ours["tokens"]["prompt"] == of_ours["tokens"]["prompt"] == REQUESTS * PROMPT
    times = {
        "ttft": done["time_to_first_token_ms"]["median"], "tpot": done["inter_token_latency_ms"]["median"]
    }  # fmt: skip
    print(f"GuideLLM {times}, on the wire {medians(of_theirs)}")
    print(f"bench {medians(ours)}, on the wire {medians(of_ours)}")
    assert_same(times, medians(of_theirs))
    assert_same(medians(ours), medians(of_ours))
