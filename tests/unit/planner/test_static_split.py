"""The fixed split other engines use, reproduced so that the difference can be shown with numbers."""

import json
from pathlib import Path

import pytest

from mamba_planner.arithmetic import kv_bytes_per_token, state_bytes
from mamba_planner.families import model_config_from_hf
from mamba_planner.static_split import balanced_tokens, static_split

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
# An "80 GB" H100 reports 79.11 GiB; 80e9 bytes (173 slots) and 80 GiB (189) do not give the known numbers.
H100_BYTES = int(79.11 * 2**30)
NANO_WEIGHTS = 17_800_000_000


def sizes(name: str) -> tuple[int, int, int]:
    config = model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))
    return (
        state_bytes(config, "float32", "bfloat16").total,
        state_bytes(config, "float16", "bfloat16").total,
        kv_bytes_per_token(config, "bfloat16"),
    )


def test_nano_on_an_80_gb_card_gets_186_exact_and_369_half_width_slots() -> None:
    full, half, kv = sizes("nemotron-nano-9b-v2")
    rest = int(H100_BYTES * 0.88) - NANO_WEIGHTS
    assert static_split(rest, full, kv).slots == 186
    assert static_split(rest, half, kv).slots == 369
    assert static_split(rest, full, kv).kv_tokens == pytest.approx(1.83e6, rel=0.001)


@pytest.mark.parametrize(("memory", "slots"), [(80 * 10**9, 172), (80 * 2**30, 189)])
def test_other_readings_of_80_gb_do_not_give_the_known_number(memory: int, slots: int) -> None:
    full, _, kv = sizes("nemotron-nano-9b-v2")
    assert static_split(int(memory * 0.88) - NANO_WEIGHTS, full, kv).slots == slots


@pytest.mark.parametrize(("slots_each", "requests"), [(5, 37), (4, 46), (3, 62), (1, 186)])
def test_the_static_split_starves_requests_by_slots(slots_each: int, requests: int) -> None:
    full, _, kv = sizes("nemotron-nano-9b-v2")
    rest = int(H100_BYTES * 0.88) - NANO_WEIGHTS
    assert static_split(rest, full, kv).slots // slots_each == requests


# Model, then T* in thousands of tokens at 3, 4 and 5 slots per sequence, exact and half width.
BALANCE = [
    ("nemotron-nano-9b-v2", (29.2, 38.9, 48.7), (14.8, 19.7, 24.7)),
    ("granite-4.0-h-small", (31.1, 41.4, 51.8), (15.7, 21.0, 26.2)),
    ("bamba-9b", (33.4, 44.5, 55.7), (16.9, 22.5, 28.2)),
    ("falcon-h1-7b", (10.3, 13.7, 17.2), (5.2, 6.9, 8.6)),
    ("qwen3-next-80b-a3b", (10.5, 14.0, 17.5), (5.4, 7.1, 8.9)),
]


@pytest.mark.parametrize(("name", "exact", "half_width"), BALANCE)
def test_both_pools_fill_together_at_one_length_only(
    name: str, exact: tuple[float, ...], half_width: tuple[float, ...]
) -> None:
    full, half, kv = sizes(name)
    for slots, thousands, narrow in zip((3, 4, 5), exact, half_width, strict=True):
        assert balanced_tokens(slots, full, kv) / 1000 == pytest.approx(thousands, abs=0.06)
        assert balanced_tokens(slots, half, kv) / 1000 == pytest.approx(narrow, abs=0.06)


def test_without_attention_there_is_no_balance_and_no_kv() -> None:
    full, _, kv = sizes("mamba2-2.7b")
    assert balanced_tokens(3, full, kv) == float("inf")
    assert static_split(10 * full, full, kv).kv_tokens == 0


def test_a_budget_below_one_slot_gives_none() -> None:
    assert static_split(1000, 10**6, 10).slots == 0
