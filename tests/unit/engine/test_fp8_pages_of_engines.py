"""Engines whose pages of attention are FP8: what they hold, what they say, and what they refuse."""

from pathlib import Path
from typing import Any

import mamba_server
from engines import greedy, make_engine, run
from mamba_server.engine.boot import Engine

TINY = Path(mamba_server.__file__ or "").parent / "builtin" / "tiny-recall"
PROMPTS = [[(7 * place + number) % 200 for place in range(length)] for number, length in enumerate((40, 90))]


def start(**settings: Any) -> Engine:
    return make_engine(TINY, arena_bytes=2 << 20, kv_cache_dtype="fp8_e4m3", dtype="bfloat16", **settings)


def test_pages_of_fp8_are_held_as_planned_and_hits_say_the_same() -> None:
    engine = start()
    attention, plan = engine.model.attention, engine.plan
    assert attention is not None
    row = engine.model.attention_layers * 2 * attention.kv_heads * (attention.head_dim + 1)
    assert plan.page_bytes == row * plan.page_size == engine.state_layout.page_bytes
    assert plan.arena_bytes == engine.memory.nbytes
    assert engine.core.cache.capacity.pages_per_slab == plan.slab_bytes // plan.page_bytes
    said = [run(engine, [greedy(f"{turn}{i}", each, 12) for i, each in enumerate(PROMPTS)]) for turn in "ab"]
    for number, prompt in enumerate(PROMPTS):
        first, second = said[0][f"a{number}", 0], said[1][f"b{number}", 0]
        assert (first.cached_tokens, first.tokens) == (0, second.tokens)
        assert second.cached_tokens == (len(prompt) - 1) // 16 * 16


def test_a_session_of_fp8_pages_is_of_another_layout_than_one_of_wider_pages() -> None:
    narrow = start().state_layout
    wide = make_engine(TINY, arena_bytes=2 << 20, dtype="bfloat16").state_layout
    assert narrow.fingerprint == wide.fingerprint
    assert narrow.digest != wide.digest
    refusal = narrow.refusal(wide)
    assert refusal is not None
    assert "keys_scales" in refusal
