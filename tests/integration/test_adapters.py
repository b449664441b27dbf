"""Adapters over HTTP: chosen by `model`, swapped under load without a wrong or a failed answer."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from matrix_size import LARGE
from servers import Server, call
from testmodels.adapters import shapes_in, write_adapter

pytestmark = pytest.mark.slow
assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
COMPLETIONS = "/v1/completions"
WORDS = " ".join(f"word{number}" for number in range(40))
CLIENTS, SWAPS = ("swapped", "one", "two", "base", "swapped"), 40 if LARGE else 3
"""Model of each client, and number of swaps."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), shapes_in(TINY, "in_proj", "q_proj", "up_proj")
    return {
        name: write_adapter(folder / name, shapes, seed=seed, size=0.25)
        for seed, name in enumerate(("one", "two"))
    }


@pytest.fixture(scope="module")
def server(paths: dict[str, Path]) -> Iterator[Server]:
    arguments = ("--arena-bytes", "32Mi", "--max-loras", "4", "--served-model-name", "base")
    with Server(TINY, "--lora", f"one={paths['one']}", *arguments) as server:
        yield server


def ask(server: Server, model: str) -> tuple[int, Any]:
    body = {
        "model": model, "prompt": WORDS, "max_tokens": 6, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    return call(server.url + COMPLETIONS, body)


def tokens(server: Server, model: str) -> list[int]:
    status, answer = ask(server, model)
    assert (status, answer["model"]) == (200, model)
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def load(server: Server, name: str, path: Path) -> tuple[int, Any]:
    return call(server.admin + "/admin/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})


def unload(server: Server, name: str) -> tuple[int, Any]:
    return call(server.admin + "/admin/unload_lora_adapter", {"lora_name": name})


def listed(server: Server) -> dict[str, str | None]:
    return {card["id"]: card["parent"] for card in call(server.url + "/v1/models")[1]["data"]}


def test_an_adapter_is_swapped_under_load_without_a_wrong_or_a_failed_answer(
    server: Server, paths: dict[str, Path]
) -> None:
    assert load(server, "two", paths["two"])[0] == 200
    assert listed(server) == {"base": None, "one": "base", "two": "base"}
    truth = {name: tokens(server, name) for name in ("base", "one", "two")}
    assert len({tuple(each) for each in truth.values()}) == 3
    assert load(server, "swapped", paths["one"])[0] == 200
    expected = {name: [tokens] for name, tokens in truth.items()} | {"swapped": [truth["one"], truth["two"]]}
    stopped, wrong, counts = threading.Event(), list[Any](), [0] * len(CLIENTS)

    def client(number: int) -> None:
        while not stopped.is_set():
            status, answer = ask(server, CLIENTS[number])
            got = answer["choices"][0]["token_ids"] if status == 200 else answer
            if got not in expected[CLIENTS[number]]:
                wrong.append((CLIENTS[number], got))
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(CLIENTS))]
    for thread in threads:
        thread.start()
    try:
        for swap in range(SWAPS):
            name = ("two", "one")[swap % 2]
            before = sum(counts)
            assert load(server, "swapped", paths[name])[0] == 200
            assert tokens(server, "swapped") == truth[name]
            wait_until(lambda before=before: sum(counts) >= before + len(CLIENTS))  # type: ignore[misc]
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert tokens(server, "base") == truth["base"]
    assert unload(server, "swapped")[0] == 200
    assert ask(server, "swapped")[0] == 404
    assert tokens(server, "one") == truth["one"]


def test_what_is_not_loaded_or_cannot_be_is_refused_with_what_to_do(
    server: Server, paths: dict[str, Path]
) -> None:
    status, answer = ask(server, "nobody")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "'one'" in answer["error"]["message"]
    status, answer = load(server, "x", paths["one"].parent)
    assert (status, "adapter_config.json" in answer["error"]["message"]) == (400, True)
    assert load(server, "base", paths["one"])[0] == 400
    assert load(server, "a name", paths["one"])[0] == 400
    assert unload(server, "nobody")[0] == 404
    salt = {"model": "base", "prompt": "x", "cache_salt": f"lora:{'0' * 32}:"}
    status, answer = call(server.url + COMPLETIONS, salt)
    assert (status, answer["error"]["param"]) == (400, "cache_salt")
