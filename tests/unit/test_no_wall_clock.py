"""No unit test sleeps or looks at the clock: what it says would depend on how busy the machine is.

A clock is a parameter and a test hands in one of its own, or it runs in virtual time; a test that has to wait
for a real process or socket does so with `eventually`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

UNIT = Path(__file__).parent
CLOCKS = {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
PAUSE = "asyncio.sleep of a real while"
FOR_EVER = 20
"""Seconds from which a sleep is meant to be cut off."""
ALLOWED = {
    "local/fake_child.py": "a program of its own, whose end is what its parent waits for",
    "api/test_connections.py": "to become virtual",
    "api/test_event_stream.py": "to become virtual",
    "api/test_engine_life.py": "to become virtual",
    "api/test_generate.py": "to become virtual",
    "api/test_server.py": "to become virtual",
    "engine/test_forward_stream.py": "to become virtual",
    "engine/test_port.py": "to become virtual",
    "gateway/test_admission.py": "to become virtual",
    "gateway/test_app.py": "to become virtual",
    "gateway/test_exchange.py": "to become virtual",
    "gateway/test_hold.py": "to become virtual",
    "gateway/test_prober.py": "to become virtual",
    "gateway/test_relay.py": "to become virtual",
    "gateway/test_server.py": "to become virtual",
    "gateway/test_watch.py": "to become virtual",
    "operator/test_client.py": "to become virtual",
    "operator/test_client_faults.py": "to become virtual",
    "local/test_processes.py": "to become virtual",
    "local/test_session.py": "to become virtual",
}
"""Files and why; one that no longer needs it must leave the list."""


def real_clocks(module: ast.Module) -> Iterator[str]:
    """What a module takes from the clock. Helpers run in virtual time where each asynchronous test does."""
    tests = [
        each
        for each in ast.walk(module)
        if isinstance(each, ast.AsyncFunctionDef) and each.name.startswith("test_")
    ]
    todo: list[tuple[ast.AST, bool]] = [(module, bool(tests) and all(map(in_virtual_time, tests)))]
    while todo:
        node, virtual = todo.pop()
        if isinstance(node, ast.AsyncFunctionDef):
            virtual = virtual or in_virtual_time(node)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{each.name}" for each in node.names if each.name in CLOCKS)
        elif is_attribute(node, "time", CLOCKS):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and is_attribute(node.func, "asyncio", {"sleep"}) and not virtual:
            seconds = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if seconds != 0 and not (isinstance(seconds, int) and seconds >= FOR_EVER):
                yield PAUSE
        todo += [(child, virtual) for child in ast.iter_child_nodes(node)]


def in_virtual_time(function: ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == "in_virtual_time" for each in function.decorator_list
    )


def is_attribute(node: ast.AST, of: str, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == of
        and node.attr in names
    )


@cache
def offenders() -> dict[str, list[str]]:
    found = {
        str(path.relative_to(UNIT)): sorted(real_clocks(ast.parse(path.read_text())))
        for path in sorted(UNIT.rglob("*.py"))
    }
    return {name: what for name, what in found.items() if what}


def test_no_unit_test_sleeps_or_looks_at_the_clock() -> None:
    assert {name: what for name, what in offenders().items() if name not in ALLOWED} == {}


def test_whoever_may_still_does() -> None:
    assert set(ALLOWED) - set(offenders()) == set()


def test_the_search_finds_what_it_is_for_and_leaves_virtual_time_alone() -> None:
    source = """
import time
from time import perf_counter
async def test_a():
    await asyncio.sleep(0.1)
    assert time.monotonic() < 3
@in_virtual_time
async def test_b():
    async def inner():
        await asyncio.sleep(5)
    await asyncio.sleep(0)
async def test_c():
    await asyncio.sleep(0)
    await asyncio.sleep(3600)
"""
    assert sorted(real_clocks(ast.parse(source))) == [PAUSE, "time.monotonic", "time.perf_counter"]
