"""The disk below the arena, as clients and operators notice it: over restarts of the whole server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from servers import Command, Server, call

pytestmark = pytest.mark.slow

assert mamba_server.__file__ is not None
MODEL = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
TEXT = "/v1/completions"
WORDS = " ".join(f"word{number}" for number in range(60))


@contextmanager
def engine(folder: Path, *arguments: str) -> Iterator[Server]:
    with Server(
        MODEL, "--disk-cache", str(folder), "--disk-cache-bytes", "64Mi", "--seed", "1",
        "--arena-bytes", "16Mi", "--batch-invariant", *arguments,
    ) as server:  # fmt: skip
        yield server


def ask(server: Server, number: int) -> Any:
    body = {"prompt": f"{number} {WORDS} {number}", "max_tokens": 4, "logprobs": 2}
    status, answer = call(server.url + TEXT, body)
    assert status == 200, answer
    return answer


def cached(answer: Any) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_after_a_restart_prompts_resume_from_the_disk_but_for_one_whose_file_is_damaged(
    tmp_path: Path,
) -> None:
    with engine(tmp_path) as server:
        first = [ask(server, number) for number in range(3)]
        assert all(not cached(answer) for answer in first)
        # No other engine may use its directory meanwhile.
        with Command(
            "serve", "--model", str(MODEL), "--port", "0", "--admin-port", "0", "--device", "cpu",
            "--disk-cache", str(tmp_path), "--disk-cache-bytes", "64Mi",
        ) as command:  # fmt: skip
            assert command.wait() == 2
            assert str(tmp_path) in command.output
        server.terminate()
        assert server.wait() == 0
    damage(max(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 20_000))
    with engine(tmp_path) as server:
        second = [ask(server, number) for number in range(3)]
        assert [answer["choices"] for answer in second] == [answer["choices"] for answer in first]
        computed = [answer for answer in second if not cached(answer)]
        assert len(computed) == 1
        for answer in second:
            assert answer in computed or cached(answer) >= answer["usage"]["prompt_tokens"] - 17

        def causes() -> dict[str, int]:
            misses: dict[str, int] = call(f"{server.url}/v1/status")[1]["engines"][0]["misses"]
            return misses

        wait_until(lambda: causes().get("corrupt") == 1, "the miss in the statistics")
