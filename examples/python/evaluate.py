"""A small task of your own, scored by lm-eval with the model in this program: no server, no network.

It needs the extras `server` and `lm-eval` (docs/howto/lm-eval.md), and says so where one is missing.
"""

import json
import sys
import tempfile
from pathlib import Path

try:
    import mambaserve.lm_eval  # noqa: F401  the import adds the model type `mambaserve`
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}")  # the message has the command that installs the extra

import lm_eval
from lm_eval.tasks import TaskManager

MODEL = "builtin://tiny-recall"
FACTS = "lamp: green\nkey: iron\nboat: red"
TASK = {
    "task": "facts",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}],
}
DOCUMENTS = [
    {"question": f"{FACTS}\nWhat is the {thing}?", "choices": ["green", "iron", "red"], "gold": place}
    for place, thing in enumerate(("lamp", "key", "boat"))
]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "facts.jsonl").write_text("\n".join(map(json.dumps, DOCUMENTS)))
        task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(folder / "facts.jsonl")}}}
        (folder / "facts.yaml").write_text(json.dumps(task))  # JSON is YAML
        results = lm_eval.simple_evaluate(
            model="mambaserve",
            model_args={"pretrained": MODEL},
            tasks=["facts"],
            task_manager=TaskManager(include_path=str(folder)),
        )
    print(results["results"]["facts"])
