"""Two engine processes: one computes prompts, the other writes answers, and much goes wrong between."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from servers import Server, call

pytestmark = pytest.mark.slow

LEASE = 2.0
EXPORTED = re.compile(r"^mambaserve_transfer_exported\{[^}]*\} 1", re.MULTILINE)
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = " ".join(f"word{number}" for number in range(60))


@contextmanager
def engine(role: str, *arguments: str) -> Iterator[Server]:
    assert mamba_server.__file__ is not None
    model = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
    with Server(
        model, "--role", role, "--transfer-port", "0", "--transfer-lease", str(LEASE), "--seed", "1",
        "--arena-bytes", "16Mi", "--batch-invariant", *arguments,
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def prefill() -> Iterator[Server]:
    with engine("prefill") as server:
        yield server


@pytest.fixture(scope="module")
def decode() -> Iterator[Server]:
    with engine("decode") as server:
        yield server


def post(url: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    """Send a request with headers; return status and JSON."""
    names = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    request = urllib.request.Request(url, json.dumps(body).encode(), names, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def export(prefill: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = post(prefill.url + path, body, x_mambaserve_hand_over="export")
    assert status == 200, answer
    handover: dict[str, Any] = answer["handover"]
    return handover


def header_of(handover: dict[str, Any]) -> str:
    return "address={address};incarnation={incarnation};export={export};depth={depth}".format(**handover)


def finish(decode: Server, path: str, body: dict[str, Any], handover: dict[str, Any]) -> Any:
    status, answer = post(decode.url + path, body, x_mambaserve_hand_over=header_of(handover))
    assert status == 200, answer
    return answer


def exposed(server: Server) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def transfers(server: Server) -> dict[tuple[str, str], float]:
    """Return the number of transfers by direction and outcome."""
    counts = {}
    for line in exposed(server).splitlines():
        if line.startswith("mambaserve_transfers_total{"):
            labels = dict(pair.split("=") for pair in line[line.index("{") + 1 : line.index("}")].split(","))
            counts[labels["direction"].strip('"'), labels["outcome"].strip('"')] = float(line.split()[-1])
    return counts


def held(server: Server) -> int:
    ledger = server.ledger()
    return ledger["slots_receiving"] + ledger["slots_exported"] + ledger["slots_quarantined"]


def prompt(salt: int) -> str:
    return f"{salt} {WORDS} {salt}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": prompt(1), "max_tokens": 12, "logprobs": 3, "seed": 5}),
        (TEXT, {"prompt": prompt(2), "max_tokens": 6, "n": 2, "temperature": 0.8, "seed": 3, "logprobs": 1}),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": prompt(3)}], "max_tokens": 10, "temperature": 0,
                "logprobs": True, "top_logprobs": 2,
            },
        ),
    ],
    ids=["completion", "choices", "chat"],
)  # fmt: skip
def test_an_answer_after_a_hand_over_is_that_of_one_engine(
    prefill: Server, decode: Server, path: str, body: dict[str, Any]
) -> None:
    handover = export(prefill, path, body)
    assert 0 < handover["depth"] < handover["prompt_tokens"]
    answer = finish(decode, path, body, handover)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == handover["depth"]
    _, whole = post(prefill.url + path, body)
    assert answer["choices"] == whole["choices"]
    prefill.wait_until_empty()
    decode.wait_until_empty()


def test_an_engine_says_where_and_as_what_it_moves_states(prefill: Server, decode: Server) -> None:
    for server, role in ((prefill, "prefill"), (decode, "decode")):
        _, ready = call(f"{server.url}/readyz")
        assert ready["transfer"]["role"] == role
        assert ready["transfer"]["address"].startswith("127.0.0.1:")
        wait_until(
            lambda server=server: call(f"{server.url}/readyz")[1]["transfer"]["credits"] > 0, "the credits"
        )


def test_what_needs_the_whole_prompt_is_not_handed_over(prefill: Server) -> None:
    for body in (
        {"prompt": "x"},
        {"prompt": [prompt(4), prompt(5)]},
        {"prompt": prompt(4), "echo": True, "logprobs": 1},
        {"prompt": prompt(4), "prompt_logprobs": 1},
    ):
        assert export(prefill, TEXT, {"max_tokens": 2, **body})["depth"] == 0


def test_a_wrong_request_is_refused_before_anything_is_computed(prefill: Server) -> None:
    status, answer = post(
        prefill.url + TEXT, {"prompt": "x", "max_tokens": -1}, x_mambaserve_hand_over="export"
    )
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "damage",
    [
        {"export": "0123456789abcdef"},
        {"incarnation": "another"},
        {"address": "127.0.0.1:9"},
        {"depth": 999_999},
        {"depth": "x"},
        {"address": "localhost"},
    ],
    ids=["export", "incarnation", "address", "depth", "bad depth", "bad address"],
)
def test_a_source_that_has_nothing_means_computing(
    prefill: Server, decode: Server, damage: dict[str, Any]
) -> None:
    body = {"prompt": prompt(6 + len(str(damage))), "max_tokens": 4, "logprobs": 1}
    handover = export(prefill, TEXT, body)
    answer = finish(decode, TEXT, body, {**handover, **damage})
    _, whole = post(prefill.url + TEXT, body)
    assert answer["choices"] == whole["choices"]
    prefill.wait_until_empty()
    decode.wait_until_empty()


def test_a_state_that_the_gateway_releases_is_free_before_its_lease_ends(prefill: Server) -> None:
    handover = export(prefill, TEXT, {"prompt": prompt(30), "max_tokens": 1})
    assert held(prefill) == 1
    status, answer = post(
        f"{prefill.admin}/admin/handover", {}, x_mambaserve_hand_over=f"release={handover['export']}"
    )
    assert (status, answer) == (200, {"released": True})
    assert held(prefill) == 0


def test_an_engine_frees_what_nobody_reads_and_waits_at_its_end_for_those_who_read(decode: Server) -> None:
    body = {"prompt": prompt(32), "max_tokens": 4, "logprobs": 1}
    with engine("prefill", "--transfer-lease", "3600") as prefill:
        _, whole = post(decode.url + TEXT, body)
        handover = export(prefill, TEXT, body)
        answer = finish(decode, TEXT, body, handover)
        # The decode engine has the state already.
        assert answer["choices"] == whole["choices"]
        prefill.wait_until_empty()
        decode.wait_until_empty()
        assert transfers(prefill)["out", "released"] == 1
        # A gateway frees what no engine reads, without the admin server.
        handover = export(prefill, TEXT, body)
        status, released = post(
            f"{prefill.url}/v1/handover", {}, x_mambaserve_hand_over=f"release={handover['export']}"
        )
        assert (status, released) == (200, {"released": True})
        prefill.wait_until_empty()
        body = {"prompt": prompt(45), "max_tokens": 4}
        handover = export(prefill, TEXT, body)
        wait_until(lambda: EXPORTED.search(exposed(prefill)), "the count of the export")
        prefill.terminate()
        prefill.wait_for("draining")
        answer = finish(decode, TEXT, body, handover)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == handover["depth"]
        assert prefill.wait() == 0


def test_a_peer_with_more_of_the_prompt_gives_it(prefill: Server, decode: Server) -> None:
    body = {"prompt": prompt(31), "max_tokens": 4, "logprobs": 1}
    _, first = post(prefill.url + TEXT, body)
    _, ready = call(f"{prefill.url}/readyz")
    depth = (first["usage"]["prompt_tokens"] - 1) // 16 * 16
    hint = "address={address};incarnation={incarnation}".format(**ready["transfer"]) + f";depth={depth}"
    status, answer = post(decode.url + TEXT, body, x_mambaserve_peer=hint)
    assert status == 200
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == depth
    assert answer["choices"] == first["choices"]
    prefill.wait_until_empty()
    decode.wait_until_empty()


def test_an_export_that_nobody_fetches_ends_with_its_lease(prefill: Server, decode: Server) -> None:
    body = {"prompt": prompt(50), "max_tokens": 4}
    handover = export(prefill, TEXT, body)
    prefill.wait_until_empty()
    answer = finish(decode, TEXT, body, handover)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    wait_until(lambda: transfers(decode).get(("in", "expired")), "the count of the expired export")


def test_a_prefill_engine_that_dies_costs_a_recomputation(prefill: Server, decode: Server) -> None:
    body = {"prompt": prompt(49), "max_tokens": 4, "logprobs": 1}
    handover = export(prefill, TEXT, body)
    before = transfers(decode)
    os.kill(prefill.engine_pid(), signal.SIGKILL)
    answer = finish(decode, TEXT, body, handover)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    decode.wait_until_empty()
    failures = {key: count - before.get(key, 0) for key, count in transfers(decode).items() if key[0] == "in"}
    assert sum(failures.values()) == 1
    assert failures.get(("in", "valid"), 0) == 0
    _, whole = post(decode.url + TEXT, body)
    assert answer["choices"][0]["text"] == whole["choices"][0]["text"]
