"""The documentation: generated pages are up to date, links lead somewhere, and the checker would notice."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mamba_api.v1alpha1 import Spec
from mamba_api.v1alpha1.conditions import AS_ASKED, HARMLESS, REASONS_OF, STALLS, ConditionType, Reason
from mamba_api.v1alpha1.documents import load_documents
from mamba_settings.live_settings import LIVE
from parsed_yaml import load_all_yaml

ROOT = Path(__file__).parents[3]


@pytest.fixture
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mambaserve_docs", ROOT / "scripts/docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of one page, for the link checker."""
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/there.md").write_text("# There it is\n\n## Some `code`, and more!\n")
    return tmp_path


def test_generated_pages_are_up_to_date_and_links_resolve() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](docs/there.md)", None),
        ("[a](docs)", None),
        ("[a](https://example.com/x)", None),
        ("[a](mailto:x@example.com)", None),
        ("```\n[a](gone.md)\n```\n", None),
        ("[a](docs/there.md#there-it-is)", None),
        ("[a](docs/there.md#some-code-and-more)", None),
        ("# Here\n[a](#here)", None),
        ("[a](gone.md)", "README.md: gone.md leads nowhere"),
        ("![a](gone.png)", "README.md: gone.png leads nowhere"),
        ("[a](../outside.md)", "README.md: ../outside.md leads nowhere"),
        ("[a](docs/there.md#elsewhere)", "README.md: docs/there.md#elsewhere has no such heading"),
        ("[a](#elsewhere)", "README.md: #elsewhere has no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(
    docs: ModuleType, tree: Path, text: str, problem: str | None
) -> None:
    (tree / "README.md").write_text(text)
    assert docs.broken_links() == ([problem] if problem else [])


def test_the_reference_has_every_field_and_every_reason(docs: ModuleType) -> None:
    page = docs.reference()
    for model in (Spec, *(field.annotation for field in Spec.model_fields.values())):
        for name, field in getattr(model, "model_fields", {}).items():
            assert f"`{field.alias or name}`" in page
    assert [reason for reason in Reason if f"`{reason}`" not in page] == []


def test_the_page_of_conditions_has_every_reason_below_its_condition() -> None:
    page = (ROOT / "docs/reference/conditions.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    repeating = {
        ConditionType.READY, ConditionType.UP_TO_DATE, ConditionType.RECONCILING, ConditionType.STALLED,
    }  # fmt: skip
    for type_, reasons in REASONS_OF.items():
        if type_ in repeating:
            continue
        cells = re.findall(r"^\|[^|]*\|([^|]*)\|", sections[type_], re.MULTILINE)
        assert reasons - set(re.findall(r"\w+", " ".join(cells))) == set(), type_
    assert [reason for reason in HARMLESS if reason not in sections["Ready"]] == []
    told = re.search(r"^## Reconciling and Stalled\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert told is not None
    assert [reason for reason in STALLS | AS_ASKED if reason not in told[1]] == []


def test_the_page_of_local_mode_names_all_that_running_engines_take_over() -> None:
    page = (ROOT / "docs/howto/local-mode.md").read_text()
    sentence = re.search(r"^- (`spec\.stateCache.*?) are taken over", page, re.MULTILINE | re.DOTALL)
    assert sentence is not None
    named = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", sentence[1])}
    assert named == set(LIVE.values())


def test_every_rule_is_told_with_its_place(docs: ModuleType) -> None:
    page = docs.reference()
    assert "- `spec.scaling`: minReplicas is above maxReplicas" in page
    assert "- `spec.engine.env[]`: an environment variable has either value or valueFrom" in page


def test_every_value_of_the_chart_has_a_comment(docs: ModuleType) -> None:
    assert [path for path, _, comment in docs.values() if not comment] == []
    assert {path for path, *_ in docs.values()} >= {"operator.command", "crds.keep", "watchNamespaces"}


def test_the_index_lists_every_page(docs: ModuleType) -> None:
    index = docs.index()
    for folder in docs.KINDS:
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert f"({folder}/{page.name})" in index


def test_yaml_blocks_that_show_a_deployment_are_valid() -> None:
    found = 0
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            if any(isinstance(d, dict) and d.get("kind") == "MambaDeployment" for d in load_all_yaml(block)):
                assert load_documents(block, str(page))
                found += 1
    assert found >= 2


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`(?:ONCE=1 )?make ([a-z ]+)`", (ROOT / "README.md").read_text()))
    named |= set(re.findall(r"`make ([a-z ]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    targets = {target for words in named for target in words.split()}
    assert {"demo", "test", "lint", "docs", "crds"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Return the text of every source file, by its path from the project's root."""
    folders = (
        *("libs", "operator", "server", "cli", "kernels", "tests", "benchmarks", "scripts", "training"),
        *("images", "observability", "release"),
    )
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {f"/{path.relative_to(ROOT)}": path.read_text() for path in paths}


def test_source_files_named_on_pages_exist(docs: ModuleType, sources: dict[str, str]) -> None:
    named = {
        (str(page), name)
        for page in docs.pages()
        for name in re.findall(r"`((?:[\w-]+/)*[a-z_]\w*\.py)\b", (ROOT / page).read_text())
    }
    assert len(named) > 80
    assert [each for each in named if not any(path.endswith(f"/{each[1]}") for path in sources)] == []


def test_modules_named_on_pages_exist_and_have_what_is_named(
    docs: ModuleType, sources: dict[str, str]
) -> None:
    modules = {path.split("/", 2)[2].removesuffix(".py").replace("/", "."): path for path in sources}
    modules |= {
        name.removesuffix(".__init__"): path for name, path in modules.items() if name.endswith(".__init__")
    }

    def exists(name: str) -> bool:
        module, _, attribute = name.rpartition(".")
        return name in modules or (module in modules and attribute in sources[modules[module]])

    named = {
        (str(page), name)
        for page in docs.pages()
        for name in re.findall(r"`(mamba_\w+(?:\.[a-z]\w*)+)", (ROOT / page).read_text())
    }
    assert len(named) > 5
    assert [each for each in named if not exists(each[1])] == []


def test_the_layout_on_the_page_for_contributors_has_every_package() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layout")[2]
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", layout, re.MULTILINE))
    for folder in ("libs", "operator", "server", "cli", "kernels"):
        packages = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        assert set(re.findall(r"`(mamba\w+)`", rows[folder])) == packages


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_the_changelog_stays_short_enough_to_be_read() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 150
