"""Work that a caller shares with helpers: all of it, until one piece fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mamba_tier.shared_work import SharedWork


def test_every_piece_is_done_once_whoever_helps() -> None:
    done: list[int] = []
    with ThreadPoolExecutor(3) as helpers:
        for number in (0, 1, 3):
            done.clear()
            SharedWork(iter(range(1, 50)), lambda piece: done.append(piece) is None).run(helpers, number)
            assert sorted(done) == list(range(1, 50))


def test_the_first_piece_that_fails_ends_the_work() -> None:
    with ThreadPoolExecutor(1) as helpers:
        work = SharedWork(iter(range(1, 1000)), lambda piece: piece != 5)
        work.run(helpers, 1)
    assert work.failed == 5
    assert next(work._pieces) < 1000


def test_an_error_of_a_helper_reaches_the_caller() -> None:
    caller = threading.get_ident()
    helped = threading.Event()

    def do(piece: int) -> bool:
        if threading.get_ident() == caller:
            return helped.wait(60)
        helped.set()
        raise OSError("the disk is gone")

    with ThreadPoolExecutor(1) as helpers, pytest.raises(OSError, match="the disk is gone"):
        SharedWork(iter(range(1, 10)), do).run(helpers, 1)


def test_the_caller_works_alone_once_the_helpers_are_gone() -> None:
    helpers = ThreadPoolExecutor(1)
    helpers.shutdown()
    done: list[int] = []
    SharedWork(iter(range(1, 9)), lambda piece: done.append(piece) is None).run(helpers, 2)
    assert done == list(range(1, 9))
