"""The page about the planner: its table of states and its example of a plan without checkpoints are true."""

import json
import re
from pathlib import Path

import mamba_planner
from mamba_planner import Constraints, Device, plan
from mamba_planner.arithmetic import kv_bytes_per_token, state_bytes
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig

PAGE = (Path(__file__).parents[3] / "docs/explanation/planner.md").read_text()
PUBLISHED = Path(mamba_planner.__file__).parent / "published"
NAMES = {
    "nemotron-nano-9b-v2": "Nemotron Nano 9B v2",
    "qwen3.6-27b": "Qwen3.5, 3.6 and 3.8 27B",
    "qwen3.6-35b-a3b": "Qwen3.5 and 3.6 35B-A3B",
}
"""Names in the table that differ from those of the configurations in more than spaces and case."""


def published(path: Path) -> ModelConfig:
    return model_config_from_hf(json.loads(path.read_text()))


def row_of(config: ModelConfig) -> str:
    """Return the cells of the table behind a model's name."""
    states = [state_bytes(config, kind, "bfloat16").total / 1e6 for kind in ("float32", "float16")]
    written = [f"{size:.{1 if size >= 1 else 2}f} MB" for size in states]
    kv = kv_bytes_per_token(config, "bfloat16")
    layers = f"{config.recurrent_layers} / {config.attention_layers}"
    return " | ".join([layers, *written, f"{kv:,} B" if kv else "0"])


def test_each_state_in_the_table_has_the_size_that_the_planner_counts() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+ / \d+ \| .+ MB \| .+) \|$", PAGE, re.MULTILINE))
    configs = {
        NAMES.get(path.stem, path.stem.lower().replace("-", " ")): row_of(published(path))
        for path in PUBLISHED.glob("*.json")
    }
    lines = {name if name in configs else name.lower().replace("-", " "): row for name, row in rows.items()}
    assert len(lines) > 15
    assert lines == {name: configs[name] for name in lines}


def test_the_example_without_checkpoints_is_what_the_planner_says() -> None:
    result = plan(published(PUBLISHED / "granite-4.0-h-small.json"), Constraints(), Device("cuda", 80 << 30))
    section = " ".join(PAGE.partition("### Plans without checkpoints")[2].partition("\n#")[0].split())
    at_once, half, room, less = re.findall(r"(\d+)(?: %)? (?:sequences|checkpoints|fewer)", section)
    assert result.planned_running == int(at_once)
    assert f"{half} at once would leave room for {room} and" in result.reason
    assert f"-{less}% tokens per second" in result.reason
