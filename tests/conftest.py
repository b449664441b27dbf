"""Process-wide setup of every test: event loop, tracebacks in logs, garbage collection and Ctrl-C.

The main thread has no left-over event loop. No search for garbage walks through the objects that exist before
the first test, or while they are created: some million objects of libraries and thousands of tests. Ctrl-C is
handled, although shells let their background jobs, and the children of these, ignore it.

pytest-asyncio asks for "the current loop" around each test; without this line Python makes one to answer, and
nobody closes it, which the last check of the session reports as an error.
"""

import asyncio
import gc
import logging
import signal

import pytest
import structlog

OUR_TOOLS = (
    "tests/gates/test_gpu_tests_interpreted.py",
    "tests/integration/test_gpu_measurement.py",
    "tests/kube/test_control_plane.py",
    "tests/unit/benchmarks/",
    "tests/unit/cluster/",
    "tests/unit/training/",
)
"""Tests of the benchmarks, the tests for a card, the test cluster and the training of the shipped model."""

LAST_WAITING_FILE = 0.7
"""Part of the files behind which no file waits for a control plane: the slowest of them takes a minute."""
LAST_SLOW_FILE = 0.4
"""The same of the slow files that compute: a run must not end with one process that is still at work."""
WITH_PROCESSES = "tests/integration/"
"""Folder whose files wait for servers much of the time, and compute little."""

asyncio.set_event_loop(None)
# Unless configured, structlog renders a traceback with the variables of each frame: 0.2 CPU seconds each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
gc.disable()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(OUR_TOOLS):
        item.add_marker(pytest.mark.tools)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait for others, and the slow ones, so that no core is idle."""
    waiting = [_file(item) for item in items if item.get_closest_marker("kube")]
    slow = [_file(item) for item in items if item.get_closest_marker("slow")]
    servers = [file for item in items if (file := _file(item)).startswith(WITH_PROCESSES)]
    places: dict[str, float] = {}
    for files, end in (
        (waiting, LAST_WAITING_FILE), (slow, LAST_SLOW_FILE), (servers, 1.0), (map(_file, items), 1.0),
    ):  # fmt: skip
        group = [file for file in dict.fromkeys(files) if file not in places]
        places |= {file: end * index / len(group) for index, file in enumerate(group)}
    items.sort(key=lambda item: places[_file(item)])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let no later search for garbage walk through what the tests of this file have left behind.

    A process that runs thousands of tests keeps a million objects, imported modules most of them. A sixth of
    the time of all tests went into walks through these.
    """
    if nextitem is not None and _file(nextitem) != _file(item):
        gc.collect()
        gc.freeze()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()
    # pytest hangs two handlers on every logger that does not tell the root, three times a test, and torch has
    # sixty of them: more work than most of the tests.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
