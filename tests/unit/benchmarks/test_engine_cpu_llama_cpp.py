"""Parsing of the output of llama.cpp's benchmark."""

import sys
from pathlib import Path

import pytest
from benchmarks.engine_cpu_llama_cpp import measure

LOSES_ITS_LAST_LINE = """#!{python}
import json, sys
prompts = sys.argv[sys.argv.index("-npp") + 1].split(",")
for prompt in prompts[:-1]:
    print(json.dumps({{"pp": int(prompt), "t_pp": 2.0, "t_tg": 4.0}}))
"""


@pytest.mark.parametrize(("kind", "count", "seconds"), [("prefill", 512, 2.0), ("decode", 8, 0.5)])
def test_the_number_is_there_where_the_last_line_is_lost(
    tmp_path: Path, kind: str, count: int, seconds: float
) -> None:
    program = tmp_path / "llama-batched-bench"
    program.write_text(LOSES_ITS_LAST_LINE.format(python=sys.executable))
    program.chmod(0o755)
    assert measure(program, tmp_path / "model.gguf", 2, kind, count) == {"wall": seconds}
