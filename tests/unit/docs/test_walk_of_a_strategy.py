"""The walk of `stateCache.strategy` as the docs tell it: short, complete, each file there for a use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "walk-of-a-strategy.md").read_text()
WALK = re.findall(r"^(\d+)\. `([^`]+)`: \S", PAGE, re.MULTILINE)
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^- `([^`]+)`: \S", part, re.MULTILINE)
    for part in PAGE.split("\n## ")[1:]
}
OF_OTHERS = {
    "operator/mamba_operator/gpu_memory.py",
    "operator/mamba_operator/rollout/in_place_rollout.py",
    "operator/mamba_operator/render/engine.py",
    "operator/mamba_operator/render/gateway.py",
}
"""Their `strategy` is that of a Kubernetes Deployment, or of pods that share a GPU."""
WHOLE = {
    "operator/mamba_planner/spec_settings.py": "type(spec.state_cache).model_fields",
    "operator/mamba_planner/engine_settings.py": "HttpLimits, SchedulerSettings, StateCache,",
    "server/mamba_cli/settings_options.py": "read_document(Path(path), known)",
}
"""Files of the walk that take over every field of the cache without naming one, and where they do."""
HANDED_ON = {
    "operator/mamba_operator/memory_plan.py": "made.to_status()",
    "operator/mamba_operator/plan.py": "verdict.plan if isinstance(verdict, PlanFits) else None",
    "operator/mamba_operator/render/context.py": "plan: PlanStatus | None",
    "operator/mamba_operator/render/engine.py": "json.dumps(engine_revision(context).document",
    "operator/mamba_operator/render/live_settings.py": "for setting, name in LIVE.items()",
    "server/mamba_cli/commands/serve.py": "EngineSettings(**given)",
    "server/mamba_server/api/server.py": "settings.model_copy(update=changes).model_dump_json()",
    "server/mamba_server/api/engine_client.py": "EngineProcess.start(settings_json",
    "server/mamba_server/api/engine_process.py": '"--settings", settings_json',
    "server/mamba_server/engine/__main__.py": "EngineSettings.model_validate_json(options.settings)",
    "server/mamba_cli/local/unit.py": "self.settings.document()",
}


def words(tree: ast.AST) -> Iterator[str]:
    """Names and short strings of a module: no prose."""
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name"):
            if isinstance(word := getattr(node, attribute, None), str):
                yield word
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value


def naming() -> set[str]:
    """Every source file that names the strategy of a cache."""
    files = [path for folder in ("operator", "server") for path in (ROOT / folder).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        # Most have no such letters anywhere and need no tree.
        if "strategy" in (text := path.read_text()).lower()
        and any("strategy" in word.lower() for word in words(ast.parse(text)))
    }
    return found - OF_OTHERS


def test_the_way_has_at_most_twelve_files_each_of_which_is_on_the_page_once() -> None:
    files = [path for _, path in WALK] + [path for section in SECTIONS.values() for path in section]
    assert [int(number) for number, _ in WALK] == list(range(1, len(WALK) + 1))
    assert len(WALK) <= 12
    assert len(files) == len(set(files))
    assert [path for path in files if not (ROOT / path).is_file()] == []


def test_the_page_has_every_file_that_names_the_strategy() -> None:
    on_the_page = {path for _, path in WALK} | {path for section in SECTIONS.values() for path in section}
    assert naming() - on_the_page == set()
    assert on_the_page - naming() == (WHOLE | HANDED_ON).keys() - naming()


def test_each_file_of_the_way_names_the_strategy_or_takes_over_every_field_of_the_cache() -> None:
    assert {path for _, path in WALK} - naming() == WHOLE.keys()


@pytest.mark.parametrize(("path", "does"), [*WHOLE.items(), *HANDED_ON.items()])
def test_what_passes_the_settings_on_whole_does_so(path: str, does: str) -> None:
    assert does in (ROOT / path).read_text()


def test_what_hands_it_on_is_told_as_such() -> None:
    assert set(SECTIONS["What hands it on"]) == HANDED_ON.keys()
