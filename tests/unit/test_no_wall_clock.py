"""No unit test sleeps or looks at the clock: what it says would depend on how busy the machine is.

A clock is a parameter and a test hands in one of its own, or it runs in virtual time; a test that has to wait
for a real process or socket does so with `eventually`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

UNIT = Path(__file__).parent
CLOCKS = {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
PAUSE = "asyncio.sleep of a real while"
MAY_NAME_A_CLOCK = re.compile(r"\bfrom\s+time\b|\btime\s*\.|\basyncio\s*\.\s*sleep\b")
"""Text that a module must contain for `real_clocks` to find anything: the others need no tree."""
FOR_EVER = 20
"""Seconds from which a sleep is meant to be cut off."""
ALLOWED = {
    "local/fake_child.py": "a program of its own, whose end is what its parent waits for",
    "local/test_processes.py": "waits for real processes, with limits far beyond what they take",
    "local/test_session.py": "waits for real processes, with limits far beyond what they take",
    "api/test_engine_life.py": "real engine processes, told apart by what they do",
    "api/test_server.py": "a thread of its own that ends at some time; nothing is measured",
    "engine/test_forward_stream.py": "a thread of its own, with a limit far beyond what it takes",
    "engine/test_port.py": "two ends of real sockets: no earlier than the time that was asked for",
    "gateway/test_admission.py": "hands the gateway its clock; the limits are waited for in virtual time",
    "gateway/test_app.py": "hands the gateway its clock; the limits are waited for in virtual time",
    "gateway/test_document.py": "hands the gateway its clock; the limits are waited for in virtual time",
}
"""Files and why; one that no longer needs it must leave the list."""


def real_clocks(module: ast.Module) -> Iterator[str]:
    """Yield the clock uses of a module. Helpers run in virtual time where each asynchronous test does."""
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
    found = {}
    for path in sorted(UNIT.rglob("*.py")):
        text = path.read_text()
        if not MAY_NAME_A_CLOCK.search(text):
            continue
        module = ast.parse(text)
        pauses = {PAUSE} if in_virtual_folder(path, module) else set()
        found[str(path.relative_to(UNIT))] = sorted(
            each for each in real_clocks(module) if each not in pauses
        )
    return {name: what for name, what in found.items() if what}


def in_virtual_folder(path: Path, module: ast.Module) -> bool:
    """Return whether the event loop of the module's tests has a clock of its own."""
    conftest = path.parent / "conftest.py"
    text = conftest.read_text() if conftest.exists() else ""
    named = {each.id for each in ast.walk(module) if isinstance(each, ast.Name)}
    covered = "OVER_SOCKETS" not in text or f'"{path.stem}"' in text
    return "virtual_loop" in text and covered and "REAL_TIME" not in named


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
    assert all(map(MAY_NAME_A_CLOCK.search, ("from time import x", "time.sleep(1)", "asyncio.sleep(1)")))
    assert sorted(real_clocks(ast.parse(source))) == [PAUSE, "time.monotonic", "time.perf_counter"]
