"""Two engines whose states travel by NIXL, with memory of the CPU over TCP, give the bits of one engine.

NIXL is an optional package of half a gigabyte: where it is missing, these tests are skipped.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from engines import make_engine, run
from hand_over_requests import assert_same_bits, prompts_of
from joined_engines import Joined, hand_over, joined

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(os.environ.get("UCX_TLS", "tcp") != "tcp", reason="UCX is set to another network"),
]
pytest.importorskip("nixl", exc_type=ImportError)
SETTINGS: dict[str, Any] = {"batch_invariant": True, "page_size": 16, "max_running_requests": 4}


@pytest.fixture(autouse=True)
def _over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")


def test_answers_after_a_hand_over_by_nixl_are_those_of_one_engine(random_model: Path) -> None:
    expected = run(make_engine(random_model, **SETTINGS), prompts_of(1))
    prefill, decode = (
        Joined(make_engine(random_model, **SETTINGS), transfer_transport="nixl") for _ in range(2)
    )
    with joined(prefill, decode):
        assert_same_bits(hand_over(prefill, decode, prompts_of(1)), expected)
        assert decode.outcomes("in")["valid"]
        assert decode.outcomes("in").keys() <= {"valid", "duplicate", "cached"}
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


def test_a_reader_by_nixl_computes_the_prompt_where_the_source_has_sockets_alone(random_model: Path) -> None:
    requests = prompts_of(1)[3:6]
    expected = run(make_engine(random_model, **SETTINGS), requests)
    prefill, decode = (
        Joined(make_engine(random_model, **SETTINGS), transfer_transport=name, transfer_lease=5.0)
        for name in ("sockets", "nixl")
    )
    with joined(prefill, decode):
        assert_same_bits(hand_over(prefill, decode, requests), expected)
        assert decode.outcomes("in") == {"refused": len(requests)}
