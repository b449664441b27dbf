"""lm-eval, unmodified, with the model type `mambaserve`: its scores are those of transformers.

It has an environment of its own, which `make clients` makes and names in MAMBASERVE_LM_EVAL.
"""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("MAMBASERVE_LM_EVAL", "")
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "server/mamba_server/builtin/tiny-recall"
CITIES = ["Oslo", "Rome", "Bonn", "Lima"]
TASKS = {
    "choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{prompt}}", "doc_to_choice": "cities",
        "doc_to_target": "gold", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "words": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{facts}}",
        "metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}],
    },
    "answer": {
        "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{cities[gold]}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip
DOCUMENTS = 6
pytestmark = [
    pytest.mark.tools,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="lm-eval is not installed: make clients"),
]


def write_tasks(folder: Path) -> None:
    """Write the tasks and their documents, which need no network."""
    rng = random.Random(5)
    lines = []
    for _ in range(DOCUMENTS):
        homes = {name: rng.randrange(len(CITIES)) for name in ("Ann", "Bob", "Eve")}
        facts = " ".join(f"{name} lives in {CITIES[home]}." for name, home in homes.items())
        asked = rng.choice(list(homes))
        prompt = f"{facts} {asked} lives in"
        lines.append({"facts": facts, "prompt": prompt, "cities": CITIES, "gold": homes[asked]})
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, task in TASKS.items():
        source = {
            "task": name, "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}},
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(source | task))  # JSON is YAML


def ran_offline(folder: Path, command: list[str]) -> str:
    """Run a command that has to do without the Hub, and return what it printed."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    ran = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def evaluated(folder: Path, module: str, *options: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Run lm-eval; return the scores of the tasks, and what the model said for each document."""
    out = folder / module
    command = [
        PYTHON, "-m", module, "run", "--tasks", ",".join(TASKS), "--include_path", str(folder),
        "--output_path", str(out), "--log_samples", *options,
    ]  # fmt: skip
    ran_offline(folder, command)
    [results] = out.rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]
    samples = {}
    for name in TASKS:
        [file] = out.rglob(f"samples_{name}_*.jsonl")
        lines = map(json.loads, file.read_text().splitlines())
        said = sorted(lines, key=lambda line: line["doc_id"])
        samples[name] = [line["resps"] for line in said]
    return scores, samples


def flat(value: Any) -> list[Any]:
    return [inner for each in value for inner in flat(each)] if isinstance(value, list) else [value]


def number(value: Any) -> Any:
    """Return a logged answer as a number where it is one: lm-eval writes some as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def test_every_score_is_that_of_transformers_on_the_same_checkpoint(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    of_model = ("--model", "hf", "--model_args", f"pretrained={MODEL},dtype=float32", "--device", "cpu")
    expected, theirs = evaluated(tmp_path, "lm_eval", *of_model)
    scores, ours = evaluated(
        tmp_path, "mambaserve.lm_eval", "--model", "mambaserve", "--model_args", f"pretrained={MODEL}"
    )
    for name in TASKS:
        said, wanted = (list(map(number, flat(each[name]))) for each in (ours, theirs))
        assert len(said) == len(wanted)
        for mine, other in zip(said, wanted, strict=True):
            assert mine == (pytest.approx(other, abs=2e-3) if isinstance(other, float) else other), name
        for metric, value in expected[name].items():
            if isinstance(value, float):
                assert scores[name][metric] == pytest.approx(value, rel=1e-4), (name, metric)


def test_the_example_scores_its_own_task_as_it_stands(tmp_path: Path) -> None:
    printed = ran_offline(tmp_path, [PYTHON, str(ROOT / "examples/python/evaluate.py")])
    assert "'acc,none': 1.0" in printed.splitlines()[-1]
