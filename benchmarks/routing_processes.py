"""The processes of `routing_live`: engines of the shipped model, gateways before them, and a Redis."""

import contextlib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.engine import running_command
from benchmarks.redis import running_redis

from mamba_cli.local.ports import free_ports

Way = Literal["one", "load", "attention", "resumable"]
"""One engine with all the memory; by load alone; to the engine with most attention pages of the prompt, as
the sender remembers them; the product as it is."""
MODEL = "builtin://tiny-recall"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where its processes are."""

    engines: list[str]
    admins: list[str]
    """The engines' admin servers."""
    doors: list[str]
    """URLs that requests are sent to, in turn."""

    def flush(self) -> None:
        """Let the engines forget all prompts."""
        for url in self.admins:
            request = urllib.request.Request(f"{url}/admin/flush_cache", method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()


@contextlib.contextmanager
def fleet(way: Way, engines: int, gateways: int, arena: int) -> Iterator[Fleet]:
    """Run the processes of a fleet and yield it once they are ready."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        one = way == "one"
        admins = free_ports(1 if one else engines)
        urls = [
            stack.enter_context(
                running_command(
                    "serve", "--model", MODEL, "--admin-port", str(admin), "--device", "cpu",
                    "--arena-bytes", str(engines * arena if one else arena), "--redis-url", redis,
                    variables={"OMP_NUM_THREADS": "1"},
                )
            )
            for admin in admins
        ]  # fmt: skip
        admin_urls = [f"http://127.0.0.1:{admin}" for admin in admins]
        if way == "attention":
            yield Fleet(urls, admin_urls, urls)
            return
        backends = [word for url in urls for word in ("--backend", url)]
        weight = ("--prefix-weight", "0") if way == "load" else ()
        yield Fleet(
            urls,
            admin_urls,
            [
                stack.enter_context(
                    running_command(
                        "gateway",
                        *backends,
                        "--redis-url",
                        redis,
                        "--prefix-index-scope",
                        "tiny-recall",
                        *weight,
                    )
                )
                for _ in range(gateways)
            ],
        )
